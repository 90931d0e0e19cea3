//! Faults of the database: no space, no connections, a crash, another clock. The server answers
//! clearly, nothing hangs, nothing acknowledged is lost, and recovery needs no restart.

mod away;
mod clocks;
mod cluster;
mod connections;
mod disk_full;
mod hosts;
mod live_logs;
mod notifications;
mod outages;
mod positions;
mod schedulers;
mod sessions;
mod standby;
mod streams;
mod tls;

use std::io::Write as _;
use std::time::{Duration, Instant};

use serde_json::Value;
use sqlx::{Connection as _, PgConnection};
use tenure_api::credentials::Credentials;
use tenure_api::ids::SlugId;
use tenure_tests::server::Server;

use crate::rig::{
    Raw, RawReply, call, claim_path, client_of, credentials_of, definition, eventually, new_task, run_of, send, worker,
};

const QUEUE: &str = "faults/queue";
/// Time from the end of a fault to the first success: a failed PostgreSQL is restarted after at
/// most ten seconds, and then recovers.
const RECOVERED_WITHIN: Duration = Duration::from_secs(60);

async fn create(server: &Server, who: &Credentials, task: SlugId) -> RawReply {
    send(server, who, "PUT", &format!("/task/{task}"), Some(&definition(QUEUE))).await
}

#[track_caller]
fn assert_unavailable(reply: &RawReply) {
    reply.refused(503, "ServiceUnavailable");
    let after = reply.header("retry-after").expect("a 503 has when to try again");
    assert!(after.parse::<u32>().is_ok_and(|seconds| seconds > 0), "{after}");
}

/// Creates tasks until one is acknowledged; every answer before must be 503.
pub async fn create_until_it_works(server: &Server, who: &Credentials) -> SlugId {
    let deadline = Instant::now() + RECOVERED_WITHIN;
    loop {
        let task = new_task();
        let reply = create(server, who, task).await;
        if reply.status == 200 {
            return task;
        }
        assert_unavailable(&reply);
        assert!(Instant::now() < deadline, "it does not recover:\n{}", server.log_tail());
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Repeats a call until it is answered: sessions of the old database notice with their first
/// request.
async fn settled(
    server: &Server,
    who: &Credentials,
    method: &str,
    path: &str,
    body: Option<&Value>,
) -> tenure_tests::http::Answer {
    eventually(&format!("{method} {path} is answered"), async || {
        let answer = call(&mut client_of(server), who, method, path, body).await;
        let expected = [200, 503].contains(&answer.status);
        assert!(expected, "{method} {path}: {}\n{}", answer.body, server.log_tail());
        (answer.status == 200).then_some(answer)
    })
    .await
}

/// Asserts that every acknowledged task exists, and claims, renews and completes each.
async fn finish_all(server: &Server, who: &Credentials, mut tasks: Vec<SlugId>) {
    for &task in &tasks {
        let answer = settled(server, who, "GET", &format!("/task/{task}/status"), None).await;
        assert_eq!(answer.body["status"]["state"], "pending", "an acknowledged task is lost");
    }
    let deadline = Instant::now() + RECOVERED_WITHIN;
    while !tasks.is_empty() {
        assert!(Instant::now() < deadline, "no worker gets these: {tasks:?}\n{}", server.log_tail());
        let answer = settled(server, who, "POST", &claim_path(QUEUE), Some(&worker(32))).await;
        for claim in answer.body["tasks"].as_array().expect("claims are a list") {
            let its = credentials_of(claim);
            for what in ["reclaim", "completed"] {
                settled(server, &its, "POST", &format!("{}/{what}", run_of(claim)), None).await;
            }
            let id = claim["status"]["taskId"].as_str().unwrap_or_default().to_owned();
            // Skips tasks that were stored although their answer was lost.
            tasks.retain(|task| task.to_string() != id);
        }
    }
}

async fn assert_invariants(url: &str) {
    let mut conn = PgConnection::connect(url).await.expect("the database can be reached again");
    sqlx::query("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY").execute(&mut conn).await.unwrap();
    let violations = tenure_store::testing::check_invariants_on(&mut conn).await;
    assert!(violations.is_empty(), "violated invariants: {violations:#?}");
}

async fn metric(server: &Server, name: &str) -> Option<f64> {
    let text = Raw::new("GET", "/metrics").send(server.root_url()).await.text();
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok())
}

async fn heartbeat(server: &Server) -> RawReply {
    Raw::new("GET", "/__heartbeat__").send(server.root_url()).await
}

/// Prints that a test could not run here, even if the output of tests is captured.
fn skipped(test: &str, why: &str) {
    let line = format!("SKIPPED 1 test: {test}: {why}\n");
    let _ = std::io::stderr().write_all(line.as_bytes());
}
