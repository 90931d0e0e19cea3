//! A worker whose clock is an hour off: another process, with libfaketime. It is this test program
//! again, and runs only `the_worker_of_m1`.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use serde_json::json;
use tenure_client::Client;
use tenure_client::consumer::{Consumer, Job, Outcome, Stop};
use tenure_tests::http::TENURE_API;
use tokio::process::Command;
use tokio::time::Instant;

use super::Office;
use super::fault_proxy::FaultProxy;
use crate::rig::eventually;

/// Environment variable of the other process: its queue.
const QUEUE_OF_WORKER: &str = "TENURE_TEST_M1_QUEUE";
const WORKER: &str = "consumer::clocks::the_worker_of_m1";
/// A quarter of the lease is the tolerance for a busy machine.
const LEASE: Duration = Duration::from_secs(20);
/// Three quarters, minus the rounding of dates.
const RENEWED_AFTER: Duration = Duration::from_millis(14_900);

fn faketime() -> Option<String> {
    let folders = ["/usr/lib/x86_64-linux-gnu/faketime", "/usr/lib/aarch64-linux-gnu/faketime", "/usr/lib/faketime"];
    folders.map(|folder| format!("{folder}/libfaketimeMT.so.1")).into_iter().find(|file| Path::new(file).is_file())
}

#[tokio::test]
async fn the_worker_of_m1() {
    let Ok(queue) = std::env::var(QUEUE_OF_WORKER) else { return };
    let builder = Consumer::builder(Client::from_env().unwrap(), queue.parse().unwrap()).name("group", "skewed");
    let builder = builder.without_session().wait(Duration::from_secs(2)).grace(Duration::from_secs(1));
    let consumer = builder.handler(|_job: Job, stop: Stop| async move {
        stop.requested().await;
        Outcome::Failed(None)
    });
    consumer.build().unwrap().run().await.unwrap();
}

async fn renews_in_time(office: &Office, library: &str, queue: &str, skew: &str) {
    let policy = json!({"claimTimeout": LEASE.as_secs()});
    let path = format!("{TENURE_API}/queues/{queue}/policy");
    assert_eq!(office.rig.call("PUT", &path, Some(&policy)).await.status, 200);
    let proxy = FaultProxy::to(office.rig.server.root_url()).await;
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([WORKER, "--exact"]).stdout(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true);
    command.env(QUEUE_OF_WORKER, queue).env("TASKCLUSTER_ROOT_URL", proxy.url()).env("FAKETIME", skew);
    command.env("TASKCLUSTER_CLIENT_ID", &office.rig.root.client_id);
    command.env("TASKCLUSTER_ACCESS_TOKEN", office.rig.root.access_token.expose());
    command.env("LD_PRELOAD", library).env("DONT_FAKE_MONOTONIC", "1").env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
    let _worker = command.env_remove("TASKCLUSTER_CERTIFICATE").spawn().unwrap();
    eventually("it asks for work", async || proxy.sent("/work").first().copied()).await;

    let task = crate::rig::new_task();
    let mut body = crate::rig::definition(queue);
    body["payload"] = json!({});
    let created = Instant::now();
    assert_eq!(office.rig.create(task, &body).await.status, 200);
    let reclaim = format!("/task/{task}/runs/0/reclaim");
    let claimed = office.becomes(task, "running").await["runs"][0]["takenUntil"].clone();
    let renewed = eventually("it renews", async || {
        let status = office.rig.status(task).await;
        let runs = status["runs"].as_array().unwrap().clone();
        assert_eq!((&status["state"], runs.len()), (&json!("running"), 1), "{skew}: it renews too late: {status}");
        (runs[0]["takenUntil"] != claimed).then(|| proxy.sent(&reclaim)[0])
    });
    let renewed = renewed.await - created;
    assert!(renewed >= RENEWED_AFTER, "{skew}: renewed after {renewed:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn m1_wrong_clock_does_not_change_time_of_renewal() {
    let Some(library) = faketime() else {
        eprintln!("skipped: libfaketime is not installed (apt install libfaketime)");
        return;
    };
    let office = Office::open().await;
    tokio::join!(
        renews_in_time(&office, &library, "consumer/ahead", "+3600"),
        renews_in_time(&office, &library, "consumer/behind", "-3600"),
    );
}
