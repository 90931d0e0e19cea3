//! Processes of `tenure-worker` that share a name.

use std::process::Stdio;

use serde_json::json;
use tenure_tests::http::TENURE_API;

use crate::rig::{Rig, definition, eventually, new_task, worker_program};

const QUEUE: &str = "takeover/linux";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_worker_works_again_at_once_under_its_name() {
    let rig = Rig::start().await;
    let task = new_task();
    let mut body = definition(QUEUE);
    // Its lease lasts for minutes.
    body["payload"] = json!({"command": [["sh", "-c", "test -e ../begun || { touch ../begun; exec sleep 600; }"]]});
    assert_eq!(rig.create(task, &body).await.status, 200);
    let start = || worker_program(rig.server.root_url(), &rig.root, QUEUE, "again", rig.folder.path()).spawn();
    let mut first = start().expect("it is built");
    let begun = rig.folder.path().join("work/begun");
    eventually("the task runs", async || begun.exists().then_some(())).await;
    first.kill().await.expect("it runs");
    let _second = start().expect("it is built");
    let status = eventually("the task is completed", async || {
        let status = rig.status(task).await;
        (status["state"] == "completed").then_some(status)
    })
    .await;
    assert_eq!(status["runs"][0]["reasonResolved"], "worker-shutdown", "its session was taken over");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn first_of_two_workers_with_one_name_ends() {
    let rig = Rig::start().await;
    let start = || {
        let mut program = worker_program(rig.server.root_url(), &rig.root, QUEUE, "twin", rig.folder.path());
        program.stderr(Stdio::piped()).spawn().expect("it is built")
    };
    let path = format!("{TENURE_API}/queues/takeover%2Flinux/workers");
    let first = start();
    eventually("it has a session", async || {
        let workers = rig.call("GET", &path, None).await.body["workers"].clone();
        workers.as_array().is_some_and(|workers| workers.len() == 1).then_some(())
    })
    .await;
    let _second = start();
    let output = eventually_ends(first).await;
    let text = String::from_utf8(output.stderr).expect("it is text");
    assert_eq!(output.status.code(), Some(3), "{text}");
    assert!(text.contains("another process with the name group/twin"), "{text}");
    let task = rig.create_with(QUEUE, |body| body["payload"] = json!({"command": [["true"]]})).await;
    eventually("the second works", async || (rig.status(task).await["state"] == "completed").then_some(())).await;
}

async fn eventually_ends(child: tokio::process::Child) -> std::process::Output {
    let ended = tokio::time::timeout(crate::rig::TIMEOUT, child.wait_with_output()).await;
    ended.expect("it ends").expect("it can be waited for")
}
