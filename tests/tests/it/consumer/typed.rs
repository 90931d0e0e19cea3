//! Typed jobs from their creation to their result.

use std::time::Duration;

use serde_json::json;
use tenure_client::consumer::{Job, Outcome, Stop};
use tenure_client::{Client, EnqueueError, Error, ResultError, State};

use super::{Office, QUEUE, Running};
use crate::rig::TIMEOUT;

#[derive(serde::Serialize, serde::Deserialize)]
struct Email {
    to: String,
}

async fn send(job: Job<Email>, _stop: Stop) -> Outcome {
    if job.attempt() == 1 {
        return Outcome::retry("the mail server is busy");
    }
    Outcome::completed(format!("sent to {}", job.payload().to))
}

async fn release_twice(job: Job<()>, _stop: Stop) -> Outcome {
    if job.run_id().number() < 2 { Outcome::Release { after: None } } else { Outcome::completed(job.attempt()) }
}

async fn double(job: Job<u32>, _stop: Stop) -> Result<u32, String> {
    job.payload().checked_mul(2).ok_or_else(|| "too large".to_owned())
}

async fn wait(_job: Job<()>, stop: Stop) {
    stop.requested().await;
}

fn client(office: &Office) -> Client {
    Client::builder().root_url(office.rig.server.root_url()).credentials(office.rig.root.clone()).build().unwrap()
}

fn start(office: &Office) -> Running {
    let builder = office.consumer("typed").capacity(100).on("send", send).on("release", release_twice);
    Running::start(builder.on("double", double).on("wait", wait))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn typed_job_is_retried_and_returns_its_result() {
    let office = Office::open().await;
    let worker = start(&office);
    let email = Email { to: "a@example.com".to_owned() };
    let handle = client(&office).queue(QUEUE).enqueue(&email).kind("send").retries(1).await.unwrap();
    let result = tokio::time::timeout(TIMEOUT, handle.result::<String>()).await.expect("it ends");
    assert_eq!(result.unwrap(), "sent to a@example.com");
    let status = handle.status().await.unwrap();
    assert_eq!((status.state, status.runs.len(), status.retries_left), (State::Completed, 2, 0));
    let released = client(&office).queue(QUEUE).enqueue(&()).kind("release").await.unwrap();
    let attempt = tokio::time::timeout(TIMEOUT, released.result::<u32>()).await.expect("it ends");
    assert_eq!(attempt.unwrap(), 1);
    worker.shut_down().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cancelled_or_failed_job_has_no_result() {
    let office = Office::open().await;
    let worker = start(&office);
    let queue = client(&office).queue(QUEUE);
    let waiting = queue.enqueue(&()).kind("wait").await.unwrap();
    worker.is_at(waiting.task_id(), 0).await;
    assert_eq!(waiting.cancel().await.unwrap().state, State::Exception);
    let failed = queue.enqueue(&u32::MAX).kind("double").await.unwrap();
    for (handle, expected, message) in [(&waiting, "canceled", None), (&failed, "failed", Some("too large"))] {
        let ended = tokio::time::timeout(TIMEOUT, handle.result::<u32>()).await.expect("it ends");
        let Err(ResultError::NotCompleted { reason, failure, .. }) = ended else { panic!("{ended:?}") };
        assert_eq!((reason.as_str(), failure.as_ref().map(|why| why.message.as_str())), (expected, message));
    }
    worker.shut_down().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_jobs_are_added_and_their_options_kept() {
    let office = Office::open().await;
    let client = client(&office);
    let queue = client.queue(QUEUE);
    let numbers = client.enqueue_all((0..1_200_u32).map(|number| queue.enqueue(&number).kind("double"))).await.unwrap();
    assert_eq!(numbers.len(), 1_200);
    let hour = Duration::from_secs(3600);
    let later = queue.enqueue(&()).kind("wait").delay(hour).key("k").retry_failed().deadline(2 * hour).await.unwrap();
    let task = office.rig.call("GET", &format!("/task/{}", later.task_id()), None).await.body;
    let options = json!({"delay": 3600, "key": "k", "retryFailed": true});
    assert_eq!((&task["extra"]["tenure"], &task["metadata"]["name"]), (&options, &json!("wait")));
    assert_eq!(task["payload"], json!({"kind": "wait", "args": {}}));
    let worker = start(&office);
    let last = tokio::time::timeout(TIMEOUT, numbers[1_199].result::<u32>()).await.expect("it ends");
    assert_eq!(last.unwrap(), 2_398);
    worker.shut_down().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn job_with_a_key_is_added_once() {
    let office = Office::open().await;
    let queue = client(&office).queue(QUEUE);
    let first = queue.enqueue(&json!({"n": 1})).once("invoice-1").await.unwrap();
    let again = queue.enqueue(&json!({"n": 1})).once("invoice-1").await.unwrap();
    assert_eq!(first.task_id(), again.task_id());
    let other = queue.enqueue(&json!({"n": 2})).once("invoice-1").await.unwrap_err();
    assert!(matches!(other, EnqueueError::Request(Error::Refused { status: 409, .. })), "{other:?}");
}
