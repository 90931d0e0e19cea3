//! A real `tenure-worker` whose task is ended by others: the processes are stopped, and the log is
//! stored.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tenure_api::ids::SlugId;
use tenure_tests::clock::{unix_millis, wire_date};
use tenure_tests::http::TENURE_API;
use tenure_tests::server::{Launch, Server};

use crate::fleet::without_notifications;
use crate::rig::{Rig, call, client_of, definition, eventually, new_task, worker_program};

const QUEUE: &str = "stops/linux";
/// Ten times the second within which a task is stopped. Its claim would be renewed after minutes.
const STOPPED_WITHIN: Duration = Duration::from_secs(10);
/// Seconds until a deadline before the end of a lease.
const SOON: i64 = 600;
/// Seconds until a deadline that the test does not reach.
const LATE: i64 = 7_200;

fn waiting(deadline_s: i64) -> Value {
    let script = "echo begun; trap 'echo asked; echo asked > ../$TASK_ID; exit 0' TERM; echo $$ > ../running-$TASK_ID; \
                  while :; do sleep 0.05; done";
    let mut task = definition(QUEUE);
    task["payload"] = json!({"command": [["sh", "-c", script]]});
    task["deadline"] = wire_date(unix_millis() + deadline_s * 1_000).into();
    // No retry, so that nothing is left running.
    task["retries"] = 0.into();
    task
}

async fn run(rig: &Rig, deadline_s: i64) -> SlugId {
    let task = new_task();
    assert_eq!(rig.create(task, &waiting(deadline_s)).await.status, 200);
    let file = rig.folder.path().join("work").join(format!("running-{task}"));
    eventually("the task runs", async || file.exists().then_some(())).await;
    task
}

async fn until_asked(rig: &Rig, task: SlugId, began: Instant) {
    let file = rig.folder.path().join("work").join(task.to_string());
    eventually("the task is asked to end", async || file.exists().then_some(())).await;
    let took = began.elapsed();
    assert!(took < STOPPED_WITHIN, "{took:?}");
}

async fn log(rig: &Rig, task: SlugId) -> String {
    let path = format!("/task/{task}/runs/0/artifacts");
    eventually("the log is uploaded", async || {
        let artifacts = rig.call("GET", &path, None).await;
        let names = artifacts.body["artifacts"].as_array()?;
        // Before that it is a reference to the live log.
        let is_whole =
            |artifact: &Value| artifact["name"] == "public/logs/live.log" && artifact["storageType"] == "link";
        names.iter().any(is_whole).then_some(())
    })
    .await;
    let url = format!("{}/api/queue/v1/task/{task}/runs/0/artifacts/public/logs/live.log", rig.server.root_url());
    let mut curl = std::process::Command::new("curl");
    curl.args(["-sSfL", "--compressed", &url]);
    let output = crate::rig::finish(curl).await;
    assert!(output.status.success(), "{}", crate::rig::stderr(&output));
    crate::rig::stdout(&output)
}

async fn start(settings: impl Fn(Launch) -> Launch) -> (Rig, Server, tokio::process::Child) {
    let rig = Rig::start_with(&settings).await;
    let launch = settings(Launch::on_database(rig.database.url(), &rig.secret_key));
    let second = launch.start(rig.folder.path(), "second").await;
    let mut program = worker_program(rig.server.root_url(), &rig.root, QUEUE, "stops", rig.folder.path());
    // Longer than the jump of the clock.
    let worker = program.args(["--session-ttl", "1h"]).spawn().expect("it is built");
    (rig, second, worker)
}

async fn cancel(rig: &Rig, server: &Server) {
    let cancelled = run(rig, LATE).await;
    let began = Instant::now();
    let path = format!("/task/{cancelled}/cancel");
    assert_eq!(call(&mut client_of(server), &rig.root, "POST", &path, None).await.status, 200);
    until_asked(rig, cancelled, began).await;
    let log = log(rig, cancelled).await;
    assert!(log.contains("begun\n") && log.contains("asked\n") && log.contains("the task was cancelled"), "{log}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ended_task_is_stopped_within_seconds_and_keeps_its_log() {
    let (rig, second, mut worker) = start(|launch| launch.flag("--clock", "manual")).await;
    for server in [&rig.server, &second] {
        cancel(&rig, server).await;
    }

    let overdue = run(&rig, SOON).await;
    let began = Instant::now();
    rig.advance(SOON + 1).await;
    until_asked(&rig, overdue, began).await;
    assert!(log(&rig, overdue).await.contains("the deadline of the task has passed"));

    let removed = run(&rig, LATE).await;
    let began = Instant::now();
    let path = format!("{TENURE_API}/workers/stops%2Flinux/group/stops/removed");
    assert_eq!(rig.call("POST", &path, None).await.status, 200);
    until_asked(&rig, removed, began).await;
    assert!(log(&rig, removed).await.contains("the session of the worker has ended"));
    worker.kill().await.expect("it runs");
    second.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn task_is_stopped_within_seconds_without_notification() {
    let (rig, second, mut worker) = start(without_notifications).await;
    for server in [&rig.server, &second] {
        cancel(&rig, server).await;
    }
    worker.kill().await.expect("it runs");
    second.stop().await;
}
