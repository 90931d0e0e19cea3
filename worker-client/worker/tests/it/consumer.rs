//! The consumer against the scripted queue, for behaviour that a real server cannot be made to
//! show.

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
/// Path of a machine's stores; its reads have no run in their path.
const STORE: &str = "/runs/0/checkpoint";
/// For the run of `claim_after_rerun`.
const STORE_AFTER_RERUN: &str = "/runs/2/checkpoint";

pub fn client(queue: &Queue) -> Client {
    let access_token = AccessToken::new(TOKEN.into());
    let credentials = Credentials { client_id: "worker".into(), access_token, certificate: None };
    let retry = RetryPolicy::default().first_pause(Duration::from_millis(10));
    Client::builder().root_url(&queue.root_url()).credentials(credentials).retry_policy(retry).build().unwrap()
}

pub fn consumer(queue: &Queue) -> ConsumerBuilder {
    Consumer::builder(client(queue), "p/w".parse().unwrap()).name("g", "w")
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

fn no_work(request: &RecordedRequest) -> Reply {
    let results = request.body["results"].as_array().unwrap();
    let accepted = |result: &Value| {
        let task = result["taskId"].as_str().unwrap();
        json!({"taskId": task, "runId": 0, "status": claim(task, LEASE, &json!({}))["status"]})
    };
    ok(json!({"results": results.iter().map(accepted).collect::<Vec<Value>>(), "tasks": []}))
}

pub async fn queue_with(claim: &Value) -> Queue {
    let queue = Queue::start().await;
    queue.on("/work", no_work);
    queue.once("/work", ok(json!({"results": [], "tasks": [claim]})));
    queue
}

/// Answer of a proxy.
fn page(status: u16) -> Reply {
    Reply { bytes: Some(b"<html>not here</html>".to_vec()), ..refuse(status) }
}

pub fn reported(queue: &Queue) -> Vec<Value> {
    let results = |request: RecordedRequest| request.body["results"].as_array().unwrap().clone();
    queue.requests("/work").into_iter().flat_map(results).collect()
}

/// A queue with a command that does not stop the handler. `stored` is the answer to storing it.
async fn queue_with_command(stored: impl Fn() -> Reply + Send + 'static) -> Queue {
    let queue = queue_with(&claim(TASK_IDS[0], LEASE, &json!({}))).await;
    queue.on("/checkpoint", move |request| if request.call.ends_with(STORE) { stored() } else { refuse(404) });
    // A machine polls before its handler works.
    queue.once("/command", refuse(404));
    let command = json!({"taskId": TASK_IDS[0], "id": 7, "command": "checkpoint", "sent": NOW});
    queue.on("/command", move |_| ok(command.clone()));
    queue
}

/// A machine that sends its start and its reasons to stop.
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

#[tokio::test]
async fn malformed_payload_and_panic_leave_a_failure() {
    for (payload, reason, kind, message) in [
        (
            json!("x"),
            "malformed-payload",
            "malformed-payload",
            "malformed payload: invalid type: string \"x\", expected u8",
        ),
        (json!(1), "internal-error", "panic", "the handler panicked: too large"),
    ] {
        let queue = queue_with(&claim(TASK_IDS[0], LEASE, &payload)).await;
        let running = Running::start(consumer(&queue).handler(|job: Job<u8>, _stop: Stop| async move {
            assert!(*job.payload() == 0, "too large");
        }));
        until("it is reported", || (!reported(&queue).is_empty()).then_some(())).await;
        let result = &reported(&queue)[0];
        assert_eq!((&result["reason"], &result["failure"]["kind"]), (&json!(reason), &json!(kind)));
        assert!(result["failure"]["message"].as_str().unwrap().starts_with(message), "{result}");
        running.stop().await;
    }
}

/// Earlier releases refuse the whole request.
#[tokio::test]
async fn refused_failure_is_left_out_of_next_result() {
    let queue = queue_with(&claim(TASK_IDS[0], LEASE, &json!({}))).await;
    queue.on(
        "/work",
        |request| {
            if request.body["results"][0]["failure"].is_object() { refuse(400) } else { no_work(request) }
        },
    );
    let running = Running::start(
        consumer(&queue)
            .handler(|_job: Job, _stop: Stop| async { Outcome::FailedForGood(Some(json!(5))).because("no mailbox") }),
    );
    until("it is reported", || (reported(&queue).len() == 3).then_some(())).await;
    let bare = json!({"taskId": TASK_IDS[0], "runId": 0, "outcome": "failed", "result": 5});
    let mut full = bare.clone();
    (full["failure"], full["retry"]) = (json!({"message": "no mailbox"}), json!(false));
    // With a call for work, apart, and without the failure.
    assert_eq!(reported(&queue), [full.clone(), full, bare]);
    running.stop().await;
}

async fn next(said: &mut mpsc::UnboundedReceiver<String>) -> String {
    timeout(SOON, said.recv()).await.expect("message in time").expect("handler is running")
}

#[tokio::test]
async fn command_is_stored_after_many_failures() {
    /// More often than the client itself retries.
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
    assert_eq!(next(&mut said).await, "Shutdown", "handler was stopped earlier");
    assert_eq!(reported(&queue).len(), 1);
}

#[tokio::test]
async fn refused_store_of_command_does_not_stop_handler() {
    let queue = queue_with_command(|| refuse(409)).await;
    let (sender, mut said) = mpsc::unbounded_channel();
    let running = Running::start(consumer(&queue).handler(machine(sender)));
    assert_eq!(next(&mut said).await, "begun");
    queue.wait_for(STORE, 1).await;
    running.stop().await;
    assert_eq!(next(&mut said).await, "Shutdown");
}

#[tokio::test]
async fn shutdown_reaches_handler_during_store_of_command() {
    let queue = queue_with_command(|| Reply { after: 3 * SOON, ..ok(json!({"updated": NOW})) }).await;
    let (sender, mut said) = mpsc::unbounded_channel();
    let running = Running::start(consumer(&queue).handler(machine(sender)));
    assert_eq!(next(&mut said).await, "begun");
    queue.wait_for(STORE, 1).await;
    let handle = running.handle.clone();
    let _shutdown = AbortOnDropHandle::new(tokio::spawn(async move { handle.shutdown().await }));
    assert_eq!(next(&mut said).await, "Shutdown");
    running.ends.abort();
}

#[tokio::test]
async fn last_store_of_machine_is_not_overtaken_by_earlier_one() {
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
    assert!(stored[1].at - stored[0].at >= after, "second store overlapped the first");
    running.stop().await;
}

#[tokio::test]
async fn refused_checkpoint_does_not_block_state_of_machine() {
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

/// Run 2 is a retry of the run created by a rerun.
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
async fn rerun_task_starts_anew_after_its_run_is_lost() {
    // Unless the rerun has stored a state.
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
            let result = &reported(&queue)[0];
            assert_eq!((&result["outcome"], &result["retry"]), (&json!("failed"), &json!(false)));
            assert_eq!(result["failure"]["message"], "killed by a command");
            assert!(said.try_recv().is_err());
        }
        running.stop().await;
    }
}

