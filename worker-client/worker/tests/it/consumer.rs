//! The consumer of the client library against the scripted queue, where what happens cannot be had of a real server.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use tenure_client::consumer::balancer::Sleep;
use tenure_client::consumer::statemachine::Machine;
use tenure_client::consumer::{Consumer, ConsumerBuilder, ConsumerHandle, Handler, Job, Outcome, Stop};
use tenure_client::{AccessToken, Client, Credentials, Error, RetryPolicy};
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_util::task::AbortOnDropHandle;

use crate::queue::{
    Queue, RecordedRequest, Reply, SESSION, SOON, TASK_IDS, TOKEN, TTL, claim, date, inbox, ok, refuse, run_ended,
    session_started, until,
};
use crate::worker::LEASE;

const NOW: &str = "2001-01-01T00:00:01.000Z";
/// By which a machine stores its state; what it reads has no run in its path.
const STORE: &str = "/runs/0/checkpoint";
/// The same at the run of `claim_after_rerun`.
const STORE_AFTER_RERUN: &str = "/runs/2/checkpoint";

pub fn consumer(queue: &Queue) -> ConsumerBuilder {
    let access_token = AccessToken::new(TOKEN.into());
    let credentials = Credentials { client_id: "worker".into(), access_token, certificate: None };
    let retry = RetryPolicy::default().first_pause(Duration::from_millis(10));
    let client = Client::builder().root_url(&queue.root_url()).credentials(credentials).retry_policy(retry);
    Consumer::builder(client.build().unwrap(), "p/w".parse().unwrap()).name("g", "w")
}

pub struct Running {
    handle: ConsumerHandle,
    ends: JoinHandle<Result<(), Error>>,
}

impl Running {
    pub fn start(builder: ConsumerBuilder) -> Self {
        let consumer = builder.build().unwrap();
        Self { handle: consumer.handle(), ends: tokio::spawn(consumer.run()) }
    }

    pub fn jobs(&self) -> usize {
        self.handle.status().tasks.len()
    }

    pub async fn stop(self) {
        self.handle.shutdown().await;
        self.ends.await.unwrap().unwrap();
    }
}

/// Takes every report, and has no work.
fn no_work(request: &RecordedRequest) -> Reply {
    let results = request.body["results"].as_array().unwrap();
    let accepted = |result: &Value| {
        let task = result["taskId"].as_str().unwrap();
        json!({"taskId": task, "runId": 0, "status": claim(task, LEASE, &json!({}))["status"]})
    };
    ok(json!({"results": results.iter().map(accepted).collect::<Vec<Value>>(), "tasks": []}))
}

/// A queue that has this one claim.
pub async fn queue_with(claim: &Value) -> Queue {
    let queue = Queue::start().await;
    queue.on("/work", no_work);
    queue.once("/work", ok(json!({"results": [], "tasks": [claim]})));
    queue
}

/// What a proxy answers whose server is away.
fn page(status: u16) -> Reply {
    Reply { bytes: Some(b"<html>not here</html>".to_vec()), ..refuse(status) }
}

/// The outcomes that were reported.
pub fn reported(queue: &Queue) -> Vec<Value> {
    let results = |request: RecordedRequest| request.body["results"].as_array().unwrap().clone();
    queue.requests("/work").into_iter().flat_map(results).collect()
}

/// A queue that has a command for its one task for which a handler need not stop, and that answers like this when it is stored.
async fn queue_with_command(stored: impl Fn() -> Reply + Send + 'static) -> Queue {
    let queue = queue_with(&claim(TASK_IDS[0], LEASE, &json!({}))).await;
    queue.on("/checkpoint", move |request| if request.call.ends_with(STORE) { stored() } else { refuse(404) });
    // A machine asks before its handler works, and this is for a handler that works.
    queue.once("/command", refuse(404));
    let command = json!({"taskId": TASK_IDS[0], "id": 7, "command": "checkpoint", "sent": NOW});
    queue.on("/command", move |_| ok(command.clone()));
    queue
}

/// Says that it has begun, and for what it is to stop.
fn machine(said: mpsc::UnboundedSender<String>) -> impl Handler<Value> {
    Machine::new(move |_job: Job, stop: Stop| {
        let said = said.clone();
        async move {
            said.send("begun".to_owned()).unwrap();
            stop.requested().await;
            said.send(format!("{:?}", stop.reason().unwrap())).unwrap();
            Outcome::Failed(None)
        }
    })
}

async fn next(said: &mut mpsc::UnboundedReceiver<String>) -> String {
    timeout(SOON, said.recv()).await.expect("it says something").expect("the handler goes on")
}

