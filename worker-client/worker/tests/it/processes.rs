//! Processes of tasks end with their command or their worker, at the latest before the next
//! worker's first claim.

use std::path::Path;
use std::process::Command as StdCommand;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use tempfile::TempDir;
use tenure_worker::Settings;
use tokio::process::Child;

use crate::binary::{bare_program, clear_up, end, send};
use crate::queue::{Queue, TASK_IDS, TOKEN, claim, ok, until};
use crate::worker::{LEASE, Running, is_stopped, pid_in, runs, shell};

/// Leaves an orphan in its own session that ignores TERM.
const DETACH: &str = "(setsid sh -c 'trap \"\" TERM; echo $$ > inner; sleep 1000; sleep 1000' & ); while ! test -s inner; do sleep 0.01; done";

fn worker(queue: &Queue, work_dir: &Path) -> Child {
    bare_program(&queue.root_url(), work_dir).env("TASKCLUSTER_ACCESS_TOKEN", TOKEN).spawn().unwrap()
}

#[tokio::test]
async fn detached_process_ends_with_command() {
    for (script, report) in [(DETACH.to_owned(), "completed"), (format!("{DETACH}; exit 1"), "failed")] {
        let running = Running::with_task(Queue::start().await, LEASE, &shell(&script)).await;
        running.queue.wait_for(report, 1).await;
        assert!(!runs(pid_in(&running.directory().join("inner")).await));
        running.stop().await;
    }
}

/// Reports success at once, but ends much later.
const SLOW_GUARD: &str = r#"#!/bin/sh
read -r spec
echo "{\"started\":$$}" >&0
echo '{"ended":0}' >&0
exec /bin/sleep 9
"#;

#[tokio::test]
async fn command_ended_in_time_succeeds_despite_slow_guard() {
    let (queue, dir) = (Queue::start().await, TempDir::new().unwrap());
    // Written by another process: a program open for writing cannot be executed, and a process just
    // forked by another test may hold it open too.
    let write = "printf %s \"$0\" > guard && chmod +x guard";
    let written = StdCommand::new("/bin/sh").args(["-c", write, SLOW_GUARD]).current_dir(dir.path()).status().unwrap();
    assert!(written.success());
    let program = dir.path().join("guard");
    // A busy machine may take seconds to start the guard.
    let payload = json!({"command": [["true"]], "maxRunTime": 8});
    queue.hand_out(&[claim(TASK_IDS[0], LEASE, &payload)]);
    let running = Running::with_settings(queue, |settings| Settings { program, ..settings });
    running.queue.wait_for("completed", 1).await;
    running.stop().await;
}

#[tokio::test]
async fn max_run_time_and_shutdown_end_process_tree() {
    let script = format!("{DETACH}; trap '' TERM; while :; do sleep 1; done");
    let payload = json!({"command": [["/bin/sh", "-c", script]], "maxRunTime": 1});
    let running = Running::with_task(Queue::start().await, LEASE, &payload).await;
    running.queue.wait_for("failed", 1).await;
    assert!(!runs(pid_in(&running.directory().join("inner")).await));
    running.stop().await;

    let running = Running::with_task(Queue::start().await, LEASE, &shell(&script)).await;
    let inner = pid_in(&running.directory().join("inner")).await;
    running.stop().await;
    assert!(!runs(inner));
}

#[tokio::test]
async fn no_process_outlives_killed_worker() {
    let (queue, dir) = (Queue::start().await, TempDir::new().unwrap());
    let script = format!("{DETACH}; echo $$ > outer; trap '' TERM; while :; do sleep 1; done");
    queue.hand_out(&[claim(TASK_IDS[0], LEASE, &shell(&script))]);
    let mut child = worker(&queue, dir.path());
    let directory = dir.path().join(format!("{}-0", TASK_IDS[0]));
    let pids = [pid_in(&directory.join("outer")).await, pid_in(&directory.join("inner")).await];
    child.kill().await.unwrap();
    until("the task's processes to end", || (pids.map(runs) == [false, false]).then_some(())).await;
    clear_up(&queue, dir.path()).await;
    assert!(!directory.exists());
}

