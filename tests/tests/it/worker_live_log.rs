//! A real `tenure-worker` whose log is followed by the URL of its artifact.

use std::process::Stdio;

use serde_json::json;
use tenure_tests::http::TENURE_API;
use tokio::process::Command;

use crate::rig::{Rig, TIMEOUT, definition, eventually, finish, new_task, stderr, stdout, worker_program};

const QUEUE: &str = "follow/linux";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn artifact_url_leads_to_log_during_and_after_the_run() {
    let rig = Rig::start_with(|launch| launch).await;
    let mut program = worker_program(rig.server.root_url(), &rig.root, QUEUE, "follow", rig.folder.path());
    let mut worker = program.spawn().expect("it is built");
    let task = new_task();
    let wait = |file: &str| format!("while ! test -e ../{file}; do sleep 0.05; done");
    let script = format!("echo begun; {}; echo more; {}; exit 3", wait("more"), wait("end"));
    let mut body = definition(QUEUE);
    body["payload"] = json!({"command": [["sh", "-c", script]]});
    assert_eq!(rig.create(task, &body).await.status, 200);
    let artifacts = format!("/task/{task}/runs/0/artifacts");
    eventually("there is a live log", async || {
        let listed = rig.call("GET", &artifacts, None).await.body;
        (listed["artifacts"][0]["storageType"] == "reference").then_some(())
    })
    .await;

    let url = format!("{}/api/queue/v1{artifacts}/public/logs/live.log", rig.server.root_url());
    let seen = rig.folder.path().join("seen");
    let mut curl = Command::new("curl");
    curl.args(["-sSfLN", &url]).stdin(Stdio::null()).stdout(std::fs::File::create(&seen).unwrap()).kill_on_drop(true);
    let mut reader = curl.spawn().expect("curl is installed");
    let reads = async |text: &str| {
        eventually(text, async || std::fs::read_to_string(&seen).unwrap().contains(text).then_some(())).await;
    };
    reads("\nbegun\n").await;
    let work = rig.folder.path().join("work");
    std::fs::write(work.join("more"), "").unwrap();
    reads("\nmore\n").await;
    assert_eq!(rig.status(task).await["state"], "running");
    std::fs::write(work.join("end"), "").unwrap();
    let ended = tokio::time::timeout(TIMEOUT, reader.wait()).await.expect("the log ends with the run").unwrap();
    assert!(ended.success());
    eventually("it is reported", async || (rig.status(task).await["state"] == "failed").then_some(())).await;

    let mut curl = std::process::Command::new("curl");
    curl.args(["-sSfL", "--compressed", &url]);
    let output = finish(curl).await;
    assert!(output.status.success(), "{}", stderr(&output));
    let (whole, followed) = (stdout(&output), std::fs::read_to_string(&seen).unwrap());
    assert!(whole.ends_with("[tenure-worker] failed: exit code 3\n") && whole.starts_with(&followed), "{followed}");
    let result = rig.call("GET", &format!("{TENURE_API}/tasks/{task}/result"), None).await;
    assert_eq!(result.body["failure"], json!({"message": "exit code 3", "exitCode": 3}));
    assert_eq!(result.body.get("result"), None);
    worker.kill().await.expect("it runs");
}
