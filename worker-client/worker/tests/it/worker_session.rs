//! A worker with a session: its inbox and its end.

use std::time::Duration;

use serde_json::json;
use tempfile::TempDir;
use tenure_worker::{Plane, Settings};

use crate::binary::{bare_program, end};
use crate::queue::{Queue, SESSION, TASK_IDS, TOKEN, claim, refuse, run_ended, session_ended, session_started, until};
use crate::worker::{LEASE, Running, given_back, pid_in, runs, shell};

/// Prints that it was asked to end, like its whole group.
const OBEDIENT: &str =
    "echo begun; trap 'echo asked; echo asked > asked; exit 0' TERM; echo $$ > pid; while :; do sleep 0.05; done";

async fn queue_with_sessions() -> Queue {
    let queue = Queue::start().await;
    queue.has_sessions();
    queue
}

async fn ended(queue: Queue, script: &str, reason: &'static str) -> (Running, i32) {
    let running = Running::with_task(queue, LEASE, &shell(script)).await;
    let pid = pid_in(&running.directory().join("pid")).await;
    assert!(runs(pid));
    running.queue.on("/inbox", move |_| run_ended(TASK_IDS[0], reason));
    (running, pid)
}

#[tokio::test]
async fn worker_has_a_session_by_default() {
    let queue = queue_with_sessions().await;
    let running = Running::with_task(queue, LEASE, &shell("true")).await;
    running.queue.wait_for("completed", 1).await;
    let start = &running.queue.requests("/sessions")[0];
    assert_eq!((start.call.as_str(), start.signed_by.as_str()), ("POST /api/tenure/v1/sessions", "worker"));
    assert_eq!((&start.body["ttl"], &start.body["takeover"]), (&json!(120), &json!(true)));
    assert_eq!(running.queue.requests("p%2Fw")[0].body["sessionId"], SESSION);
    let queue = running.queue.clone();
    running.stop().await;
    assert_eq!(queue.requests(SESSION).len(), 1, "session is closed");
}

#[tokio::test]
async fn worker_works_without_sessions_of_server() {
    let running = Running::with_task(Queue::start().await, LEASE, &shell("true")).await;
    running.queue.wait_for("completed", 1).await;
    running.queue.wait_for("p%2Fw", 2).await;
    assert_eq!(running.queue.requests("/sessions").len(), 1);
    assert!(running.queue.requests("p%2Fw").iter().all(|request| request.body["sessionId"].is_null()));
    running.stop().await;
}

#[tokio::test]
async fn worker_without_session_starts_none() {
    let queue = queue_with_sessions().await;
    let running = Running::with_settings(queue, |settings| Settings { session: None, ..settings });
    running.queue.wait_for("p%2Fw", 1).await;
    assert!(running.queue.requests("/sessions").is_empty());
    running.stop().await;
    let polling = Running::start_on(Plane::Poll, queue_with_sessions().await, 1);
    until("it asks for URLs", || (!polling.queue.requests("").is_empty()).then_some(())).await;
    assert!(polling.queue.requests("/sessions").is_empty());
    polling.stop().await;
}

#[tokio::test]
async fn refused_log_stays_local() {
    let queue = queue_with_sessions().await;
    queue.on("live_backing.log", |_| refuse(401));
    let (running, _pid) = ended(queue, OBEDIENT, "canceled").await;
    running.queue.wait_for("p%2Fw", 2).await;
    assert!(running.log().contains("the task was cancelled"), "{}", running.log());
    assert_eq!(running.queue.reports().len(), 0);
    running.stop().await;
}

#[tokio::test]
async fn unrenewable_session_gives_task_back() {
    let queue = queue_with_sessions().await;
    queue.on("/sessions", |_| session_started(Duration::from_secs(4)));
    let running = Running::with_task(queue, LEASE, &shell(OBEDIENT)).await;
    let pid = pid_in(&running.directory().join("pid")).await;
    running.queue.on("/inbox", |_| refuse(503));
    let reports = running.queue.wait_for("exception", 1).await;
    assert_eq!(reports[0].body, given_back("the session of the worker could not be renewed in time"));
    assert!(!runs(pid));
    assert!(running.log().contains("could not be renewed in time"), "{}", running.log());
    assert_eq!(running.queue.requests("p%2Fw").len(), 1, "calls for work without a session");
    running.stop().await;
}

#[tokio::test]
async fn taken_over_worker_has_own_exit_code() {
    let queue = queue_with_sessions().await;
    queue.hand_out(&[claim(TASK_IDS[0], LEASE, &shell(OBEDIENT))]);
    let dir = TempDir::new().unwrap();
    let mut program = bare_program(&queue.root_url(), dir.path());
    let child = program.env("TASKCLUSTER_ACCESS_TOKEN", TOKEN).arg("--keep").spawn().unwrap();
    let pid = pid_in(&dir.path().join(format!("{}-0", TASK_IDS[0])).join("pid")).await;
    queue.on("/inbox", |_| session_ended("takeover"));
    let (code, log) = end(child).await;
    assert_eq!(code, Some(3), "{log}");
    assert!(log.contains("another process with the name g/w") && log.contains("--worker-id"), "{log}");
    assert!(!runs(pid));
    assert_eq!((queue.requests("/sessions").len(), queue.reports().len()), (1, 0), "name was taken back");
}
