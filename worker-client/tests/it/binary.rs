//! The program `tenure-worker` with real signals.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::json;
use tempfile::TempDir;
use tokio::process::{Child, Command};

use crate::queue::{Queue, SOON, TASK_IDS, TOKEN, claim};
use crate::worker::{pid_in, runs};

const TERM: Duration = Duration::from_secs(60);

fn program(root_url: &str, work_dir: &Path, plane: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tenure-worker"));
    command
        .args(["run", "--task-queue", "p/w", "--worker-group", "g", "--capacity", "2", "--plane", plane, "--work-dir"])
        .arg(work_dir)
        .env("TASKCLUSTER_ROOT_URL", root_url)
        .env("TASKCLUSTER_CLIENT_ID", "worker")
        .env("TASKCLUSTER_ACCESS_TOKEN", TOKEN)
        .env("TASKCLUSTER_CERTIFICATE", "")
        .env("TENURE_WORKER_ID", "w")
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    command
}

fn send(child: &Child, signal: Signal) {
    let pid = i32::try_from(child.id().expect("it has not been waited for")).unwrap();
    kill(Pid::from_raw(pid), signal).unwrap();
}

async fn end(child: Child) -> (Option<i32>, String) {
    let output = tokio::time::timeout(SOON, child.wait_with_output()).await.expect("it ends").unwrap();
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

#[tokio::test]
async fn sigterm_hands_every_running_task_back() {
    let queue = Queue::start().await;
    let script = "env > environment; echo $$ > shell; exec sleep 1000";
    let claims = [0, 1].map(|at| claim(TASK_IDS[at], TERM, &json!({"command": [["sh", "-c", script]]})));
    queue.hand_out(&claims);
    let dir = TempDir::new().unwrap();
    let child = program(&queue.root_url(), &dir.path().join("made/by/it"), "claim").spawn().unwrap();
    let places = [0, 1].map(|at| dir.path().join(format!("made/by/it/{}-0", TASK_IDS[at])));
    let pids = [pid_in(&places[0].join("shell")).await, pid_in(&places[1].join("shell")).await];
    send(&child, Signal::SIGTERM);
    let (code, log) = end(child).await;
    assert_eq!(code, Some(0), "{log}");
    assert_eq!(pids.map(runs), [false, false]);
    let reports = queue.asked("exception");
    assert_eq!(reports.len(), 2);
    assert!(reports.iter().all(|report| report.body == json!({"reason": "worker-shutdown"})));
    assert!(!log.contains("secret-of"), "a token is in the log: {log}");
    let environment = std::fs::read_to_string(places[0].join("environment")).unwrap();
    assert!(!environment.contains(TOKEN) && !environment.contains("TENURE_"), "{environment}");
}

#[tokio::test]
async fn a_second_signal_ends_it_at_once() {
    let queue = Queue::start().await;
    let script = "trap '' TERM; echo $$ > shell; while :; do sleep 1; done";
    queue.hand_out(&[claim(TASK_IDS[0], TERM, &json!({"command": [["sh", "-c", script]]}))]);
    let dir = TempDir::new().unwrap();
    let child = program(&queue.root_url(), dir.path(), "claim").spawn().unwrap();
    let place = dir.path().join(format!("{}-0", TASK_IDS[0]));
    let pid = pid_in(&place.join("shell")).await;
    send(&child, Signal::SIGINT);
    // Without a pause the two signals could arrive as one.
    tokio::time::sleep(Duration::from_millis(300)).await;
    let start = std::time::Instant::now();
    send(&child, Signal::SIGINT);
    let (code, log) = end(child).await;
    assert_eq!(code, Some(1), "{log}");
    assert!(start.elapsed() < Duration::from_secs(2));
    assert!(!runs(pid));
    assert_eq!(queue.reports().len(), 0);
}

#[tokio::test]
async fn a_wrong_setting_is_one_line_and_exit_code_2() {
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("file");
    std::fs::write(&file, "").unwrap();
    for (mut command, says) in [
        (program("http://127.0.0.1:1", dir.path(), "poll"), "--plane"),
        (program("localhost", dir.path(), "claim"), "--root-url"),
        (program("http://127.0.0.1:1", &file.join("below"), "claim"), "--work-dir"),
    ] {
        let (code, log) = end(command.spawn().unwrap()).await;
        assert_eq!((code, log.lines().count()), (Some(2), 1), "{log}");
        assert!(log.contains(says), "{log}");
    }
}
