//! The program `tenure-worker` with real signals.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::json;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};

use crate::mailbox::{Mailbox, QUEUES, message};
use crate::queue::{Queue, SOON, TASK_IDS, TOKEN, claim, refuse, until};
use crate::worker::{given_back, pid_in, runs, shell};

const LEASE: Duration = Duration::from_secs(60);

fn program(root_url: &str, work_dir: &Path, plane: &str) -> Command {
    let mut command = bare_program(root_url, work_dir);
    command.args(["--capacity", "2", "--plane", plane, "--keep"]).env("TASKCLUSTER_ACCESS_TOKEN", TOKEN);
    command
}

pub fn bare_program(root_url: &str, work_dir: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tenure-worker"));
    command
        .args(["run", "--task-queue", "p/w", "--worker-group", "g", "--work-dir"])
        .arg(work_dir)
        .env("TASKCLUSTER_ROOT_URL", root_url)
        .env("TASKCLUSTER_CLIENT_ID", "worker")
        .env_remove("TASKCLUSTER_ACCESS_TOKEN")
        .env("TASKCLUSTER_CERTIFICATE", "")
        .env("TENURE_WORKER_ID", "w")
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    command
}

pub async fn clear_up(queue: &Queue, work_dir: &Path) {
    let begun = queue.requests("p%2Fw").len();
    let mut program = bare_program(&queue.root_url(), work_dir);
    let child = program.env("TASKCLUSTER_ACCESS_TOKEN", TOKEN).spawn().unwrap();
    queue.wait_for("p%2Fw", begun + 1).await;
    assert_eq!(std::fs::read_dir(work_dir.join(".tenure-worker")).unwrap().count(), 0);
    send(&child, Signal::SIGTERM);
    assert_eq!(end(child).await.0, Some(0));
}

pub fn send(child: &Child, signal: Signal) {
    let pid = i32::try_from(child.id().expect("child was not reaped yet")).unwrap();
    kill(Pid::from_raw(pid), signal).unwrap();
}

