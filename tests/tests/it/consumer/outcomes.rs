//! Effect of handlers' outcomes on their tasks.

use std::time::Duration;

use chrono::{DateTime, Utc};
use serde_json::{Value, json};
use tenure_client::ExceptionReason;
use tenure_client::consumer::{Handler, Job, OnPanic, Outcome, Stop};
use tenure_tests::http::TENURE_API;
use tokio::sync::mpsc;

use super::{Office, QUEUE, Running};
use crate::rig::{TIMEOUT, ok};

#[derive(serde::Deserialize)]
pub(super) struct Order {
    outcome: String,
}

/// Returns the ordered outcome the first time, and then completes.
pub(super) struct Obedient;

impl Handler<Order> for Obedient {
    async fn run(&self, job: Job<Order>, _stop: Stop) -> Outcome {
        if job.run_id().number() > 0 {
            return Outcome::completed("at last");
        }
        match job.payload().outcome.as_str() {
            "value" => Outcome::of(Ok::<_, String>(json!({"sum": 3}))),
            "error" => Outcome::of(Err::<(), _>("no such number")),
            "for-good" => Outcome::FailedForGood(None).because("no such mailbox"),
            "release" => Outcome::Release { after: None },
            "retry" => Outcome::Retry { after: Some(Duration::from_secs(1)) },
            "panic" => panic!("on purpose"),
            "too-large" => Outcome::completed("a".repeat(70_000)),
            "malformed-payload" => Outcome::Exception(ExceptionReason::MalformedPayload),
            "resource-unavailable" => Outcome::Exception(ExceptionReason::ResourceUnavailable),
            "internal-error" => Outcome::Exception(ExceptionReason::InternalError),
            "worker-shutdown" => Outcome::Exception(ExceptionReason::WorkerShutdown),
            other => panic!("{other} is no outcome"),
        }
    }
}

