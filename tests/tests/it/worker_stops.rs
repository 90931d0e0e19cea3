//! A real `tenure-worker` whose task ends without it: the task's processes are stopped, and its log is there.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tenure_api::ids::SlugId;
use tenure_tests::clock::{unix_millis, wire_date};
use tenure_tests::http::TENURE_API;

use crate::rig::{Rig, call, client_of, definition, eventually, new_task, worker_program};

const QUEUE: &str = "stops/linux";
/// Ten times the second within which a task is stopped. Its claim would be renewed after minutes.
const STOPPED_WITHIN: Duration = Duration::from_secs(10);

/// A task that says so when it is asked to end.
fn waiting(deadline_ms: i64) -> Value {
    let script = "echo begun; trap 'echo asked; echo asked > ../$TASK_ID; exit 0' TERM; echo $$ > ../running-$TASK_ID; \
                  while :; do sleep 0.05; done";
    let mut task = definition(QUEUE);
    task["payload"] = json!({"command": [["sh", "-c", script]]});
    task["deadline"] = wire_date(unix_millis() + deadline_ms).into();
    task
}

/// Creates such a task, and waits until it runs.
async fn run(rig: &Rig, deadline_ms: i64) -> SlugId {
    let task = new_task();
    assert_eq!(rig.create(task, &waiting(deadline_ms)).await.status, 200);
    let file = rig.folder.path().join("work").join(format!("running-{task}"));
    eventually("the task runs", async || file.exists().then_some(())).await;
    task
}

/// Waits until the task's command was asked to end; how long that took.
async fn until_asked(rig: &Rig, task: SlugId, began: Instant) -> Duration {
    let file = rig.folder.path().join("work").join(task.to_string());
    eventually("the task is asked to end", async || file.exists().then_some(())).await;
    began.elapsed()
}

/// The log of run 0, as far as it was uploaded.
async fn log(rig: &Rig, task: SlugId) -> String {
    let path = format!("/task/{task}/runs/0/artifacts");
    eventually("the log is uploaded", async || {
        let artifacts = rig.call("GET", &path, None).await;
        let names = artifacts.body["artifacts"].as_array()?;
        names.iter().any(|artifact| artifact["name"] == "public/logs/live.log").then_some(())
    })
    .await;
    let url = format!("{}/api/queue/v1/task/{task}/runs/0/artifacts/public/logs/live.log", rig.server.root_url());
    let mut curl = std::process::Command::new("curl");
    curl.args(["-sSfL", "--compressed", &url]);
    let output = crate::rig::finish(curl).await;
    assert!(output.status.success(), "{}", crate::rig::stderr(&output));
    crate::rig::stdout(&output)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_that_is_cancelled_or_overdue_is_stopped_within_seconds_and_has_its_log() {
    let rig = Rig::start().await;
    let second = rig.another("second").await;
    let mut program = worker_program(rig.server.root_url(), &rig.root, QUEUE, "stops", rig.folder.path());
    let mut worker = program.spawn().expect("it is built");

    for server in [&rig.server, &second] {
        let cancelled = run(&rig, 3_600_000).await;
        let began = Instant::now();
        let path = format!("/task/{cancelled}/cancel");
        assert_eq!(call(&mut client_of(server), &rig.root, "POST", &path, None).await.status, 200);
        let took = until_asked(&rig, cancelled, began).await;
        assert!(took < STOPPED_WITHIN, "{took:?}");
        let log = log(&rig, cancelled).await;
        assert!(log.contains("begun\n") && log.contains("asked\n") && log.contains("the task was cancelled"), "{log}");
    }

    let began = Instant::now();
    let overdue = run(&rig, 4_000).await;
    let took = until_asked(&rig, overdue, began).await;
    assert!(took < Duration::from_secs(4) + STOPPED_WITHIN, "{took:?}");
    assert!(log(&rig, overdue).await.contains("the deadline of the task has passed"));
    assert_eq!(rig.status(overdue).await["runs"].as_array().unwrap().len(), 1);

    let removed = run(&rig, 3_600_000).await;
    let began = Instant::now();
    let path = format!("{TENURE_API}/workers/stops%2Flinux/group/stops/removed");
    assert_eq!(rig.call("POST", &path, None).await.status, 200);
    let took = until_asked(&rig, removed, began).await;
    assert!(took < STOPPED_WITHIN, "{took:?}");
    assert_eq!(rig.status(removed).await["runs"][0]["reasonResolved"], "worker-shutdown");
    worker.kill().await.expect("it runs");
    second.stop().await;
    rig.server.stop().await;
}