pub async fn end(child: Child) -> (Option<i32>, String) {
    let output = tokio::time::timeout(SOON, child.wait_with_output()).await.expect("child ends in time").unwrap();
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

#[tokio::test]
async fn sigterm_gives_back_running_tasks() {
    let queue = Queue::start().await;
    let script = "env > environment; echo $$ > shell; exec sleep 1000";
    let claims = [0, 1].map(|at| claim(TASK_IDS[at], LEASE, &json!({"command": [["sh", "-c", script]]})));
    queue.hand_out(&claims);
    let dir = TempDir::new().unwrap();
    let child = program(&queue.root_url(), &dir.path().join("made/by/it"), "claim").spawn().unwrap();
    let places = [0, 1].map(|at| dir.path().join(format!("made/by/it/{}-0", TASK_IDS[at])));
    let pids = [pid_in(&places[0].join("shell")).await, pid_in(&places[1].join("shell")).await];
    send(&child, Signal::SIGTERM);
    let (code, log) = end(child).await;
    assert_eq!(code, Some(0), "{log}");
    assert_eq!(pids.map(runs), [false, false]);
    let reports = queue.requests("exception");
    assert_eq!(reports.len(), 2);
    assert!(reports.iter().all(|report| report.body == given_back("the worker shuts down")));
    assert!(!log.contains("secret-of"), "a token is in the log: {log}");
    let environment = std::fs::read_to_string(places[0].join("environment")).unwrap();
    assert!(!environment.contains(TOKEN) && !environment.contains("TENURE_"), "{environment}");
}

#[tokio::test]
async fn worker_without_name_is_named_after_its_process() {
    let (queue, dir) = (Queue::start().await, TempDir::new().unwrap());
    let child = Command::new(env!("CARGO_BIN_EXE_tenure-worker"))
        .args(["run", "--client-id", "worker", "--task-queue", "p/w", "--root-url", &queue.root_url(), "--work-dir"])
        .arg(dir.path())
        .env("TASKCLUSTER_ACCESS_TOKEN", TOKEN)
        .env("TASKCLUSTER_CERTIFICATE", "")
        .env_remove("TENURE_WORKER_GROUP")
        .env_remove("TENURE_WORKER_ID")
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let claim = queue.wait_for("p%2Fw", 1).await.remove(0).body;
    assert_eq!(claim["workerGroup"], "default");
    let id = claim["workerId"].as_str().unwrap();
    assert!(id.ends_with(&format!("-{}", child.id().unwrap())), "{id}");
    send(&child, Signal::SIGTERM);
    assert_eq!(end(child).await.0, Some(0));
}

#[tokio::test]
async fn debug_page_shows_status_on_loopback() {
    let queue = Queue::start().await;
    queue.hand_out(&[claim(TASK_IDS[0], LEASE, &shell("exec sleep 1000"))]);
    let dir = TempDir::new().unwrap();
    let mut command = program(&queue.root_url(), dir.path(), "claim");
    let mut child = command.args(["--debug-port", "0"]).spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let url = loop {
        let line = lines.next_line().await.unwrap().expect("log line with the status URL");
        if let Some((_, url)) = line.split_once("the status is at ") {
            break url.trim().to_owned();
        }
    };
    assert!(url.starts_with("http://127.0.0.1:") && url.ends_with("/debug"), "{url}");
    let address = url.trim_start_matches("http://").trim_end_matches("/debug").to_owned();
    let ask = async || {
        let mut socket = TcpStream::connect(&address).await.unwrap();
        let request = format!("GET /debug HTTP/1.1\r\nHost: {address}\r\n\r\n");
        socket.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        socket.read_to_string(&mut answer).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
        serde_json::from_str::<serde_json::Value>(answer.split_once("\r\n\r\n").unwrap().1).unwrap()
    };
    queue.wait_for("p%2Fw", 1).await;
    let mut shown = ask().await;
    while shown["tasks"] == json!([]) {
        shown = ask().await;
    }
    for date in ["/started", "/tasks/0/started"] {
        assert!(shown.pointer_mut(date).unwrap().take().is_string(), "{shown}");
    }
    let task = json!({"taskId": TASK_IDS[0], "runId": shown["tasks"][0]["runId"], "started": null, "state": "running"});
    let expected = json!({"taskQueueId": "p/w", "workerGroup": "g", "workerId": "w", "started": null, "shuttingDown": false,
                          "plane": "claim", "capacity": 2, "tasks": [task]});
    assert_eq!(shown, expected);

    let port = address.rsplit(':').next().unwrap();
    let mut second = program(&queue.root_url(), dir.path(), "claim");
    let (code, log) = end(second.args(["--debug-port", port]).spawn().unwrap()).await;
    assert_eq!((code, log.lines().count()), (Some(2), 1), "{log}");
    assert!(log.contains("--debug-port") && log.contains(port), "{log}");
    send(&child, Signal::SIGTERM);
    assert_eq!(end(child).await.0, Some(0));
}

#[tokio::test]
async fn metrics_count_tasks_by_outcome() {
    let queue = Queue::start().await;
    queue.hand_out(&[claim(TASK_IDS[0], LEASE, &shell("exit 3"))]);
    let dir = TempDir::new().unwrap();
    let mut command = program(&queue.root_url(), dir.path(), "claim");
    let mut child = command.args(["--metrics-listen", "127.0.0.1:0"]).spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let address = loop {
        let line = lines.next_line().await.unwrap().expect("log line with the URL of the metrics");
        if let Some((_, url)) = line.split_once("the metrics are at http://") {
            break url.trim().trim_end_matches("/metrics").to_owned();
        }
    };
    let ask = async |path: &str| {
        let mut socket = TcpStream::connect(&address).await.unwrap();
        socket.write_all(format!("GET {path} HTTP/1.1\r\nHost: {address}\r\n\r\n").as_bytes()).await.unwrap();
        let mut answer = String::new();
        socket.read_to_string(&mut answer).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
        answer.split_once("\r\n\r\n").unwrap().1.to_owned()
    };
    assert_eq!(ask("/livez").await, "ok\n");
    let failed = "tenure_worker_tasks_total{outcome=\"failed\"} 1";
    let mut shown = ask("/metrics").await;
    while !shown.lines().any(|line| line == failed) {
        shown = ask("/metrics").await;
    }
    let worker = "task_queue=\"p/w\",worker_group=\"g\",worker_id=\"w\"";
    for part in
        ["tenure_worker_capacity 2\n", "tenure_worker_failed_calls_total ", "tenure_worker_silence_seconds ", worker]
    {
        assert!(shown.contains(part), "{part} is missing:\n{shown}");
    }
    send(&child, Signal::SIGTERM);
    assert_eq!(end(child).await.0, Some(0));
}

#[tokio::test]
async fn second_signal_ends_worker_at_once() {
    let queue = Queue::start().await;
    let script = "trap '' TERM; echo $$ > shell; while :; do sleep 1; done";
    queue.hand_out(&[claim(TASK_IDS[0], LEASE, &json!({"command": [["sh", "-c", script]]}))]);
    let dir = TempDir::new().unwrap();
    let child = program(&queue.root_url(), dir.path(), "claim").spawn().unwrap();
    let directory = dir.path().join(format!("{}-0", TASK_IDS[0]));
    let pid = pid_in(&directory.join("shell")).await;
    send(&child, Signal::SIGINT);
    // Without a pause the two signals could arrive as one.
    tokio::time::sleep(Duration::from_millis(300)).await;
    let start = std::time::Instant::now();
    send(&child, Signal::SIGINT);
    let (code, log) = end(child).await;
    assert_eq!(code, Some(1), "{log}");
    assert!(start.elapsed() < Duration::from_secs(2));
    // Its end was not awaited.
    until("the task's process to end", || (!runs(pid)).then_some(())).await;
    clear_up(&queue, dir.path()).await;
    assert_eq!(queue.reports().len(), 0);
}

#[tokio::test]
async fn wrong_setting_is_one_line_and_exit_code_2() {
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("file");
    std::fs::write(&file, "").unwrap();
    for (mut command, expected) in [
        (program("localhost", dir.path(), "claim"), "--root-url"),
        (program("http://127.0.0.1:1", &file.join("below"), "claim"), "--work-dir"),
    ] {
        let (code, log) = end(command.spawn().unwrap()).await;
        assert_eq!((code, log.lines().count()), (Some(2), 1), "{log}");
        assert!(log.contains(expected), "{log}");
    }
}

/// Runs the program on these messages until the queues have been polled twice without a message.
/// Returns its log.
async fn log_of(mailbox: &Mailbox, set_up: impl FnOnce(&mut Command)) -> String {
    let dir = TempDir::new().unwrap();
    let mut command = program(&mailbox.queue.root_url(), dir.path(), "poll");
    set_up(command.env("RUST_LOG", "trace"));
    let child = command.spawn().unwrap();
    mailbox.queue.wait_for(QUEUES[6], 2).await;
    send(&child, Signal::SIGTERM);
    let (code, log) = end(child).await;
    assert_eq!(code, Some(0), "{log}");
    log
}

fn warnings<'a>(log: &'a str, about: &str) -> Vec<&'a str> {
    log.lines().filter(|line| line.contains("WARN") && line.contains(about)).collect()
}