/// Reason of the first run, number of runs, retries left, and the failure's message or else the
/// result, of a task with this ordered outcome.
pub(super) async fn ended(office: &Office, outcome: &str, state: &str) -> (String, usize, u64, Value) {
    let task = office.create(&json!({"outcome": outcome})).await;
    let status = office.becomes(task, state).await;
    let runs = status["runs"].as_array().unwrap();
    let reason = runs[0]["reasonResolved"].as_str().unwrap().to_owned();
    let left = office.rig.call("GET", &format!("{TENURE_API}/tasks/{task}/result"), None).await;
    assert_eq!(left.status, 200, "{outcome}");
    let failure = &left.body["failure"]["message"];
    let left = if failure.is_null() { left.body["result"].clone() } else { failure.clone() };
    (reason, runs.len(), status["retriesLeft"].as_u64().unwrap(), left)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn m6_each_outcome_is_reported_as_what_it_is() {
    let office = Office::open().await;
    let worker = Running::start(office.consumer("obedient").capacity(4).handler(Obedient));
    let ends_run = json!("the handler ended the run as resource-unavailable");
    for (outcome, state, reason, runs, retries, left) in [
        ("value", "completed", "completed", 1, 5, json!({"sum": 3})),
        ("error", "failed", "failed", 1, 5, json!("no such number")),
        ("resource-unavailable", "exception", "resource-unavailable", 1, 5, ends_run),
        ("release", "completed", "worker-shutdown", 2, 5, json!("at last")),
        ("worker-shutdown", "completed", "worker-shutdown", 2, 4, json!("at last")),
        ("too-large", "exception", "internal-error", 1, 5, json!("the result has 70002 bytes, more than 65536")),
    ] {
        let expected = (reason.to_owned(), runs, retries, left);
        assert_eq!(ended(&office, outcome, state).await, expected, "{outcome}");
    }
    worker.shut_down().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failed_run_is_retried_unless_it_failed_for_good() {
    let office = Office::open().await;
    let policy = json!({"retryFailed": true});
    ok(office.rig.call("PUT", &format!("{TENURE_API}/queues/{QUEUE}/policy"), Some(&policy)).await);
    let worker = Running::start(office.consumer("obedient").handler(Obedient));
    let expected = ("failed".to_owned(), 2, 4, json!("at last"));
    assert_eq!(ended(&office, "error", "completed").await, expected);
    let expected = ("failed".to_owned(), 1, 5, json!("no such mailbox"));
    assert_eq!(ended(&office, "for-good", "failed").await, expected);
    worker.shut_down().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn m6_a_retry_comes_back_after_its_delay_and_uses_a_retry() {
    let office = Office::open().await;
    let worker = Running::start(office.consumer("obedient").handler(Obedient));
    let task = office.create(&json!({"outcome": "retry"})).await;
    let status = office.becomes(task, "completed").await;
    let date = |value: &Value| value.as_str().unwrap().parse::<DateTime<Utc>>().unwrap();
    let (first, second) = (&status["runs"][0], &status["runs"][1]);
    assert_eq!(
        (first["reasonResolved"].as_str(), status["retriesLeft"].as_u64()),
        (Some("intermittent-task"), Some(4))
    );
    let between = date(&second["started"]) - date(&first["resolved"]);
    assert!(between >= chrono::TimeDelta::seconds(1), "{between}");
    worker.shut_down().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn m6_panic_follows_policy_and_consumer_continues() {
    let office = Office::open().await;
    let panicked = "the handler panicked: on purpose";
    for (on_panic, state, reason, runs, retries, left) in [
        (None, "exception", "internal-error", 1, 5, panicked),
        (Some(OnPanic::Fail), "failed", "failed", 1, 5, panicked),
        (Some(OnPanic::Exception), "exception", "internal-error", 1, 5, panicked),
        (Some(OnPanic::Retry), "completed", "intermittent-task", 2, 4, "at last"),
    ] {
        let consumer = office.consumer("panics");
        let consumer = if let Some(on_panic) = on_panic { consumer.on_panic(on_panic) } else { consumer };
        let worker = Running::start(consumer.handler(Obedient));
        let expected = (reason.to_owned(), runs, retries, json!(left));
        assert_eq!(ended(&office, "panic", state).await, expected, "{on_panic:?}");
        let after = ended(&office, "value", "completed").await;
        assert_eq!(after.0, "completed", "{on_panic:?}");
        worker.shut_down().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn q15_the_reason_follows_from_whether_the_handler_was_started() {
    let office = Office::open().await;
    let worker = Running::start(office.consumer("obedient").handler(Obedient));
    // The handler panics at unknown orders, so it was not started for the first three.
    for (payload, state, reason) in [
        (json!({}), "exception", "malformed-payload"),
        (json!({"outcome": 3}), "exception", "malformed-payload"),
        (json!({"outcome": null}), "exception", "malformed-payload"),
        (json!({"outcome": "another"}), "exception", "internal-error"),
        (json!({"outcome": "error"}), "failed", "failed"),
        (json!({"outcome": "malformed-payload"}), "exception", "malformed-payload"),
        (json!({"outcome": "resource-unavailable"}), "exception", "resource-unavailable"),
        (json!({"outcome": "internal-error"}), "exception", "internal-error"),
    ] {
        let task = office.create(&payload).await;
        let status = office.becomes(task, state).await;
        assert_eq!(status["runs"][0]["reasonResolved"], reason, "{payload}");
    }
    worker.shut_down().await;
}

/// A stop by shutdown: the handler's outcome is reported, here a release.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn q15_a_shutdown_is_worker_shutdown_and_costs_no_retry() {
    let office = Office::open().await;
    let (began, mut begins) = mpsc::unbounded_channel();
    let worker = Running::start(office.consumer("leaving").handler(move |_job: Job, stop: Stop| {
        began.send(()).unwrap();
        async move {
            stop.requested().await;
            Outcome::Release { after: None }
        }
    }));
    let task = office.create(&json!({})).await;
    tokio::time::timeout(TIMEOUT, begins.recv()).await.unwrap();
    worker.shut_down().await;
    let status = office.rig.status(task).await;
    assert_eq!((&status["state"], &status["retriesLeft"]), (&json!("pending"), &json!(5)), "{status}");
    assert_eq!(status["runs"][0]["reasonResolved"], "worker-shutdown");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn q16_any_json_object_reaches_the_handler_as_it_was_sent() {
    let office = Office::open().await;
    let (seen, mut payloads) = mpsc::unbounded_channel();
    let worker = Running::start(office.consumer("reader").handler(move |job: Job, _stop: Stop| {
        seen.send(job.into_payload()).unwrap();
        async {}
    }));
    let texts = [
        "{}",
        r#"{"":""}"#,
        r#"{"nul":"a\u0000b","bell":"\u0007","high":"\ud83d\ude00","line":"\u2028"}"#,
        r#"{"deep":[[[[[{"a":[null,true,false]}]]]]]}"#,
        r#"{"large":123456789012345678901234567890,"small":-0.000000000000000000001,"one":1.0,"e":1e400}"#,
        r#"{"$serde":{"x":1},"__proto__":{},"a.b":{"c/d":"~"}}"#,
    ];
    for text in texts {
        let payload: Value = serde_json::from_str(text).unwrap();
        office.create(&payload).await;
        let reached = tokio::time::timeout(TIMEOUT, payloads.recv()).await.unwrap().unwrap();
        assert_eq!(reached, payload);
        assert_eq!(reached.to_string(), payload.to_string(), "numbers and characters too");
    }
    worker.shut_down().await;
}
