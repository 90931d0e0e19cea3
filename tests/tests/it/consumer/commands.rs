//! Requests to a consumer from outside: stops, commands, shutdown and status.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tenure_client::consumer::{Job, JobState, Outcome, Stop, StopReason};
use tenure_tests::http::TENURE_API;
use tenure_tests::server::Launch;
use tokio::sync::Semaphore;
use tokio::time::Instant;

use super::{LONG_TTL, Note, Notes, Office, Pen, Running};
use crate::fleet::without_notifications;
use crate::rig::{Raw, TIMEOUT, call, client_of, eventually, ok};

async fn held(pen: Pen, leave: Arc<Semaphore>, job: Job, stop: Stop) -> Outcome {
    let task = job.task_id();
    pen.note(task, Note::Began);
    let asked = async {
        stop.requested().await;
        pen.note(task, Note::Stopped(stop.reason().unwrap()));
        std::future::pending::<()>().await;
    };
    tokio::select! {
        () = asked => {}
        permit = leave.acquire() => permit.unwrap().forget(),
    }
    pen.note(task, Note::Ended);
    Outcome::completed("done all the same")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn m7_shutdown_waits_for_handler_that_ignores_stops() {
    let office = Office::open().await;
    let (pen, mut notes) = Notes::new();
    let leave = Arc::new(Semaphore::new(0));
    let waiting = Arc::clone(&leave);
    let builder = office.consumer("stubborn").capacity(2).session(LONG_TTL);
    let worker =
        Running::start(builder.handler(move |job: Job, stop: Stop| held(pen.clone(), Arc::clone(&waiting), job, stop)));
    let task = office.create(&json!({})).await;
    notes.next(task, Note::Began).await;
    let session = worker.session().await;
    for _ in 0..3 {
        assert!(worker.handle.stop_task(task));
    }
    notes.next(task, Note::Stopped(StopReason::Command)).await;
    let second = office.create(&json!({})).await;
    notes.next(second, Note::Began).await;

    let handle = worker.handle.clone();
    let shutdown = tokio::spawn(async move { handle.shutdown().await });
    notes.next(second, Note::Stopped(StopReason::Shutdown)).await;
    assert!(worker.handle.status().shutting_down);
    let read = async || office.rig.call("GET", &format!("{TENURE_API}/sessions/{session}"), None).await.body;
    assert!(!shutdown.is_finished() && read().await.get("ended").is_none());
    leave.add_permits(1);
    assert_eq!(notes.any().await.1, Note::Ended);
    assert!(!shutdown.is_finished() && read().await.get("ended").is_none(), "it waits for all");
    leave.add_permits(1);
    tokio::time::timeout(TIMEOUT, shutdown).await.unwrap().unwrap();
    worker.ends.await.unwrap().unwrap();
    assert_eq!(read().await["endedBy"], "closed");
    for task in [task, second] {
        assert_eq!(office.ends(task).await, ["0 task-completed"]);
    }
}

async fn command(office: &Office, session: &str, body: &Value) -> u16 {
    office.rig.call("POST", &format!("{TENURE_API}/sessions/{session}/commands"), Some(body)).await.status
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn m13_commands_work_while_frozen_and_end_with_session() {
    let office = Office::open().await;
    let (pen, mut notes) = Notes::new();
    let leave = Arc::new(Semaphore::new(0));
    let start = |pen: Pen| {
        let waiting = Arc::clone(&leave);
        let builder = office.consumer("commanded").capacity(3).session(LONG_TTL);
        Running::start(builder.handler(move |job: Job, stop: Stop| held(pen.clone(), Arc::clone(&waiting), job, stop)))
    };
    let worker = start(pen.clone());
    let session = worker.session().await;
    let first = office.create(&json!({})).await;
    notes.next(first, Note::Began).await;

    assert_eq!(command(&office, &session, &json!({"command": "freeze"})).await, 202);
    eventually("it is frozen", async || worker.handle.status().frozen.then_some(())).await;
    let session_path = format!("{TENURE_API}/sessions/{session}");
    let shown = async || office.rig.call("GET", &session_path, None).await.body["frozen"].clone();
    eventually("the server shows it", async || (shown().await == true).then_some(())).await;
    let second = office.create(&json!({})).await;
    assert_eq!(command(&office, &session, &json!({"command": "stop-task", "taskId": first})).await, 202);
    assert_eq!(command(&office, &session, &json!({"command": "stop-task", "taskId": second})).await, 202);
    assert_eq!(command(&office, &session, &json!({"command": "balance"})).await, 202);
    notes.next(first, Note::Stopped(StopReason::Command)).await;
    leave.add_permits(1);
    notes.next(first, Note::Ended).await;
    worker.is_idle().await;
    assert!(worker.handle.status().tasks.is_empty(), "a frozen consumer starts nothing");

    assert_eq!(command(&office, &session, &json!({"command": "unfreeze"})).await, 202);
    notes.next(second, Note::Began).await;
    eventually("the server shows it", async || (shown().await == false).then_some(())).await;

    // Frozen again and shut down: the state does not outlive the consumer, and commands do not
    // outlive the session.
    assert_eq!(command(&office, &session, &json!({"command": "freeze"})).await, 202);
    assert_eq!(command(&office, &session, &json!({"command": "shutdown"})).await, 202);
    notes.next(second, Note::Stopped(StopReason::Shutdown)).await;
    leave.add_permits(1);
    notes.next(second, Note::Ended).await;
    tokio::time::timeout(TIMEOUT, worker.ends).await.unwrap().unwrap().unwrap();
    assert_eq!(command(&office, &session, &json!({"command": "freeze"})).await, 404);
    let worker = start(pen);
    let third = office.create(&json!({})).await;
    notes.next(third, Note::Began).await;
    assert!(!worker.handle.status().frozen);
    leave.add_permits(1);
    worker.shut_down().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancelled_task_stops_its_handler_at_once() {
    let office = Office::open().await;
    let (pen, mut notes) = Notes::new();
    let leave = Arc::new(Semaphore::new(0));
    let waiting = Arc::clone(&leave);
    let builder = office.consumer("notified");
    let worker =
        Running::start(builder.handler(move |job: Job, stop: Stop| held(pen.clone(), Arc::clone(&waiting), job, stop)));
    let task = office.create(&json!({})).await;
    notes.next(task, Note::Began).await;
    let asked = Instant::now();
    ok(office.rig.call("POST", &format!("/task/{task}/cancel"), None).await);
    let stopped = notes.next(task, Note::Stopped(StopReason::Canceled)).await;
    // Ten times the promised time. The inbox waits for 25 s, and no renewal of the lease happens
    // meanwhile.
    assert!(stopped - asked < Duration::from_secs(10), "not by a notification: {:?}", stopped - asked);
    assert_eq!(worker.handle.status().tasks[0].state, JobState::Lost);
    leave.add_permits(1);
    worker.shut_down().await;
    assert_eq!(office.ends(task).await, ["0 task-exception"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cancelled_task_stops_handler_without_notification() {
    let office = Office::open_with(without_notifications).await;
    let launch = without_notifications(Launch::on_database(office.rig.database.url(), &office.rig.secret_key));
    let second = launch.start(office.rig.folder.path(), "second").await;
    let (pen, mut notes) = Notes::new();
    let leave = Arc::new(Semaphore::new(0));
    let waiting = Arc::clone(&leave);
    let handler = move |job: Job, stop: Stop| held(pen.clone(), Arc::clone(&waiting), job, stop);
    let worker = Running::start(office.consumer("attended").handler(handler));
    for server in [&office.rig.server, &second] {
        let task = office.create(&json!({})).await;
        notes.next(task, Note::Began).await;
        let asked = Instant::now();
        let path = format!("/task/{task}/cancel");
        ok(call(&mut client_of(server), &office.rig.root, "POST", &path, None).await);
        let stopped = notes.next(task, Note::Stopped(StopReason::Canceled)).await;
        assert!(stopped - asked < Duration::from_secs(10), "{:?}", stopped - asked);
        leave.add_permits(1);
        notes.next(task, Note::Ended).await;
    }
    worker.shut_down().await;
    second.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn m16_the_status_says_what_a_consumer_is_doing() {
    let office = Office::open().await;
    let (pen, mut notes) = Notes::new();
    let leave = Arc::new(Semaphore::new(0));
    let waiting = Arc::clone(&leave);
    let builder = office.consumer("shown").without_session().capacity(3);
    let worker =
        Running::start(builder.handler(move |job: Job, stop: Stop| held(pen.clone(), Arc::clone(&waiting), job, stop)));
    let (first, second) = (office.create(&json!({})).await, office.create(&json!({})).await);
    for _ in 0..2 {
        assert_eq!(notes.any().await.1, Note::Began);
    }
    worker.handle.freeze();
    worker.handle.stop_task(second);
    notes.next(second, Note::Stopped(StopReason::Command)).await;
    let mut shown = serde_json::to_value(worker.handle.status()).unwrap();
    for date in ["/started", "/tasks/0/started", "/tasks/1/started"] {
        let date = shown.pointer_mut(date).unwrap();
        assert!(date.take().as_str().is_some_and(|date| date.ends_with('Z')));
    }
    let of = |task| shown["tasks"].as_array().unwrap().iter().position(|shown| shown["taskId"] == format!("{task}"));
    let (first_at, second_at) = (of(first).unwrap(), of(second).unwrap());
    let stopped = shown["tasks"][second_at]["stopped"].take();
    assert!(stopped.is_string(), "{stopped}");
    assert_eq!(
        shown["tasks"][first_at],
        json!({"taskId": first, "runId": "0".parse::<tenure_client::RunId>().unwrap(), "started": null, "stopped": null,
            "stopReason": null, "state": "running"})
    );
    assert_eq!(
        (&shown["tasks"][second_at]["state"], &shown["tasks"][second_at]["stopReason"]),
        (&json!("stopping"), &json!("command"))
    );
    shown["tasks"].take();
    assert_eq!(
        shown,
        json!({"taskQueueId": super::QUEUE, "workerGroup": "group", "workerId": "shown", "started": null, "frozen": true,
            "shuttingDown": false, "sessionId": null, "capacity": 3, "claimsOverrun": 0, "tasks": null})
    );
    leave.add_permits(2);
    worker.shut_down().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn m16_get_debug_returns_status_while_consumer_runs() {
    let office = Office::open().await;
    let (pen, mut notes) = Notes::new();
    let leave = Arc::new(Semaphore::new(0));
    let waiting = Arc::clone(&leave);
    let builder = office.consumer("shown").debug_port(0);
    let worker =
        Running::start(builder.handler(move |job: Job, stop: Stop| held(pen.clone(), Arc::clone(&waiting), job, stop)));
    let task = office.create(&json!({})).await;
    notes.next(task, Note::Began).await;
    let address = worker.handle.debug_address().unwrap();
    assert!(address.ip().is_loopback() && address.port() > 0, "{address}");
    let url = format!("http://{address}");
    let ask = async |method, path| Raw::new(method, path).send(&url).await;
    let shown = ask("GET", "/debug").await;
    assert_eq!((shown.status, shown.header("content-type")), (200, Some("application/json")));
    assert_eq!(shown.json(), serde_json::to_value(worker.handle.status()).unwrap());
    assert_eq!(shown.json()["tasks"][0]["taskId"], json!(task));
    assert_eq!((ask("GET", "/").await.status, ask("POST", "/debug").await.status), (404, 405));
    let second = office.consumer("second").debug_port(address.port()).handler(|_job: Job, _stop: Stop| async {});
    let refusal = second.build().unwrap().run().await.unwrap_err().to_string();
    assert!(refusal.contains(&format!("debug port {}", address.port())), "{refusal}");
    leave.add_permits(1);
    worker.shut_down().await;
    assert!(tokio::net::TcpStream::connect(address).await.is_err(), "it has ended with the consumer");
}