#[tokio::test]
async fn a_command_for_a_working_handler_is_stored_at_last_however_often_that_fails() {
    /// More often than the client itself tries.
    const FAILURES: usize = 8;
    let times = AtomicUsize::new(0);
    let queue = queue_with_command(move || {
        let unavailable = times.fetch_add(1, Ordering::SeqCst) < FAILURES;
        if unavailable { refuse(503) } else { ok(json!({"updated": NOW})) }
    })
    .await;
    let (sender, mut said) = mpsc::unbounded_channel();
    let running = Running::start(consumer(&queue).handler(machine(sender)));
    assert_eq!(next(&mut said).await, "begun");
    let stored = queue.wait_for(STORE, FAILURES + 1).await;
    assert!(stored.iter().all(|request| request.body["commandId"] == 7));
    running.stop().await;
    assert_eq!(next(&mut said).await, "Shutdown", "it has gone on meanwhile");
    assert_eq!(reported(&queue).len(), 1);
}

#[tokio::test]
async fn a_command_that_may_not_be_stored_leaves_the_handler_alone() {
    let queue = queue_with_command(|| refuse(409)).await;
    let (sender, mut said) = mpsc::unbounded_channel();
    let running = Running::start(consumer(&queue).handler(machine(sender)));
    assert_eq!(next(&mut said).await, "begun");
    queue.wait_for(STORE, 1).await;
    running.stop().await;
    assert_eq!(next(&mut said).await, "Shutdown");
}

#[tokio::test]
async fn a_handler_hears_of_a_shutdown_while_a_command_is_being_stored() {
    let queue = queue_with_command(|| Reply { after: 3 * SOON, ..ok(json!({"updated": NOW})) }).await;
    let (sender, mut said) = mpsc::unbounded_channel();
    let running = Running::start(consumer(&queue).handler(machine(sender)));
    assert_eq!(next(&mut said).await, "begun");
    queue.wait_for(STORE, 1).await;
    let handle = running.handle.clone();
    let _shutdown = AbortOnDropHandle::new(tokio::spawn(async move { handle.shutdown().await }));
    assert_eq!(next(&mut said).await, "Shutdown");
    // It would wait for the answer.
    running.ends.abort();
}

#[tokio::test]
async fn what_a_machine_stores_at_last_is_not_overtaken_by_what_is_being_stored_when_its_handler_ends() {
    let after = Duration::from_secs(1);
    let queue = queue_with_command(move || Reply { after, ..ok(json!({"updated": NOW})) }).await;
    let ends = Arc::new(Notify::new());
    let end = Arc::clone(&ends);
    let failing = Machine::new(move |_job: Job, _stop: Stop| {
        let end = Arc::clone(&end);
        async move {
            end.notified().await;
            Outcome::Failed(None)
        }
    });
    let running = Running::start(consumer(&queue).handler::<Value, _>(failing));
    queue.wait_for(STORE, 1).await;
    ends.notify_one();
    let stored = queue.wait_for(STORE, 2).await;
    let states = [0, 1].map(|at: usize| stored[at].body["checkpoint"]["machine"]["state"].clone());
    assert_ne!(states[0], states[1]);
    assert!(stored[1].at - stored[0].at >= after, "the first has an answer by then");
    running.stop().await;
}

#[tokio::test]
async fn a_checkpoint_that_is_refused_does_not_keep_the_state_of_a_machine_from_being_stored() {
    let queue = queue_with(&claim(TASK_IDS[0], LEASE, &json!({}))).await;
    queue.on("/command", |_| refuse(404));
    queue.on("/checkpoint", |request| match request.body["checkpoint"]["checkpoint"].as_str() {
        _ if !request.call.ends_with(STORE) => refuse(404),
        Some("too large") => refuse(400),
        _ => ok(json!({"updated": NOW})),
    });
    let failing = Machine::new(|job: Job, _stop: Stop| async move {
        job.checkpoint(&"small").await.unwrap();
        Outcome::of(job.checkpoint(&"too large").await)
    });
    let running = Running::start(consumer(&queue).handler::<Value, _>(failing));
    let stored = queue.wait_for(STORE, 3).await.remove(2).body["checkpoint"].take();
    assert_eq!(
        (stored["machine"]["state"]["name"].as_str(), stored["checkpoint"].as_str()),
        (Some("fault"), Some("small"))
    );
    running.stop().await;
}

/// The claim of run 2, a retry of the run that was asked for when the task had ended.
fn claim_after_rerun() -> Value {
    let mut claim = claim(TASK_IDS[0], LEASE, &json!({}));
    let run = claim["status"]["runs"][0].take();
    let runs = ["scheduled", "rerun", "retry"].into_iter().zip(0_u64..).map(|(reason, number)| {
        let mut run = run.clone();
        run["runId"] = json!(number);
        run["reasonCreated"] = json!(reason);
        run["scheduled"] = json!(date(1_000 * number));
        run
    });
    claim["status"]["runs"] = runs.collect();
    claim["runId"] = json!(2);
    claim
}

