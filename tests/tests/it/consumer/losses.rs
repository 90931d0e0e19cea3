//! Runs that are lost while their handlers work: by a refusal, by silence, and with the whole session.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tenure_client::Error;
use tenure_client::consumer::{Job, Outcome, Stop, StopReason};
use tenure_tests::http::TENURE_API;
use tokio::sync::Semaphore;

use super::logs::{artifacts, link_and_log};
use super::way::{Fault, Way};
use super::{NOTED_WITHIN, Note, Notes, Office, Pen, Running, TTL};
use crate::rig::{TIMEOUT, eventually, ok};

/// Works until it is asked to stop, and returns this.
async fn until_stopped(pen: Pen, job: Job, stop: Stop, outcome: Outcome) -> Outcome {
    let task = job.task_id();
    pen.note(task, Note::Began);
    stop.requested().await;
    pen.note(task, Note::Stopped(stop.reason().unwrap()));
    pen.note(task, Note::Ended);
    outcome
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn m2_a_refused_renewal_stops_the_handler_and_nothing_more_is_sent_for_the_run() {
    let office = Office::open().await;
    // Long, so that no renewal is repeated for want of an answer, and renewed early.
    office.lease(60).await;
    let way = Way::to(office.rig.server.root_url()).await;
    let (pen, mut notes) = Notes::new();
    // Otherwise it hears of the end before its renewal.
    let builder = office.consumer_by(way.url(), "robbed").without_session().heartbeat(0.1);
    let worker = Running::start(builder.handler(move |job: Job, stop: Stop| {
        until_stopped(pen.clone(), job, stop, Outcome::Completed(Some(json!("late"))))
    }));
    let task = office.create(&json!({})).await;
    notes.next(task, Note::Began).await;
    ok(office.rig.call("POST", &format!("/task/{task}/cancel"), None).await);
    notes.next(task, Note::Stopped(StopReason::Lost)).await;
    let path = format!("/task/{task}/");
    let sent = way.sent(&path);
    assert_eq!((way.sent("/reclaim").len(), sent.len()), (1, 1), "the renewal that was refused, and nothing else");
    worker.is_idle().await;
    worker.shut_down().await;
    assert_eq!(way.sent(&path), sent, "nothing is reported");
    assert!(way.sent("\"results\":[{").is_empty());
    assert_eq!(office.ends(task).await, ["0 task-exception"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn m3_a_worker_that_is_cut_off_stops_its_handler_a_grace_before_another_worker_gets_the_task() {
    const GRACE: Duration = Duration::from_secs(5);
    let office = Office::open().await;
    office.lease(15).await;
    let way = Way::to(office.rig.server.root_url()).await;
    let (pen, mut notes) = Notes::new();
    let builder = office.consumer_by(way.url(), "silent").without_session().grace(GRACE);
    let worker = Running::start(
        builder.handler(move |job: Job, stop: Stop| until_stopped(pen.clone(), job, stop, Outcome::Completed(None))),
    );
    let task = office.create(&json!({})).await;
    notes.next(task, Note::Began).await;
    way.silence();
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
    way.mend();
    worker.is_idle().await;
    worker.shut_down().await;
    other.shut_down().await;
    assert_eq!(
        office.ends(task).await,
        ["0 task-exception", "1 task-completed"],
        "what was reported late changed nothing"
    );
}

/// Its session ends long before its lease would, and another worker may start the task then.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn m4_a_handler_that_goes_on_after_its_session_is_counted_although_its_lease_would_last() {
    let office = Office::open().await;
    let way = Way::to(office.rig.server.root_url()).await;
    let (pen, mut notes) = Notes::new();
    let leave = Arc::new(Semaphore::new(0));
    let waiting = Arc::clone(&leave);
    let builder = office.consumer_by(way.url(), "deaf").session(TTL).grace(Duration::from_secs(1));
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
    way.silence();
    eventually("it is counted", async || (worker.handle.status().claims_overrun == 1).then_some(())).await;
    // Its report may come too late; then the worker is given the next run.
    leave.add_permits(2);
    way.mend();
    worker.is_idle().await;
    worker.shut_down().await;
}

/// Its session survives, because it is renewed for it: as the servers do after an outage of theirs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_handler_returns_after_an_absence_that_its_session_survived_is_reported_with_its_log() {
    let office = Office::open().await;
    let way = Way::to(office.rig.server.root_url()).await;
    let leave = Arc::new(Semaphore::new(0));
    let waiting = Arc::clone(&leave);
    let builder = office.consumer_by(way.url(), "survivor").session(TTL).grace(Duration::from_secs(1));
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
    way.silence();
    eventually("its time without a renewal is over", async || {
        assert_eq!(office.rig.call("POST", &renew, Some(&json!({}))).await.status, 200);
        (worker.handle.status().claims_overrun == 1).then_some(())
    })
    .await;
    way.mend();
    assert_eq!(worker.session().await, session, "it goes on");
    leave.add_permits(1);
    office.completes_in_one_run(task).await;
    assert_eq!(artifacts(&office, task).await, link_and_log());
    worker.shut_down().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn m4_a_handler_that_goes_on_overlaps_and_is_counted_and_its_report_changes_nothing() {
    let office = Office::open().await;
    office.lease(10).await;
    let way = Way::to(office.rig.server.root_url()).await;
    let (pen, mut notes) = Notes::new();
    let leave = Arc::new(Semaphore::new(0));
    let (noting, waiting) = (pen.clone(), Arc::clone(&leave));
    let builder = office.consumer_by(way.url(), "deaf").without_session().grace(Duration::from_secs(1));
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
    way.silence();
    let other = Running::start(office.consumer("other").handler(move |job: Job, _stop: Stop| {
        pen.note(job.task_id(), Note::Began);
        async {}
    }));
    notes.next(task, Note::Began).await;
    office.becomes(task, "completed").await;
    way.mend();
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
    // A worker with room would have it at once; nothing shows that this one does not take it but time.
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

/// What a report has, and no other request.
const REPORT: &str = "\"results\":[{";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_report_without_an_answer_is_repeated_until_there_is_one_and_no_longer_than_the_lease() {
    let office = Office::open().await;
    let way = Way::to(office.rig.server.root_url()).await;
    let worker = Running::start(office.consumer_by(way.url(), "unheard").handler(|_job: Job, _stop: Stop| async {}));
    for fault in [Fault::Unavailable, Fault::Cut] {
        way.fault(REPORT, fault);
        let (task, before) = (office.create(&json!({})).await, way.sent(REPORT).len());
        eventually("it is repeated", async || (way.sent(REPORT).len() > before + 2).then_some(())).await;
        assert_eq!(office.rig.status(task).await["state"], "running", "{fault:?}");
        way.mend();
        office.becomes(task, "completed").await;
        assert_eq!(office.ends(task).await, ["0 task-completed"], "{fault:?}");
    }
    office.lease(10).await;
    way.fault(REPORT, Fault::Cut);
    let task = office.create(&json!({})).await;
    eventually("the lease ends", async || {
        let status = office.rig.status(task).await;
        (status["runs"][0]["reasonResolved"] == "claim-expired").then_some(())
    })
    .await;
    worker.is_at(task, 1).await;
    let before = way.texts(REPORT).len();
    way.mend();
    office.becomes(task, "completed").await;
    let later = &way.texts(REPORT)[before..];
    assert!(later.iter().all(|report| !report.contains("\"runId\":0")), "{later:?}");
    assert_eq!(office.ends(task).await, ["0 task-exception", "1 task-completed"]);
    worker.shut_down().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn m5_a_worker_that_is_cut_off_for_its_ttl_stops_all_claims_nothing_and_comes_back_with_a_new_session() {
    const TASKS: usize = 4;
    let office = Office::open().await;
    let way = Way::to(office.rig.server.root_url()).await;
    let (pen, mut notes) = Notes::new();
    let builder = office.consumer_by(way.url(), "cut-off").capacity(TASKS).session(TTL);
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
    way.silence();
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
    way.mend();
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
    // Its lease would have gone on for minutes.
    elsewhere.next(task, Note::Began).await;
    assert!(second.handle.status().session_id.is_some());
    second.shut_down().await;
}
