//! Handlers whose runs were taken away, and whose results may count.

use std::sync::Arc;

use serde_json::{Value, json};
use tenure_api::ids::SlugId;
use tenure_client::consumer::{Job, JobState, Outcome, Stop, StopReason};
use tenure_tests::http::TENURE_API;
use tokio::sync::Semaphore;

use super::{LEASE, LONG_TTL, Note, Notes, Office, Pen, QUEUE, Running};
use crate::rig::{eventually, ok};

/// Opens a queue whose runs may last for three seconds.
async fn open() -> Office {
    let office = Office::open().await;
    let policy = json!({"claimTimeout": LEASE, "completeTime": 3, "lateResult": "first-wins"});
    ok(office.rig.call("PUT", &format!("{TENURE_API}/queues/{QUEUE}/policy"), Some(&policy)).await);
    office
}

/// The first run waits for a permit or a request to stop, and has this outcome. The next ones
/// complete at once.
async fn slow(pen: Pen, leave: Arc<Semaphore>, job: Job, stop: Stop, outcome: Outcome) -> Outcome {
    if job.run_id().number() > 0 {
        return Outcome::completed("at last");
    }
    pen.note(job.task_id(), Note::Began);
    tokio::select! {
        permit = leave.acquire() => permit.unwrap().forget(),
        () = stop.requested() => pen.note(job.task_id(), Note::Stopped(stop.reason().unwrap())),
    }
    // The next run has the task, so this is not stored.
    job.checkpoint(&"late").await.unwrap();
    pen.note(job.task_id(), Note::Ended);
    outcome
}

fn keeping(office: &Office, pen: Pen, leave: Arc<Semaphore>, outcome: Outcome) -> Running {
    let builder = office.consumer("slow").session(LONG_TTL).keep_late(true);
    Running::start(
        builder.handler(move |job: Job, stop: Stop| slow(pen.clone(), Arc::clone(&leave), job, stop, outcome.clone())),
    )
}

/// Waits until the consumer knows that its run has ended.
async fn until_late(worker: &Running) {
    eventually("the run has ended", async || {
        let jobs = worker.handle.status().tasks;
        jobs.first().is_some_and(|job| job.state == JobState::Lost).then(|| assert_eq!(jobs[0].stop_reason, None))
    })
    .await;
}

fn reasons(status: &Value) -> Vec<&str> {
    let runs = status["runs"].as_array().unwrap().iter();
    runs.map(|run| run["reasonResolved"].as_str().unwrap_or_default()).collect()
}

async fn result(office: &Office, task: SlugId) -> Value {
    ok(office.rig.call("GET", &format!("{TENURE_API}/tasks/{task}/result"), None).await)["result"].clone()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t16_kept_handler_resolves_task_late() {
    let office = open().await;
    let ((pen, mut notes), leave) = (Notes::new(), Arc::new(Semaphore::new(0)));
    let worker = keeping(&office, pen, Arc::clone(&leave), Outcome::completed("in the end"));
    let task = office.create(&json!({})).await;
    notes.next(task, Note::Began).await;
    until_late(&worker).await;
    leave.add_permits(1);
    notes.next(task, Note::Ended).await;
    let status = office.becomes(task, "completed").await;
    assert_eq!(reasons(&status), ["claim-expired", "superseded", "completed"]);
    assert_eq!(result(&office, task).await, "in the end");
    assert_eq!(worker.handle.status().claims_overrun, 0);
    // Its slot is free again.
    leave.add_permits(1);
    let next = office.create(&json!({})).await;
    notes.next(next, Note::Began).await;
    office.completes_in_one_run(next).await;
    worker.shut_down().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t16_late_failure_of_kept_handler_is_not_reported() {
    let office = open().await;
    let ((pen, mut notes), leave) = (Notes::new(), Arc::new(Semaphore::new(0)));
    let worker = keeping(&office, pen, Arc::clone(&leave), Outcome::failed("too slow"));
    let task = office.create(&json!({})).await;
    notes.next(task, Note::Began).await;
    until_late(&worker).await;
    leave.add_permits(1);
    let status = office.becomes(task, "completed").await;
    assert_eq!(reasons(&status), ["claim-expired", "completed"]);
    assert_eq!(result(&office, task).await, "at last");
    worker.shut_down().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t16_handler_of_ended_run_stops_by_default() {
    let office = open().await;
    let ((pen, mut notes), leave) = (Notes::new(), Arc::new(Semaphore::new(0)));
    let builder = office.consumer("slow").session(LONG_TTL);
    let worker = Running::start(builder.handler(move |job: Job, stop: Stop| {
        let (pen, leave) = (pen.clone(), Arc::clone(&leave));
        async move {
            if job.run_id().number() > 0 {
                return Outcome::completed("at last");
            }
            pen.note(job.task_id(), Note::Began);
            tokio::select! {
                permit = leave.acquire() => permit.unwrap().forget(),
                () = stop.requested() => pen.note(job.task_id(), Note::Stopped(stop.reason().unwrap())),
            }
            Outcome::completed("in the end")
        }
    }));
    let task = office.create(&json!({})).await;
    notes.next(task, Note::Began).await;
    notes.next(task, Note::Stopped(StopReason::Lost)).await;
    let status = office.becomes(task, "completed").await;
    assert_eq!(reasons(&status), ["claim-expired", "completed"]);
    worker.shut_down().await;
}