#[tokio::test]
async fn a_task_that_is_run_again_begins_anew_also_if_the_run_that_was_made_for_it_is_lost() {
    // Unless that run has stored a state.
    for (state, run, begins) in [("killed", 0, true), ("paused", 0, true), ("killed", 1, false)] {
        let queue = queue_with(&claim_after_rerun()).await;
        queue.on("/command", |_| refuse(404));
        let found = json!({"machine": {"state": {"name": state}}, "checkpoint": "kept"});
        let found = json!({"taskId": TASK_IDS[0], "runId": run, "checkpoint": found, "updated": NOW});
        queue.on("/checkpoint", move |request| {
            if request.call.ends_with(STORE_AFTER_RERUN) { ok(json!({"updated": NOW})) } else { ok(found.clone()) }
        });
        let (sender, mut said) = mpsc::unbounded_channel();
        let running = Running::start(consumer(&queue).handler(machine(sender)));
        if begins {
            assert_eq!(next(&mut said).await, "begun", "{state}");
            let stored = queue.requests(STORE_AFTER_RERUN).remove(0).body["checkpoint"].take();
            assert_eq!(stored["machine"]["state"]["name"], "runnable");
            assert_eq!(stored["checkpoint"], "kept");
        } else {
            until("it is reported", || (!reported(&queue).is_empty()).then_some(())).await;
            assert_eq!((&reported(&queue)[0]["outcome"], said.try_recv().is_err()), (&json!("failed"), true));
        }
        running.stop().await;
    }
}

#[tokio::test]
async fn a_checkpoint_of_a_run_that_is_lost_is_given_up_at_once_and_none_is_sent_then() {
    let queue = queue_with(&claim(TASK_IDS[0], LEASE, &json!({}))).await;
    queue.on("/checkpoint", |_| Reply { after: 3 * SOON, ..refuse(503) });
    queue.has_sessions();
    let (sender, mut said) = mpsc::unbounded_channel();
    let running = Running::start(consumer(&queue).handler(move |job: Job, _stop: Stop| {
        let sender = sender.clone();
        async move {
            for _ in 0..2 {
                sender.send(job.checkpoint(&1).await.unwrap_err().to_string()).unwrap();
            }
        }
    }));
    queue.wait_for("/checkpoint", 1).await;
    queue.on("/inbox", |_| run_ended(TASK_IDS[0], "canceled"));
    for _ in 0..2 {
        let error = next(&mut said).await;
        assert!(error.starts_with("the run is lost: "), "{error}");
    }
    assert_eq!(queue.requests("/checkpoint").len(), 1);
    running.stop().await;
}

#[tokio::test]
async fn a_machine_whose_run_is_lost_does_not_wait_long_for_its_state_to_be_stored() {
    let queue = queue_with(&claim(TASK_IDS[0], LEASE, &json!({}))).await;
    queue.on("/command", |_| refuse(404));
    queue.on("/checkpoint", |request| {
        if request.call.ends_with(STORE) { Reply { after: 3 * SOON, ..refuse(503) } } else { refuse(404) }
    });
    queue.has_sessions();
    let failing = Machine::new(|_job: Job, _stop: Stop| async { Outcome::Failed(None) });
    let running = Running::start(consumer(&queue).handler::<Value, _>(failing));
    queue.wait_for(STORE, 1).await;
    queue.on("/inbox", |_| run_ended(TASK_IDS[0], "canceled"));
    timeout(SOON, running.stop()).await.expect("it is given up");
    assert!(reported(&queue).is_empty());
}

#[tokio::test]
async fn what_a_handler_asks_for_is_sent_again_as_by_the_consumers_client() {
    let queue = queue_with(&claim(TASK_IDS[0], LEASE, &json!({}))).await;
    queue.on("/checkpoint", |_| ok(json!({"updated": NOW})));
    queue.once("/checkpoint", refuse(503));
    queue.once("/checkpoint", refuse(503));
    let running =
        Running::start(consumer(&queue).handler(|job: Job, _stop: Stop| async move { job.checkpoint(&1).await }));
    until("it is reported", || (!reported(&queue).is_empty()).then_some(())).await;
    assert_eq!((&reported(&queue)[0]["outcome"], queue.requests("/checkpoint").len()), (&json!("completed"), 3));
    running.stop().await;
}

/// A queue that has sessions and no work. It gives these answers to the first starts.
async fn queue_with_sessions(first: Vec<Reply>) -> Queue {
    let queue = Queue::start().await;
    queue.on("/work", no_work);
    queue.has_sessions();
    first.into_iter().for_each(|answer| queue.once("/sessions", answer));
    queue
}