#[tokio::test]
async fn task_that_kills_its_guard_fails_and_leaves_nothing() {
    let (queue, dir) = (Queue::start().await, TempDir::new().unwrap());
    let script = format!("{DETACH}; cp inner ../inner; kill -9 $PPID; sleep 1000");
    queue.hand_out(&[claim(TASK_IDS[0], LEASE, &shell(&script))]);
    queue.hand_out(&[claim(TASK_IDS[1], LEASE, &shell("true"))]);
    let child = worker(&queue, dir.path());
    queue.wait_for("failed", 1).await;
    assert!(!runs(pid_in(&dir.path().join("inner")).await));
    queue.wait_for("completed", 1).await;
    send(&child, Signal::SIGTERM);
    assert_eq!(end(child).await.0, Some(0));
}

fn records(work_dir: &Path) -> Vec<std::path::PathBuf> {
    let Ok(entries) = std::fs::read_dir(work_dir.join(".tenure-worker")) else { return Vec::new() };
    // Beside each is its worker's lock.
    entries.map(|entry| entry.unwrap().path()).filter(|path| path.extension().is_none()).collect()
}

#[tokio::test]
async fn leftover_processes_end_before_first_claim() {
    let (queue, dir) = (Queue::start().await, TempDir::new().unwrap());
    let script = format!("{DETACH}; echo $PPID > guard; echo $$ > outer; sleep 1000");
    queue.hand_out(&[claim(TASK_IDS[0], LEASE, &shell(&script))]);
    let mut child = worker(&queue, dir.path());
    let directory = dir.path().join(format!("{}-0", TASK_IDS[0]));
    let pids = [
        pid_in(&directory.join("inner")).await,
        pid_in(&directory.join("outer")).await,
        pid_in(&directory.join("guard")).await,
    ];
    // While stopped, it does not notice that the worker is gone.
    kill(Pid::from_raw(pids[2]), Signal::SIGSTOP).unwrap();
    until("the guard to stop", || is_stopped(pids[2]).then_some(())).await;
    child.kill().await.unwrap();
    assert_eq!(pids.map(runs), [true; 3]);

    // A record with a reused process number, and the record of a running worker.
    let mut innocent = StdCommand::new("sleep").arg("1000").spawn().unwrap();
    let number = i32::try_from(innocent.id()).unwrap();
    let text = std::fs::read_to_string(&records(dir.path())[0]).unwrap();
    let mut record: Value = serde_json::from_str(&text).unwrap();
    let as_started = |start: u64| json!([{"pid": number, "start": start, "boot": record["worker"]["boot"]}]);
    let (mistaken, right) = (as_started(1), as_started(start_of(number)));
    record["cgroup"] = Value::Null;
    // As written by an earlier release.
    record["locked"] = json!(false);
    record["dir"] = json!({"Unix": dir.path().join("none").into_os_string().into_encoded_bytes()});
    record["processes"] = mistaken;
    std::fs::write(dir.path().join(".tenure-worker/mistaken"), record.to_string()).unwrap();
    let me = i32::try_from(std::process::id()).unwrap();
    record["processes"] = right;
    record["worker"]["pid"] = json!(me);
    record["worker"]["start"] = json!(start_of(me));
    std::fs::write(dir.path().join(".tenure-worker/running"), record.to_string()).unwrap();

    let left_at_first_claim = Arc::new(AtomicBool::new(false));
    let left = Arc::clone(&left_at_first_claim);
    queue.on("p%2Fw", move |_| {
        left.fetch_or(pids.map(runs).contains(&true), Ordering::SeqCst);
        ok(json!({"tasks": []}))
    });
    let child = worker(&queue, dir.path());
    queue.wait_for("p%2Fw", 2).await;
    assert!(!left_at_first_claim.load(Ordering::SeqCst), "worker claimed before cleaning up");
    assert!(!directory.exists());
    assert_eq!(records(dir.path()), [dir.path().join(".tenure-worker/running")]);
    assert!(innocent.try_wait().unwrap().is_none(), "an unrelated process was ended");
    innocent.kill().unwrap();
    innocent.wait().unwrap();
    send(&child, Signal::SIGTERM);
    assert_eq!(end(child).await.0, Some(0));
}

/// In clock ticks since boot.
fn start_of(pid: i32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    stat.rsplit_once(')').unwrap().1.split_ascii_whitespace().nth(19).unwrap().parse().unwrap()
}