#[tokio::test]
async fn message_received_too_often_raises_one_alarm() {
    for (set_to, alarm) in [(None, 10), (Some("3"), 3)] {
        let mailbox = Mailbox::open(shell("true")).await;
        let loud = message(1).id("loud");
        mailbox.post(QUEUES[0], [message(0).id("quiet").count(alarm), loud.clone().count(alarm + 1)]);
        mailbox.post(QUEUES[1], [loud.count(alarm + 2)]);
        mailbox.queue.on("loud", |_| refuse(400));
        let log = log_of(&mailbox, |command| {
            command.args(set_to.map(|count| format!("--dequeue-alarm={count}")));
        })
        .await;
        let alarms = warnings(&log, "dequeue_count");
        assert_eq!(alarms.len(), 1, "{alarms:?}");
        for detail in ["loud", TASK_IDS[1], &(alarm + 1).to_string()] {
            assert!(alarms[0].contains(detail), "{detail}: {}", alarms[0]);
        }
    }
}

#[tokio::test]
async fn failed_deletions_are_logged_without_secrets() {
    let mailbox = Mailbox::open(shell("true")).await;
    mailbox.queue.once("m-0", refuse(503));
    mailbox.post(QUEUES[0], [message(0), message(1).id("unreadable").text("?")]);
    let log = log_of(&mailbox, |_| {}).await;
    assert_eq!(mailbox.queue.requests("m-0").len(), 2);
    let failed = warnings(&log, "could not be deleted; trying again");
    assert_eq!(failed.len(), 1, "{log}");
    assert!(failed[0].contains("m-0") && failed[0].contains("503"), "{}", failed[0]);
    assert!(warnings(&log, "unreadable message is deleted")[0].contains("unreadable"), "{log}");
    for secret in ["a-secret", "A+/b", "A%2B%2Fb", TOKEN, "secret-of"] {
        let leaked = log.lines().find(|line| line.contains(secret));
        assert_eq!(leaked, None, "{secret} is in the log");
    }
}

#[tokio::test]
async fn dequeue_alarm_of_zero_is_refused() {
    let dir = TempDir::new().unwrap();
    for wrong in ["0", "-1", "often"] {
        let mut command = program("http://127.0.0.1:1", dir.path(), "poll");
        let (code, log) = end(command.env("TENURE_DEQUEUE_ALARM", wrong).spawn().unwrap()).await;
        assert_eq!(code, Some(2), "{log}");
        assert!(log.contains("--dequeue-alarm"), "{log}");
    }
}
