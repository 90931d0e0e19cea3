//! Row M17: tasks with a state machine, whose state moves with them from worker to worker.

use std::time::Duration;

use chrono::{DateTime, SecondsFormat, TimeDelta, Utc};
use serde_json::{Value, json};
use tenure_api::ids::SlugId;
use tenure_client::consumer::statemachine::Machine;
use tenure_client::consumer::{Job, Outcome, Stop, StopReason};
use tenure_tests::clock::unix_millis;
use tenure_tests::http::TENURE_API;
use tokio::time::Instant;

use super::{LONG_TTL, Note, Notes, Office, Pen, Running};
use crate::rig::{eventually, ok};

/// The shortest lease of a policy.
const SHORT_LEASE: u64 = 10;
/// Ten times the second within which a session learns of a command.
const HEARD_WITHIN: Duration = Duration::from_secs(10);

fn now() -> DateTime<Utc> {
    DateTime::from_timestamp_millis(unix_millis()).unwrap()
}

impl Office {
    async fn command(&self, task: SlugId, body: Value) {
        ok(self.rig.call("PUT", &format!("{TENURE_API}/tasks/{task}/command"), Some(&body)).await);
    }

    /// Waits until the machine is in this state and all commands are carried out; returns its
    /// checkpoint.
    async fn is(&self, task: SlugId, state: &str) -> Value {
        eventually(&format!("{task} is {state}"), async || {
            let waits = self.rig.call("GET", &format!("{TENURE_API}/tasks/{task}/command"), None).await.status;
            let stored = self.rig.call("GET", &format!("{TENURE_API}/tasks/{task}/checkpoint"), None).await.body;
            let is = stored["checkpoint"]["machine"]["state"]["name"] == state;
            (waits == 404 && is).then(|| stored["checkpoint"].clone())
        })
        .await
    }

    async fn waits(&self, task: SlugId, run: usize) {
        eventually(&format!("run {run} of {task} is pending"), async || {
            let status = self.rig.status(task).await;
            let runs = status["runs"].as_array().unwrap().len();
            (status["state"] == "pending" && runs == run + 1).then_some(())
        })
        .await;
    }

    async fn result(&self, task: SlugId) -> Value {
        self.rig.call("GET", &format!("{TENURE_API}/tasks/{task}/result"), None).await.body["result"].clone()
    }
}

fn date(value: &Value) -> DateTime<Utc> {
    value.as_str().unwrap_or_else(|| panic!("{value} is no date")).parse().unwrap()
}

async fn until_stopped(pen: Pen, job: Job, stop: Stop) -> Outcome {
    pen.note(job.task_id(), Note::Began);
    stop.requested().await;
    pen.note(job.task_id(), Note::Stopped(stop.reason().unwrap()));
    Outcome::Release { after: None }
}

