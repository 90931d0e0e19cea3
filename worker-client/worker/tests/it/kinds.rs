//! Consumers with a handler for each kind of jobs, and handlers with limits.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use tenure_client::consumer::{ConsumerBuilder, Job, Limited, Stop};
use tokio::sync::Notify;

use crate::consumer::{Running, consumer, queue_with, reported};
use crate::queue::{TASK_IDS, claim, until};
use crate::worker::LEASE;

#[derive(serde::Deserialize)]
struct Image {
    width: u32,
}

fn with_kinds(builder: ConsumerBuilder) -> ConsumerBuilder {
    builder
        .on("greet", |job: Job<String>, _stop: Stop| async move { Ok::<_, String>(format!("hi {}", job.payload())) })
        .on("resize", |job: Job<Image>, _stop: Stop| async move { Ok::<_, String>(job.payload().width / 2) })
        .on("sweep", |job: Job<()>, _stop: Stop| async move {
            assert!(job.task().payload.get().contains("sweep"), "it is the whole payload");
        })
}

async fn result_of(payload: &Value) -> Value {
    let queue = queue_with(&claim(TASK_IDS[0], LEASE, payload)).await;
    let running = Running::start(with_kinds(consumer(&queue)));
    until("it is reported", || (!reported(&queue).is_empty()).then_some(())).await;
    running.stop().await;
    reported(&queue).remove(0)
}

#[tokio::test]
async fn job_reaches_handler_of_its_kind() {
    for (payload, result) in [
        (json!({"kind": "greet", "args": "you"}), json!("hi you")),
        (json!({"kind": "resize", "args": {"width": 8}}), json!(4)),
        (json!({"kind": "sweep"}), json!(null)),
    ] {
        let reported = result_of(&payload).await;
        assert_eq!((&reported["outcome"], &reported["result"]), (&json!("completed"), &result), "{payload}");
    }
}

#[tokio::test]
async fn unknown_kind_or_wrong_arguments_are_malformed() {
    let known = "this worker has \"greet\", \"resize\", \"sweep\"";
    for (payload, message) in [
        (json!({"kind": "resise", "args": {}}), &*format!("unknown kind \"resise\"; {known}")),
        (json!({"args": {"width": 8}}), "missing field `kind`"),
        (json!({"kind": "resize", "args": {"width": "x"}}), "invalid type: string \"x\", expected u32"),
        (json!({"kind": "resize"}), "missing field `width`"),
    ] {
        let reported = result_of(&payload).await;
        assert_eq!(reported["reason"], "malformed-payload", "{reported}");
        let failure = reported["failure"]["message"].as_str().unwrap();
        assert!(failure.starts_with(&format!("malformed payload: {message}")), "{failure}");
    }
}

async fn queue_with_two() -> crate::queue::Queue {
    let claims = [0, 1].map(|at: usize| claim(TASK_IDS[at], LEASE, &json!({})));
    let queue = queue_with(&claims[0]).await;
    queue.once("/work", crate::queue::ok(json!({"results": [], "tasks": [claims[1]]})));
    queue
}

#[tokio::test]
async fn limited_handler_runs_one_job_at_a_time() {
    let queue = queue_with_two().await;
    let (begun, go) = (Arc::new(AtomicUsize::new(0)), Arc::new(Notify::new()));
    let (counter, gate) = (Arc::clone(&begun), Arc::clone(&go));
    let handler = Limited::new(move |_job: Job, _stop: Stop| {
        let (begun, go) = (Arc::clone(&counter), Arc::clone(&gate));
        async move {
            begun.fetch_add(1, Ordering::SeqCst);
            go.notified().await;
        }
    });
    let running = Running::start(consumer(&queue).capacity(3).handler::<Value, _>(handler.concurrency(1)));
    until("both are held", || (running.jobs() == 2).then_some(())).await;
    until("one begins", || (begun.load(Ordering::SeqCst) == 1).then_some(())).await;
    // Only time shows that the other one waits.
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(begun.load(Ordering::SeqCst), 1);
    go.notify_one();
    until("the other begins", || (begun.load(Ordering::SeqCst) == 2).then_some(())).await;
    go.notify_one();
    until("both are reported", || (reported(&queue).len() == 2).then_some(())).await;
    running.stop().await;
}

#[tokio::test]
async fn job_that_waits_for_its_turn_is_released_at_shutdown() {
    let queue = queue_with_two().await;
    let begun = Arc::new(Notify::new());
    let begins = Arc::clone(&begun);
    let handler = Limited::new(move |_job: Job, stop: Stop| {
        let begins = Arc::clone(&begins);
        async move {
            begins.notify_one();
            stop.requested().await;
        }
    });
    let running = Running::start(consumer(&queue).capacity(3).handler::<Value, _>(handler.concurrency(1)));
    begun.notified().await;
    until("both are held", || (running.jobs() == 2).then_some(())).await;
    running.stop().await;
    let mut outcomes: Vec<Value> = reported(&queue).into_iter().map(|mut result| result["outcome"].take()).collect();
    outcomes.sort_by_key(ToString::to_string);
    assert_eq!(outcomes, ["completed", "released"]);
}

#[tokio::test]
async fn late_handler_fails_its_job() {
    let queue = queue_with(&claim(TASK_IDS[0], LEASE, &json!({}))).await;
    let handler = Limited::new(|_job: Job, _stop: Stop| std::future::pending::<()>());
    let handler = handler.timeout(Duration::from_millis(1_500));
    let running = Running::start(consumer(&queue).handler::<Value, _>(handler));
    until("it is reported", || (!reported(&queue).is_empty()).then_some(())).await;
    let failure = json!({"message": "the job took longer than 1.5 s", "kind": "timeout"});
    let expected = json!({"taskId": TASK_IDS[0], "runId": 0, "outcome": "failed", "failure": failure});
    assert_eq!(reported(&queue), [expected]);
    running.stop().await;
}
