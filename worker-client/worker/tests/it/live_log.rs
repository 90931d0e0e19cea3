//! The log of a running task, as the queue receives it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tenure_client::live_log::LAST_PIECE_WITHIN;
use tenure_worker::Settings;

use crate::queue::{Queue, RecordedRequest, Reply, TASK_IDS, claim, ok, refuse, until};
use crate::worker::{LEASE, Running, given_back, shell};

const TASK: &str = TASK_IDS[0];
const APPEND: &str = "/live-log";
const BACKING_LOG: &str = "public/logs/live_backing.log";
const LIVE_LOG: &str = "public/logs/live.log";
const CHUNK_BYTES_MAX: usize = 64 << 10;
/// Ten times the delay that the end of a live log may cause.
const REPORTED_WITHIN: Duration = Duration::from_secs(10);

fn offset(request: &RecordedRequest) -> usize {
    request.query.strip_prefix("offset=").unwrap().parse().unwrap()
}

fn kept(request: &RecordedRequest) -> Reply {
    ok(json!({"next": offset(request) + request.bytes.len(), "kept": true}))
}

/// Prints `last` once the test allows it.
fn waiting(first: &str, last: &str) -> Value {
    shell(&format!("{first}; while ! test -e ../go; do sleep 0.05; done; {last}"))
}

fn go(running: &Running) {
    std::fs::write(running.dir.path().join("work/go"), "").unwrap();
}

/// The log as a reader sees it, with the offsets of gaps.
fn read(queue: &Queue) -> (Vec<u8>, Vec<usize>) {
    let (mut text, mut gaps, mut next) = (Vec::new(), Vec::new(), 0);
    for request in queue.requests(APPEND) {
        assert!(request.bytes.len() <= CHUNK_BYTES_MAX && offset(&request) >= next, "{}", request.query);
        if offset(&request) > next {
            gaps.push(text.len());
        }
        text.extend_from_slice(&request.bytes);
        next = offset(&request) + request.bytes.len();
    }
    (text, gaps)
}

#[tokio::test]
async fn unknown_live_log_call_is_tried_once() {
    for unusable in [refuse(404), refuse(403), refuse(409), refuse(413), ok(json!({}))] {
        let queue = Queue::start().await;
        queue.on(APPEND, move |_| unusable.clone());
        let script = "for i in 1 2 3 4; do echo $i; sleep 0.7; done";
        let running = Running::with_task(queue, LEASE, &shell(script)).await;
        running.queue.wait_for("completed", 1).await;
        assert_eq!(running.queue.requests(APPEND).len(), 1);
        assert_eq!(running.queue.artifacts(TASK), [LIVE_LOG, BACKING_LOG]);
        running.stop().await;
    }
}

#[tokio::test]
async fn disabled_live_logs_pause_sending() {
    let queue = Queue::start().await;
    queue.on(APPEND, |_| ok(json!({"next": 0, "kept": false})));
    let script = "for i in 1 2 3 4; do echo $i; sleep 0.7; done";
    let running = Running::with_task(queue, LEASE, &shell(script)).await;
    running.queue.wait_for("completed", 1).await;
    // The next attempt would follow after a minute.
    assert_eq!(running.queue.requests(APPEND).len(), 1);
    let created = running.queue.requests("live.log");
    let kinds: Vec<_> = created.iter().map(|request| request.body["storageType"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["link"], "artifact refers to a log that is not kept");
    running.stop().await;
}

#[tokio::test]
async fn unanswered_piece_is_resent_without_gap() {
    let queue = Queue::start().await;
    queue.once(APPEND, refuse(503));
    queue.once(APPEND, refuse(429));
    queue.once(APPEND, Reply { cut: true, ..Reply::default() });
    queue.on(APPEND, kept);
    let running = Running::with_task(queue, LEASE, &waiting("echo begun", "echo more")).await;
    let requests = running.queue.wait_for(APPEND, 4).await;
    assert!(requests.iter().all(|request| offset(request) == 0));
    go(&running);
    running.queue.wait_for("completed", 1).await;
    let whole = running.queue.artifact(TASK, BACKING_LOG).text();
    let sent = &running.queue.requests(APPEND)[3..];
    let sent: Vec<u8> = sent.iter().flat_map(|request| request.bytes.to_vec()).collect();
    assert_eq!(String::from_utf8(sent).unwrap(), whole);
    running.stop().await;
}

#[tokio::test]
async fn silent_queue_does_not_delay_report() {
    let hangs = Arc::new(AtomicBool::new(false));
    let (queue, is_hanging) = (Queue::start().await, Arc::clone(&hangs));
    queue.on(APPEND, move |request| {
        let after = Duration::from_secs(if is_hanging.load(Ordering::SeqCst) { 60 } else { 0 });
        Reply { after, ..kept(request) }
    });
    queue.hand_out(&[claim(TASK, LEASE, &waiting("echo begun", "echo more"))]);
    let running =
        Running::with_settings(queue, |settings| Settings { last_piece_within: LAST_PIECE_WITHIN, ..settings });
    running.queue.wait_for(APPEND, 1).await;
    hangs.store(true, Ordering::SeqCst);
    let began = Instant::now();
    go(&running);
    running.queue.wait_for("completed", 1).await;
    assert!(began.elapsed() < REPORTED_WITHIN, "{:?}", began.elapsed());
    assert_eq!(running.queue.artifact(TASK, LIVE_LOG).created["storageType"], "link");
    running.stop().await;
}

#[tokio::test]
async fn worker_without_live_log_uploads_whole_log() {
    let queue = Queue::start().await;
    queue.on(APPEND, kept);
    queue.hand_out(&[claim(TASK, LEASE, &shell("for i in 1 2 3 4; do echo $i; sleep 0.7; done"))]);
    let running = Running::with_settings(queue, |settings| Settings { live_log: false, ..settings });
    running.queue.wait_for("completed", 1).await;
    assert_eq!(running.queue.requests(APPEND).len(), 0);
    let created = running.queue.requests("live.log");
    let kinds: Vec<_> = created.iter().map(|request| request.body["storageType"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["link"], "artifact refers to a log that was not sent");
    assert!(running.queue.artifact(TASK, BACKING_LOG).text().contains("\n3\n4\n"));
    running.stop().await;
}

#[tokio::test]
async fn short_task_has_no_live_log() {
    let queue = Queue::start().await;
    queue.on(APPEND, kept);
    let running = Running::with_task(queue, LEASE, &shell("echo begun")).await;
    running.queue.wait_for("completed", 1).await;
    assert_eq!(running.queue.requests(APPEND).len(), 0);
    running.stop().await;
}

#[tokio::test]
async fn stopped_worker_notes_it_in_live_log() {
    let queue = Queue::start().await;
    queue.on(APPEND, kept);
    let running = Running::with_task(queue, LEASE, &waiting("echo begun", "echo more")).await;
    let queue = running.queue.clone();
    until("it was sent", || read(&queue).0.ends_with(b"begun\n").then_some(())).await;
    running.stop().await;
    let (text, _) = read(&queue);
    let text = String::from_utf8(text).unwrap();
    assert!(text.ends_with("begun\n[tenure-worker] the worker shuts down\n"), "{text}");
    let report = &queue.reports()[0];
    assert_eq!(report.body, given_back("the worker shuts down"));
    assert!(queue.requests(APPEND).iter().all(|append| append.at <= report.at));
}