/// Sleeps after its first step, and completes with the checkpoint that it finds then.
async fn two_steps(name: &'static str, job: Job) -> Outcome {
    match job.last_checkpoint::<Value>().await.unwrap() {
        None => {
            job.checkpoint(&json!({"by": name})).await.unwrap();
            Outcome::Release { after: Some(Duration::from_secs(5)) }
        }
        Some(found) => Outcome::completed(json!({"found": found, "by": name})),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn m17_sleeping_task_resumes_on_another_worker_with_state() {
    let office = Office::open().await;
    let machine = |name| Machine::new(move |job: Job, _stop: Stop| two_steps(name, job));
    let first = Running::start(office.consumer("first").handler(machine("first")));
    let task = office.create(&json!({})).await;
    let stored = office.is(task, "sleeping").await;
    assert_eq!(stored["checkpoint"], json!({"by": "first"}), "what the handler stored is beside the state");
    first.shut_down().await;
    let second = Running::start(office.consumer("second").session(LONG_TTL).handler(machine("second")));
    let status = office.becomes(task, "completed").await;
    assert_eq!(office.result(task).await, json!({"found": {"by": "first"}, "by": "second"}));
    let runs = &status["runs"];
    assert_eq!((runs.as_array().unwrap().len(), status["retriesLeft"].as_u64()), (2, Some(5)));
    assert!(date(&runs[1]["started"]) >= date(&stored["machine"]["state"]["until"]) - TimeDelta::seconds(1));
    assert!(date(&runs[1]["started"]) - date(&runs[0]["resolved"]) >= TimeDelta::seconds(1));
    second.shut_down().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn m17_commands_stop_pause_resume_and_kill_task() {
    let office = Office::open().await;
    let (pen, mut notes) = Notes::new();
    let machine = Machine::new(move |job: Job, stop: Stop| until_stopped(pen.clone(), job, stop));
    let worker = Running::start(office.consumer("steered").session(LONG_TTL).handler(machine));
    let task = office.create(&json!({})).await;
    notes.next(task, Note::Began).await;

    let sent = Instant::now();
    office.command(task, json!({"command": "pause"})).await;
    let stopped = notes.next(task, Note::Stopped(StopReason::Command)).await;
    assert!(stopped < sent + HEARD_WITHIN);
    office.is(task, "paused").await;
    office.waits(task, 1).await;
    worker.is_idle().await;
    office.command(task, json!({"command": "complete"})).await;
    let stored = eventually("the error is noted", async || {
        let stored = office.is(task, "paused").await;
        (stored["machine"]["errors"].as_array().unwrap().len() == 1).then_some(stored)
    })
    .await;
    assert_eq!(stored["machine"]["errors"][0]["error"], "a task that is paused cannot take the message `complete`");

    office.command(task, json!({"command": "run"})).await;
    notes.next(task, Note::Began).await;
    office.is(task, "runnable").await;
    // Neither command concerns a working handler.
    for word in ["run", "checkpoint"] {
        office.command(task, json!({"command": word})).await;
        office.is(task, "runnable").await;
    }
    office.command(task, json!({"command": "release"})).await;
    notes.next(task, Note::Stopped(StopReason::Command)).await;
    notes.next(task, Note::Began).await;

    office.command(task, json!({"command": "kill"})).await;
    notes.next(task, Note::Stopped(StopReason::Command)).await;
    let status = office.becomes(task, "failed").await;
    assert_eq!(status["retriesLeft"], 5);
    let left = office.rig.call("GET", &format!("{TENURE_API}/tasks/{task}/result"), None).await.body;
    assert_eq!(left["failure"]["message"], "killed by a command");
    assert_eq!(left["result"]["errors"].as_array().unwrap().len(), 1);
    office.is(task, "killed").await;
    assert_eq!(office.rig.call("POST", &format!("/task/{task}/rerun"), None).await.status, 200);
    notes.next(task, Note::Began).await;
    office.is(task, "runnable").await;
    worker.shut_down().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn m17_staying_machine_sleeps_and_pauses_within_run() {
    let office = Office::open().await;
    let (pen, mut notes) = Notes::new();
    let machine = Machine::new(move |job: Job, stop: Stop| until_stopped(pen.clone(), job, stop)).within_the_run();
    let worker = Running::start(office.consumer("stays").session(LONG_TTL).handler(machine));
    let task = office.create(&json!({})).await;
    notes.next(task, Note::Began).await;
    // Long enough to be observed on a busy machine.
    let until = now() + TimeDelta::seconds(8);
    office
        .command(task, json!({"command": "sleep", "until": until.to_rfc3339_opts(SecondsFormat::Millis, true)}))
        .await;
    notes.next(task, Note::Stopped(StopReason::Command)).await;
    office.is(task, "sleeping").await;
    notes.next(task, Note::Began).await;
    assert!(now() >= until - TimeDelta::seconds(1));

    office.command(task, json!({"command": "pause"})).await;
    notes.next(task, Note::Stopped(StopReason::Command)).await;
    office.is(task, "paused").await;
    office.command(task, json!({"command": "run"})).await;
    notes.next(task, Note::Began).await;
    let status = office.rig.status(task).await;
    assert_eq!((&status["state"], status["runs"].as_array().unwrap().len()), (&json!("running"), 1), "all in one run");

    office.command(task, json!({"command": "pause"})).await;
    notes.next(task, Note::Stopped(StopReason::Command)).await;
    office.is(task, "paused").await;
    office.command(task, json!({"command": "release"})).await;
    office.waits(task, 1).await;
    office.is(task, "paused").await;
    worker.shut_down().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn m17_worker_without_session_reads_earlier_command() {
    let office = Office::open().await;
    let (pen, mut notes) = Notes::new();
    let paused = office.create(&json!({})).await;
    office.command(paused, json!({"command": "pause"})).await;
    let killed = office.create(&json!({})).await;
    office.command(killed, json!({"command": "kill"})).await;
    let machine = Machine::new(move |job: Job, stop: Stop| until_stopped(pen.clone(), job, stop));
    let worker = Running::start(office.consumer("alone").without_session().handler(machine));
    office.becomes(killed, "failed").await;
    office.is(paused, "paused").await;
    office.waits(paused, 1).await;
    office.command(paused, json!({"command": "run"})).await;
    notes.next(paused, Note::Began).await;
    worker.shut_down().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn m17_handler_without_session_polls_for_commands() {
    let office = Office::open().await;
    let (pen, mut notes) = Notes::new();
    let machine = Machine::new(move |job: Job, stop: Stop| until_stopped(pen.clone(), job, stop));
    let worker = Running::start(
        office.consumer("asks").without_session().commands_every(Duration::from_secs(1)).handler(machine),
    );
    let task = office.create(&json!({})).await;
    notes.next(task, Note::Began).await;
    // The first read of commands is over then: only a later read can find this one.
    tokio::time::sleep(Duration::from_millis(1500)).await;
    let sent = Instant::now();
    office.command(task, json!({"command": "pause"})).await;
    let stopped = notes.next(task, Note::Stopped(StopReason::Command)).await;
    assert!(stopped < sent + HEARD_WITHIN, "half of what it would be by default");
    office.is(task, "paused").await;
    office.waits(task, 1).await;
    worker.shut_down().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn m17_a_task_whose_worker_crashed_goes_on_from_its_checkpoint() {
    let office = Office::open().await;
    office.lease(SHORT_LEASE).await;
    let (pen, mut notes) = Notes::new();
    let machine = Machine::new(move |job: Job, _stop: Stop| {
        let pen = pen.clone();
        async move {
            let done: u64 = job.last_checkpoint().await.unwrap().unwrap_or(0);
            if done > 0 {
                return Outcome::completed(done);
            }
            job.checkpoint(&7).await.unwrap();
            pen.note(job.task_id(), Note::Began);
            std::future::pending().await
        }
    });
    let machine = std::sync::Arc::new(machine);
    let start = |name| {
        let machine = std::sync::Arc::clone(&machine);
        Running::start(office.consumer(name).handler(move |job: Job, stop: Stop| {
            let machine = std::sync::Arc::clone(&machine);
            async move { tenure_client::consumer::Handler::run(&*machine, job, stop).await }
        }))
    };
    let first = start("crashes");
    let task = office.create(&json!({})).await;
    notes.next(task, Note::Began).await;
    first.ends.abort();
    let second = start("goes-on");
    let status = office.becomes(task, "completed").await;
    assert_eq!(office.result(task).await, json!(7));
    let runs = status["runs"].as_array().unwrap();
    assert_eq!((runs.len(), &runs[0]["reasonResolved"]), (2, &json!("claim-expired")));
    second.shut_down().await;
}