#[tokio::test]
async fn checkpoint_of_lost_run_is_given_up_at_once() {
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
async fn machine_of_lost_run_stops_waiting_for_store() {
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
    timeout(SOON, running.stop()).await.expect("machine stops in time");
    assert!(reported(&queue).is_empty());
}

#[tokio::test]
async fn requests_of_handler_follow_retry_policy_of_client() {
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

/// `first` answers the first starts.
async fn queue_with_sessions(first: Vec<Reply>) -> Queue {
    let queue = Queue::start().await;
    queue.on("/work", no_work);
    queue.has_sessions();
    first.into_iter().for_each(|answer| queue.once("/sessions", answer));
    queue
}

#[tokio::test]
async fn jobs_continue_with_empty_inbox_of_short_session() {
    const TTL: Duration = Duration::from_secs(15);
    let queue = queue_with(&claim(TASK_IDS[0], LEASE, &json!({}))).await;
    queue.has_sessions();
    queue.on("/sessions", |_| session_started(TTL));
    // A server batches renewals before it waits.
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
    assert!(asked[5].at - asked[0].at > TTL * 2 / 3, "test was too short");
    assert!(said.try_recv().is_err(), "a job was asked to stop");
    running.stop().await;
    assert_eq!(next(&mut said).await, "Shutdown");
}

fn cut() -> Reply {
    Reply { cut: true, ..Reply::default() }
}

fn idle(queue: &Queue) -> Running {
    Running::start(consumer(queue).handler(|_job: Job, _stop: Stop| async {}))
}

#[tokio::test]
async fn unanswered_session_is_taken_over_and_close_retried() {
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
async fn session_started_during_shutdown_is_closed() {
    let starting = Reply { after: Duration::from_secs(1), ..session_started(TTL) };
    let queue = queue_with_sessions(vec![starting]).await;
    let running = idle(&queue);
    queue.wait_for("/sessions", 1).await;
    running.stop().await;
    assert_eq!((queue.requests("/sessions").len(), queue.requests(SESSION).len()), (1, 1));
}

#[tokio::test]
async fn unfreeze_is_reported_before_freeze_is_answered() {
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
async fn runs_after_page_of_unclaimable_runs_are_found() {
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
    // The first page is delayed.
    queue.on("/claim", |request| {
        if request.call.contains(TASK_IDS[0]) { refuse(409) } else { ok(claim(TASK_IDS[1], LEASE, &json!({}))) }
    });
    let running =
        Running::start(consumer(&queue).balancer(Sleep::default()).handler(|_job: Job, _stop: Stop| async {}));
    until("it is reported", || (!reported(&queue).is_empty()).then_some(())).await;
    assert_eq!(reported(&queue)[0]["taskId"], TASK_IDS[1]);
    running.stop().await;
}
