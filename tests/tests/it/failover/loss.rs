//! Failover to an asynchronous standby that lagged: acknowledged work is lost. Only that work is
//! lost, and later work behaves as if it had never existed.

use std::collections::HashSet;
use std::time::Duration;

use serde_json::Value;
use tenure_api::ids::SlugId;
use tenure_tests::http::{Answer, TENURE_API};
use tenure_tests::replication::Replicated;

use super::{LOAD, SOME, Stage};
use crate::rig::{call, claim_path, client_of, credentials_of, definition, eventually, new_task, ok, run_of, worker};
use crate::sse::Stream;

/// A queue that exists only in the lost part, and is created again later.
const NEW_QUEUE: &str = "failover/new";
const NEW_TASKS: usize = 10;
/// Time for creates that will be lost; low-water marks and the event cache advance far meanwhile.
const LOSING_FOR: Duration = Duration::from_secs(4);

/// A server notices the loss with its next connection; ten times the interval of its own check.
const ENDED_WITHIN: Duration = Duration::from_secs(60);

pub(super) async fn ask(stage: &Stage, server: usize, method: &str, path: &str, body: Option<&Value>) -> Answer {
    eventually(&format!("{method} {path} is answered"), async || {
        let answer = call(&mut client_of(&stage.servers[server]), &stage.root, method, path, body).await;
        (answer.status != 503).then_some(answer)
    })
    .await
}

async fn create_in_new_queue(stage: &Stage) -> Vec<SlugId> {
    let mut tasks = Vec::new();
    for n in 0..NEW_TASKS {
        let task = new_task();
        let answer = ask(stage, n % 2, "PUT", &format!("/task/{task}"), Some(&definition(NEW_QUEUE))).await;
        assert_eq!(answer.status, 200, "{}", answer.body);
        tasks.push(task);
    }
    tasks
}

async fn work_off_new_queue(stage: &Stage, tasks: &[SlugId]) {
    let mut left: HashSet<String> = tasks.iter().map(ToString::to_string).collect();
    let mut server = 0;
    eventually("acknowledged tasks of the new queue are claimable", async || {
        server = 1 - server;
        let answer = ask(stage, server, "POST", &claim_path(NEW_QUEUE), Some(&worker(3))).await;
        for claim in answer.body["tasks"].as_array().expect("claims are a list") {
            let id = claim["status"]["taskId"].as_str().unwrap_or_default();
            assert!(left.remove(id), "{id} is claimed and was not created");
            let (path, its) = (format!("{}/completed", run_of(claim)), credentials_of(claim));
            ok(call(&mut client_of(&stage.servers[server]), &its, "POST", &path, None).await);
        }
        left.is_empty().then_some(())
    })
    .await;
}

async fn newest_event(stage: &Stage, server: usize) -> i64 {
    let answer = ask(stage, server, "GET", &format!("{TENURE_API}/events?after=latest"), None).await;
    answer.body["after"].as_i64().expect("a position")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn loss_of_asynchronous_standby_harms_nothing_else() {
    let mut stage = Stage::on(Replicated::asynchronous().await).await;
    let mut accountant = stage.load(LOAD);
    accountant.until_done(SOME).await;
    accountant.pause().await;
    stage.database.caught_up().await;

    let stall = stage.database.stall().await;
    let loss = accountant.accounts().stamp();
    let mut streams = Vec::new();
    for server in &stage.servers {
        streams.push(Stream::open(server, &stage.root, "").await.begun().await);
    }
    accountant.resume();
    let lost_new = create_in_new_queue(&stage).await;
    tokio::time::sleep(LOSING_FOR).await;
    let cursor = newest_event(&stage, 0).await;
    let position = stage.position().await;
    let fault = stage.kill_primary(&accountant);
    drop(stage.database.promote().await);
    drop(stall);
    let back = stage.position().await;
    let until = accountant.accounts().stamp();
    stage.database.forward();
    accountant.note_loss(loss);
    let recovery = accountant.recovered(fault).await;
    println!("failover: asynchronous loss: position {position}, then {back}; first {recovery}");
    assert!(back < position, "nothing was lost");

    refuse_lost_cursor(&stage, cursor).await;
    for stream in streams {
        until_it_ends(stream).await;
    }
    for task in &lost_new {
        let answer = ask(&stage, 1, "GET", &format!("/task/{task}/status"), None).await;
        assert_eq!(answer.status, 404, "lost tasks do not exist: {}", answer.body);
    }
    let again = create_in_new_queue(&stage).await;
    work_off_new_queue(&stage, &again).await;
    accountant.until_done(SOME).await;
    let acknowledged: HashSet<SlugId> = accountant.accounts().created(loss, until).into_iter().collect();
    let audit = stage.finish("asynchronous loss", accountant).await;
    println!("failover: asynchronous loss: {} acknowledged while the standby got nothing", acknowledged.len());
    assert!(!audit.lost.is_empty() && audit.lost.iter().all(|task| acknowledged.contains(task)), "{audit}");
}

/// Asserts that both servers refuse a cursor beyond the newest event: otherwise it would skip
/// reused positions.
async fn refuse_lost_cursor(stage: &Stage, cursor: i64) {
    // Far beyond the events that the load adds meanwhile.
    let cursor = cursor + 1_000_000;
    for server in 0..stage.servers.len() {
        let answer = ask(stage, server, "GET", &format!("{TENURE_API}/events?after={cursor}"), None).await;
        assert_eq!(answer.status, 400, "a cursor beyond the newest event: {}", answer.body);
    }
}

/// Asserts that a stream from before the loss ends, so that its reader checks its cursor; positions
/// have other events now.
async fn until_it_ends(mut stream: Stream) {
    let ended = tokio::time::timeout(ENDED_WITHIN, stream.is_ended_in_order()).await;
    assert!(ended.is_ok(), "a stream goes on although the log was taken back");
}
