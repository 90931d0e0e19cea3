//! Runs lost while their handlers work: by a refusal, by silence, and with the whole session.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tenure_client::Error;
use tenure_client::consumer::{Job, Outcome, Stop, StopReason};
use tenure_tests::http::TENURE_API;
use tokio::sync::Semaphore;

use super::fault_proxy::{Fault, FaultProxy};
use super::logs::{artifacts, link_and_log};
use super::{NOTED_WITHIN, Note, Notes, Office, Pen, Running, TTL};
use crate::rig::{TIMEOUT, eventually, ok};

async fn until_stopped(pen: Pen, job: Job, stop: Stop, outcome: Outcome) -> Outcome {
    let task = job.task_id();
    pen.note(task, Note::Began);
    stop.requested().await;
    pen.note(task, Note::Stopped(stop.reason().unwrap()));
    pen.note(task, Note::Ended);
    outcome
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn m2_refused_renewal_stops_handler_and_further_requests() {
    let office = Office::open().await;
    // A long lease, so that no renewal is repeated after a timeout, renewed early.
    office.lease(60).await;
    let proxy = FaultProxy::to(office.rig.server.root_url()).await;
    let (pen, mut notes) = Notes::new();
    // With a session it would learn of the end before its renewal.
    let builder = office.consumer_by(proxy.url(), "robbed").without_session().heartbeat(0.1);
    let worker = Running::start(builder.handler(move |job: Job, stop: Stop| {
        until_stopped(pen.clone(), job, stop, Outcome::Completed(Some(json!("late"))))
    }));
    let task = office.create(&json!({})).await;
    notes.next(task, Note::Began).await;
    ok(office.rig.call("POST", &format!("/task/{task}/cancel"), None).await);
    notes.next(task, Note::Stopped(StopReason::Lost)).await;
    let path = format!("/task/{task}/");
    let sent = proxy.sent(&path);
    assert_eq!((proxy.sent("/reclaim").len(), sent.len()), (1, 1), "only the refused renewal");
    worker.is_idle().await;
    worker.shut_down().await;
    assert_eq!(proxy.sent(&path), sent, "nothing is reported");
    assert!(proxy.sent("\"results\":[{").is_empty());
    assert_eq!(office.ends(task).await, ["0 task-exception"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn m3_cut_off_worker_stops_handler_before_lease_ends() {
    const GRACE: Duration = Duration::from_secs(5);
    let office = Office::open().await;
    office.lease(15).await;
    let proxy = FaultProxy::to(office.rig.server.root_url()).await;
    let (pen, mut notes) = Notes::new();
    let builder = office.consumer_by(proxy.url(), "silent").without_session().grace(GRACE);
    let worker = Running::start(
        builder.handler(move |job: Job, stop: Stop| until_stopped(pen.clone(), job, stop, Outcome::Completed(None))),
    );
    let task = office.create(&json!({})).await;
    notes.next(task, Note::Began).await;
    proxy.silence();
    let (pen, mut elsewhere) = Notes::new();
    let other = Running::start(office.consumer("other").handler(move |job: Job, _stop: Stop| {
        pen.note(job.task_id(), Note::Began);
        async {}
    }));
    let stopped = notes.next(task, Note::Stopped(StopReason::Lost)).await;
    notes.next(task, Note::Ended).await;
    let began_elsewhere = elsewhere.next(task, Note::Began).await;
    let between = began_elsewhere.saturating_duration_since(stopped);
    assert!(between + NOTED_WITHIN >= GRACE, "only {between:?} before");
    office.becomes(task, "completed").await;
    assert_eq!(worker.handle.status().claims_overrun, 0);
    proxy.mend();
    worker.is_idle().await;
    worker.shut_down().await;
    other.shut_down().await;
    assert_eq!(office.ends(task).await, ["0 task-exception", "1 task-completed"], "the late report changed nothing");
}

/// The session ends long before the lease would, and another worker may start the task then.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn m4_handler_beyond_session_is_counted_within_lease() {
    let office = Office::open().await;
    let proxy = FaultProxy::to(office.rig.server.root_url()).await;
    let (pen, mut notes) = Notes::new();
    let leave = Arc::new(Semaphore::new(0));
    let waiting = Arc::clone(&leave);
    let builder = office.consumer_by(proxy.url(), "deaf").session(TTL).grace(Duration::from_secs(1));
    let worker = Running::start(builder.handler(move |job: Job, _stop: Stop| {
        let (pen, waiting) = (pen.clone(), Arc::clone(&waiting));
        async move {
            pen.note(job.task_id(), Note::Began);
            waiting.acquire().await.unwrap().forget();
            Outcome::Failed(None)
        }
    }));
    let task = office.create(&json!({})).await;
    notes.next(task, Note::Began).await;
    proxy.silence();
    eventually("it is counted", async || (worker.handle.status().claims_overrun == 1).then_some(())).await;
    // Its report may come too late; then the worker gets the next run.
    leave.add_permits(2);
    proxy.mend();
    worker.is_idle().await;
    worker.shut_down().await;
}

/// The session survives because the test renews it, as servers do after their own outage.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn outcome_after_survived_absence_is_reported_with_log() {
    let office = Office::open().await;
    let proxy = FaultProxy::to(office.rig.server.root_url()).await;
    let leave = Arc::new(Semaphore::new(0));
    let waiting = Arc::clone(&leave);
    let builder = office.consumer_by(proxy.url(), "survivor").session(TTL).grace(Duration::from_secs(1));
    let worker = Running::start(builder.handler(move |job: Job, _stop: Stop| {
        let waiting = Arc::clone(&waiting);
        async move {
            waiting.acquire().await.unwrap().forget();
            job.log().line("late");
            Outcome::Completed(None)
        }
    }));
    let task = office.create(&json!({})).await;
    worker.is_at(task, 0).await;
    let session = worker.session().await;
    let renew = format!("{TENURE_API}/sessions/{session}/renew");
    proxy.silence();
    eventually("its time without a renewal is over", async || {
        assert_eq!(office.rig.call("POST", &renew, Some(&json!({}))).await.status, 200);
        (worker.handle.status().claims_overrun == 1).then_some(())
    })
    .await;
    proxy.mend();
    assert_eq!(worker.session().await, session, "it goes on");
    leave.add_permits(1);
    office.completes_in_one_run(task).await;
    assert_eq!(artifacts(&office, task).await, link_and_log());
    worker.shut_down().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn m4_overrunning_handler_is_counted_and_its_report_ignored() {
    let office = Office::open().await;
    office.lease(10).await;
    let proxy = FaultProxy::to(office.rig.server.root_url()).await;
    let (pen, mut notes) = Notes::new();
    let leave = Arc::new(Semaphore::new(0));
    let (noting, waiting) = (pen.clone(), Arc::clone(&leave));
    let builder = office.consumer_by(proxy.url(), "deaf").without_session().grace(Duration::from_secs(1));
    let worker = Running::start(builder.handler(move |job: Job, _stop: Stop| {
        let (pen, waiting) = (noting.clone(), Arc::clone(&waiting));
        async move {
            pen.note(job.task_id(), Note::Began);
            waiting.acquire().await.unwrap().forget();
            pen.note(job.task_id(), Note::Ended);
            Outcome::Failed(None)
        }
    }));
    let task = office.create(&json!({})).await;
    notes.next(task, Note::Began).await;
    proxy.silence();
    let other = Running::start(office.consumer("other").handler(move |job: Job, _stop: Stop| {
        pen.note(job.task_id(), Note::Began);
        async {}
    }));
    notes.next(task, Note::Began).await;
    office.becomes(task, "completed").await;
    proxy.mend();
    eventually("it is counted", async || (worker.handle.status().claims_overrun == 1).then_some(())).await;
    let status = worker.handle.status();
    assert_eq!(status.tasks[0].state, tenure_client::consumer::JobState::Lost);
    leave.add_permits(1);
    notes.next(task, Note::Ended).await;
    worker.is_idle().await;
    assert_eq!(worker.handle.status().claims_overrun, 1);
    worker.shut_down().await;
    other.shut_down().await;
    assert_eq!(office.ends(task).await, ["0 task-exception", "1 task-completed"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn m4_the_slot_of_a_handler_that_never_stops_stays_busy() {
    let office = Office::open().await;
    let (pen, mut notes) = Notes::new();
    let leave = Arc::new(Semaphore::new(0));
    let waiting = Arc::clone(&leave);
    let builder = office.consumer("deaf").capacity(1).grace(Duration::from_secs(1));
    let worker = Running::start(builder.handler(move |job: Job, _stop: Stop| {
        let (pen, waiting) = (pen.clone(), Arc::clone(&waiting));
        async move {
            pen.note(job.task_id(), Note::Began);
            waiting.acquire().await.unwrap().forget();
            pen.note(job.task_id(), Note::Ended);
        }
    }));
    let task = office.create(&json!({})).await;
    notes.next(task, Note::Began).await;
    assert_eq!(office.rig.call("POST", &format!("/task/{task}/cancel"), None).await.status, 200);
    eventually("it is counted", async || (worker.handle.status().claims_overrun == 1).then_some(())).await;
    let second = office.create(&json!({})).await;
    // A worker with a free slot would take it at once; only time shows that this one does not.
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(office.rig.status(second).await["state"], "pending");
    leave.add_permits(2);
    notes.next(task, Note::Ended).await;
    notes.next(second, Note::Began).await;
    office.becomes(second, "completed").await;
    assert_eq!(worker.handle.status().claims_overrun, 1);
    worker.shut_down().await;
    assert_eq!(office.ends(task).await, ["0 task-exception"], "what it returned changed nothing");
}

/// Part of every report, and of no other request.
const REPORT: &str = "\"results\":[{";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unanswered_report_is_repeated_until_lease_ends() {
    let office = Office::open().await;
    let proxy = FaultProxy::to(office.rig.server.root_url()).await;
    let worker = Running::start(office.consumer_by(proxy.url(), "unheard").handler(|_job: Job, _stop: Stop| async {}));
    for fault in [Fault::Unavailable, Fault::Cut] {
        proxy.fault(REPORT, fault);
        let (task, before) = (office.create(&json!({})).await, proxy.sent(REPORT).len());
        eventually("it is repeated", async || (proxy.sent(REPORT).len() > before + 2).then_some(())).await;
        assert_eq!(office.rig.status(task).await["state"], "running", "{fault:?}");
        proxy.mend();
        office.becomes(task, "completed").await;
        assert_eq!(office.ends(task).await, ["0 task-completed"], "{fault:?}");
    }
    office.lease(10).await;
    proxy.fault(REPORT, Fault::Cut);
    let task = office.create(&json!({})).await;
    eventually("the lease ends", async || {
        let status = office.rig.status(task).await;
        (status["runs"][0]["reasonResolved"] == "claim-expired").then_some(())
    })
    .await;
    worker.is_at(task, 1).await;
    let before = proxy.texts(REPORT).len();
    proxy.mend();
    office.becomes(task, "completed").await;
    let later = &proxy.texts(REPORT)[before..];
    assert!(later.iter().all(|report| !report.contains("\"runId\":0")), "{later:?}");
    assert_eq!(office.ends(task).await, ["0 task-exception", "1 task-completed"]);
    worker.shut_down().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn m5_worker_cut_off_for_ttl_stops_all_and_starts_new_session() {
    const TASKS: usize = 4;
    let office = Office::open().await;
    let proxy = FaultProxy::to(office.rig.server.root_url()).await;
    let (pen, mut notes) = Notes::new();
    let builder = office.consumer_by(proxy.url(), "cut-off").capacity(TASKS).session(TTL);
    let worker = Running::start(builder.handler(move |job: Job, stop: Stop| {
        let pen = pen.clone();
        async move {
            if job.payload()["short"] == true {
                return Outcome::Completed(None);
            }
            until_stopped(pen, job, stop, Outcome::Release { after: None }).await
        }
    }));
    let mut tasks = Vec::new();
    for _ in 0..TASKS {
        tasks.push(office.create(&json!({"short": false})).await);
    }
    for _ in 0..TASKS {
        assert_eq!(notes.any().await.1, Note::Began);
    }
    let first_session = worker.session().await;
    proxy.silence();
    let (pen, mut elsewhere) = Notes::new();
    let builder = office.consumer("other").capacity(TASKS).session(TTL);
    let other = Running::start(builder.handler(move |job: Job, _stop: Stop| {
        pen.note(job.task_id(), Note::Began);
        async {}
    }));
    let mut stopped = Vec::new();
    while stopped.len() < TASKS {
        let (task, note, at) = notes.any().await;
        match note {
            Note::Stopped(StopReason::Lost) => stopped.push((task, at)),
            Note::Ended => {}
            Note::Began | Note::Stopped(_) => panic!("{note:?}"),
        }
    }
    assert_eq!(worker.handle.status().session_id, None, "it claims nothing");
    let last_stop = stopped.iter().map(|(_, at)| *at).max().unwrap();
    for _ in 0..TASKS {
        let (task, note, began) = elsewhere.any().await;
        assert!(note == Note::Began && tasks.contains(&task), "{task} {note:?}");
        let between = began.saturating_duration_since(last_stop);
        assert!(between + NOTED_WITHIN >= TTL / 3, "{task} began {between:?} after the last stop");
    }
    for &task in &tasks {
        office.becomes(task, "completed").await;
    }
    other.shut_down().await;
    proxy.mend();
    let again = office.create(&json!({"short": true})).await;
    office.becomes(again, "completed").await;
    assert_ne!(worker.session().await, first_session);
    worker.shut_down().await;
    for task in tasks {
        assert_eq!(office.ends(task).await, ["0 task-exception", "1 task-completed"]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_consumers_of_one_name_the_first_ends() {
    let office = Office::open().await;
    let (pen, mut notes) = Notes::new();
    let start = |pen: Pen| {
        let handler = move |job: Job, stop: Stop| until_stopped(pen.clone(), job, stop, Outcome::Unreported);
        Running::start(office.consumer("twin").handler(handler))
    };
    let first = start(pen);
    let task = office.create(&json!({})).await;
    notes.next(task, Note::Began).await;
    let (pen, mut elsewhere) = Notes::new();
    let second = start(pen);
    notes.next(task, Note::Stopped(StopReason::Lost)).await;
    let ended = tokio::time::timeout(TIMEOUT, first.ends).await.expect("it ends").unwrap();
    assert!(matches!(ended, Err(Error::SessionEnded(_))), "{ended:?}");
    // The lease would have lasted for minutes.
    elsewhere.next(task, Note::Began).await;
    assert!(second.handle.status().session_id.is_some());
    second.shut_down().await;
}
