//! Sessions of workers during a database outage: servers must not take their own outage for the
//! silence of workers.

use std::time::Duration;

use serde_json::{Value, json};
use tenure_api::credentials::Credentials;
use tenure_tests::http::TENURE_API;
use tenure_tests::server::{Launch, Server, create_root_client, fresh_secret_key};

use super::cluster::Cluster;
use super::{QUEUE, assert_invariants, create_until_it_works, settled};
use crate::rig::{call, claim_path, client_of, credentials_of, eventually, new_folder, run_of};

const TTL: u64 = 15;
/// Length of the freeze. The session's time is over afterwards, because it was not renewed shortly
/// before.
const FROZEN: Duration = Duration::from_secs(10);
const SILENT_BEFORE: Duration = Duration::from_secs(TTL - 8);
/// Length of the stop: longer than an unrenewed session's TTL.
const STOPPED: Duration = Duration::from_secs(TTL + 5);

struct Worker {
    session: String,
    claim: Value,
}

fn says(session: &str) -> Value {
    json!({"workerGroup": "group", "workerId": "worker", "sessionId": session})
}

impl Worker {
    async fn start(server: &Server, root: &Credentials) -> Self {
        let body = json!({"taskQueueId": QUEUE, "workerGroup": "group", "workerId": "worker", "ttl": TTL});
        let started = call(&mut client_of(server), root, "POST", &format!("{TENURE_API}/sessions"), Some(&body)).await;
        assert_eq!(started.status, 201, "{}", started.body);
        let session = started.body["sessionId"].as_str().unwrap().to_owned();
        let claim = claim(server, root, &session).await;
        Self { session, claim }
    }

    fn path(&self, rest: &str) -> String {
        format!("{TENURE_API}/sessions/{}{rest}", self.session)
    }

    /// Asserts that the worker can renew, keep and finish its run, and claim another.
    async fn goes_on(&self, server: &Server, root: &Credentials) {
        settled(server, root, "POST", &self.path("/renew"), None).await;
        let shown = settled(server, root, "GET", &self.path(""), None).await.body;
        assert_eq!((&shown["running"], shown.get("ended")), (&json!(1), None), "{shown}");
        let its = credentials_of(&self.claim);
        for what in ["reclaim", "completed"] {
            settled(server, &its, "POST", &format!("{}/{what}", run_of(&self.claim)), None).await;
        }
        let next = claim(server, root, &self.session).await;
        assert_ne!(next["status"]["taskId"], self.claim["status"]["taskId"]);
        assert_eq!(next["runId"], 0, "{next}");
    }
}

async fn claim(server: &Server, root: &Credentials, session: &str) -> Value {
    let answer = settled(server, root, "POST", &claim_path(QUEUE), Some(&says(session))).await;
    let claims = answer.body["tasks"].as_array().unwrap_or_else(|| panic!("{}", answer.body)).clone();
    assert_eq!(claims.len(), 1, "{}", answer.body);
    claims[0].clone()
}

/// Checks two servers and a session while their database is away and when it is back.
async fn no_session_ends(away: impl AsyncFnOnce(&mut Cluster)) {
    let mut cluster = Cluster::start(&[]).await;
    let (key, folder, url) = (fresh_secret_key(), new_folder(), cluster.url("postgres"));
    let launch = || Launch::on_database(&url, &key).flag("--claim-work-wait", "0s");
    let first = launch().start(folder.path(), "first").await;
    let second = launch().start(folder.path(), "second").await;
    let root = create_root_client(&url, &key).credentials;
    let task = create_until_it_works(&first, &root).await;
    create_until_it_works(&first, &root).await;
    let worker = Worker::start(&first, &root).await;
    let mut conn = cluster.connect().await;
    eventually("a server looks at sessions", async || {
        let looks = "SELECT EXISTS (SELECT FROM session_clock)";
        sqlx::query_scalar::<_, bool>(looks).fetch_one(&mut conn).await.unwrap().then_some(())
    })
    .await;
    drop(conn);
    away(&mut cluster).await;
    // Before a renewal, which would also extend the session.
    eventually("a server extends the sessions", async || {
        (first.log() + &second.log()).contains("all sessions were extended").then_some(())
    })
    .await;
    for server in [&second, &first] {
        settled(server, &root, "POST", &worker.path("/renew"), None).await;
    }
    worker.goes_on(&second, &root).await;
    let status = settled(&first, &root, "GET", &format!("/task/{task}/status"), None).await.body["status"].clone();
    assert_eq!((&status["state"], status["runs"].as_array().map(Vec::len)), (&json!("completed"), Some(1)), "{status}");
    assert_invariants(&url).await;
    for server in [first, second] {
        assert!(server.stop().await.success());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn frozen_database_ends_no_session() {
    no_session_ends(async |cluster| {
        tokio::time::sleep(SILENT_BEFORE).await;
        cluster.freeze();
        tokio::time::sleep(FROZEN).await;
        cluster.thaw();
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn database_stopped_beyond_ttl_ends_no_session() {
    no_session_ends(async |cluster| {
        cluster.stop().await;
        tokio::time::sleep(STOPPED).await;
        cluster.start_again().await;
    })
    .await;
}