#[tokio::test]
async fn jobs_go_on_while_there_is_nothing_in_the_inbox_of_a_short_session() {
    const TTL: Duration = Duration::from_secs(15);
    let queue = queue_with(&claim(TASK_IDS[0], LEASE, &json!({}))).await;
    queue.has_sessions();
    queue.on("/sessions", |_| session_started(TTL));
    // A server gathers renewals before it waits.
    queue.on("/inbox", |request| {
        let wait = request.query.rsplit_once("wait=").unwrap().1.parse().unwrap();
        Reply { after: Duration::from_secs(wait) + Duration::from_millis(250), ..inbox(&json!([])) }
    });
    let (sender, mut said) = mpsc::unbounded_channel();
    let running = Running::start(consumer(&queue).session(TTL).handler(move |_job: Job, stop: Stop| {
        let sender = sender.clone();
        async move {
            stop.requested().await;
            sender.send(format!("{:?}", stop.reason().unwrap())).unwrap();
        }
    }));
    let asked = queue.wait_for("/inbox", 6).await;
    assert!(asked[5].at - asked[0].at > TTL * 2 / 3, "longer than the jobs would go on without an answer");
    assert!(said.try_recv().is_err(), "no job is asked to stop");
    running.stop().await;
    assert_eq!(next(&mut said).await, "Shutdown");
}

/// Without an answer.
fn cut() -> Reply {
    Reply { cut: true, ..Reply::default() }
}

fn idle(queue: &Queue) -> Running {
    Running::start(consumer(queue).handler(|_job: Job, _stop: Stop| async {}))
}

#[tokio::test]
async fn a_session_whose_start_got_no_answer_is_taken_over_and_its_end_is_repeated() {
    for lost in [cut(), page(502)] {
        let queue = queue_with_sessions(vec![lost]).await;
        let running = idle(&queue);
        queue.wait_for("/inbox", 1).await;
        let starts = queue.requests("/sessions");
        assert_eq!((starts.len(), &starts[1].body["takeover"]), (2, &json!(true)));
        queue.once(SESSION, refuse(503));
        queue.once(SESSION, cut());
        running.stop().await;
        assert_eq!(queue.requests(SESSION).len(), 3);
    }
}

#[tokio::test]
async fn a_session_that_is_being_started_at_a_shutdown_is_ended() {
    let starting = Reply { after: Duration::from_secs(1), ..session_started(TTL) };
    let queue = queue_with_sessions(vec![starting]).await;
    let running = idle(&queue);
    queue.wait_for("/sessions", 1).await;
    running.stop().await;
    assert_eq!((queue.requests("/sessions").len(), queue.requests(SESSION).len()), (1, 1));
}

#[tokio::test]
async fn that_a_worker_is_not_frozen_any_more_is_said_before_there_is_an_answer_that_it_was() {
    let queue = queue_with_sessions(vec![]).await;
    let renewed = json!({"expires": date(0), "serverTime": date(0)});
    queue.on("/renew", move |_| Reply { after: Duration::from_secs(1), ..ok(renewed.clone()) });
    let running = idle(&queue);
    queue.wait_for("/inbox", 1).await;
    running.handle.freeze();
    queue.wait_for("/renew", 1).await;
    running.handle.unfreeze();
    let renewals = queue.wait_for("/renew", 2).await;
    assert_eq!([0, 1].map(|at: usize| renewals[at].body["frozen"].clone()), [true, false]);
    running.stop().await;
}

#[tokio::test]
async fn what_is_pending_behind_a_page_of_runs_that_cannot_be_claimed_is_found() {
    const BEHIND: &str = "continuationToken=behind";
    let queue = Queue::start().await;
    queue.on("/work", no_work);
    queue.on("/events", |_| ok(json!({"after": 4})));
    queue.on("/pending", |request| {
        let run = |task: &str| json!([{"taskId": task, "runId": 0}]);
        ok(if request.query == BEHIND {
            json!({"tasks": run(TASK_IDS[1])})
        } else {
            json!({"tasks": run(TASK_IDS[0]), "continuationToken": "behind"})
        })
    });
    // The first one is delayed.
    queue.on("/claim", |request| {
        if request.call.contains(TASK_IDS[0]) { refuse(409) } else { ok(claim(TASK_IDS[1], LEASE, &json!({}))) }
    });
    let running =
        Running::start(consumer(&queue).balancer(Sleep::default()).handler(|_job: Job, _stop: Stop| async {}));
    until("it is reported", || (!reported(&queue).is_empty()).then_some(())).await;
    assert_eq!(reported(&queue)[0]["taskId"], TASK_IDS[1]);
    running.stop().await;
}
