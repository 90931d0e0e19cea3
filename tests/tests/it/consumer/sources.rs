//! Consumers with their own source, and work that handlers leave for after the report.

use serde_json::json;
use tenure_client::consumer::source::ClaimWork;
use tenure_client::consumer::{ConsumerBuilder, Job, Outcome, Stop, StopReason};
use tenure_client::{Client, WorkerName};
use tokio::sync::mpsc;

use super::outcomes::{Obedient, ended};
use super::{Note, Notes, Office, QUEUE, Running};
use crate::rig::TIMEOUT;

/// A consumer whose source is plain claimWork, which every queue of this kind has.
fn consumer(office: &Office, name: &str) -> ConsumerBuilder {
    let client = Client::builder().root_url(office.rig.server.root_url()).credentials(office.rig.root.clone());
    let me = WorkerName { group: "group".parse().unwrap(), id: name.parse().unwrap() };
    office.consumer(name).source(ClaimWork::new(client.build().unwrap(), QUEUE.parse().unwrap(), me))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn m6_source_limits_outcomes_to_common_ones() {
    let office = Office::open().await;
    let worker = Running::start(consumer(&office, "obedient").capacity(4).handler(Obedient));
    let ends_run = json!("the handler ended the run as malformed-payload");
    for (outcome, state, reason, runs, retries, left) in [
        ("value", "completed", "completed", 1, 5, json!({"sum": 3})),
        ("error", "failed", "failed", 1, 5, json!("no such number")),
        ("malformed-payload", "exception", "malformed-payload", 1, 5, ends_run),
        ("too-large", "exception", "internal-error", 1, 5, json!("the result has 70002 bytes, more than 65536")),
        // Other queues than Tenure do not know releases.
        ("release", "completed", "worker-shutdown", 2, 4, json!("at last")),
    ] {
        let expected = (reason.to_owned(), runs, retries, left);
        assert_eq!(ended(&office, outcome, state).await, expected, "{outcome}");
    }
    worker.shut_down().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deferred_work_follows_report_and_precedes_free_slot() {
    let office = Office::open().await;
    let (begun, mut begins) = mpsc::unbounded_channel();
    let (go, gate) = tokio::sync::watch::channel(false);
    let worker = Running::start(consumer(&office, "tidy").handler(move |job: Job, _stop: Stop| {
        let (begun, mut gate) = (begun.clone(), gate.clone());
        async move {
            job.afterwards(async move {
                begun.send(()).unwrap();
                gate.wait_for(|open| *open).await.unwrap();
            });
            assert!(job.lease().ends() > tokio::time::Instant::now());
            Outcome::Completed(None)
        }
    }));
    let task = office.create(&json!({})).await;
    tokio::time::timeout(TIMEOUT, begins.recv()).await.expect("it is done").unwrap();
    assert_eq!(office.rig.status(task).await["state"], "completed");
    worker.is_at(task, 0).await;
    go.send(true).unwrap();
    worker.is_idle().await;
    worker.shut_down().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handler_hears_in_words_how_its_run_was_lost() {
    for with_source in [false, true] {
        let office = Office::open().await;
        let (pen, mut notes) = Notes::new();
        let (words, mut heard) = mpsc::unbounded_channel();
        let builder = if with_source {
            consumer(&office, "listener").session(super::LONG_TTL)
        } else {
            office.consumer("listener")
        };
        let worker = Running::start(builder.handler(move |job: Job, stop: Stop| {
            let (pen, words) = (pen.clone(), words.clone());
            async move {
                pen.note(job.task_id(), Note::Began);
                stop.lost().await;
                words.send((stop.reason(), stop.how_lost().map(ToString::to_string))).unwrap();
                Outcome::Unreported
            }
        }));
        let task = office.create(&json!({})).await;
        notes.next(task, Note::Began).await;
        office.rig.call("POST", &format!("/task/{task}/cancel"), None).await;
        let (reason, how) = tokio::time::timeout(TIMEOUT, heard.recv()).await.expect("it is told").unwrap();
        let expected = (Some(StopReason::Canceled), Some("the task was cancelled".to_owned()));
        assert_eq!((reason, how), expected, "with a source: {with_source}");
        worker.is_idle().await;
        worker.shut_down().await;
        assert_eq!(office.ends(task).await, ["0 task-exception"]);
    }
}
