//! Results that a consumer reports with its next call for work, or apart from it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tenure_client::WorkerName;
use tenure_client::consumer::source::ClaimWork;
use tenure_client::consumer::{ConsumerBuilder, Handler, Job, Outcome, Stop};
use tokio::sync::Semaphore;

use crate::consumer::{Running, client, consumer, queue_with, reported};
use crate::queue::{Queue, RecordedRequest, Reply, TASK_IDS, claim, ok, refuse, until};
use crate::worker::LEASE;

/// Longer than any test.
const LONG: Duration = Duration::from_secs(60);
/// Longer than a consumer waits before it repeats results.
const LATE: Duration = Duration::from_secs(6);

fn claimed(at: usize) -> Value {
    claim(TASK_IDS[at], LEASE, &json!({}))
}

fn accepted(task: &str) -> Value {
    json!({"taskId": task, "runId": 0, "status": claim(task, LEASE, &json!({}))["status"]})
}

fn completed(at: usize) -> Value {
    json!({"taskId": TASK_IDS[at], "runId": 0, "outcome": "completed"})
}

/// Accepts all results, without work.
fn accept(request: &RecordedRequest) -> Reply {
    let results = request.body["results"].as_array().unwrap();
    let answers: Vec<Value> = results.iter().map(|result| accepted(result["taskId"].as_str().unwrap())).collect();
    ok(json!({"results": answers, "tasks": []}))
}

fn is_exchange(request: &RecordedRequest) -> bool {
    request.body["claim"] != 0 && request.body["results"] != json!([])
}

fn has_result(request: &RecordedRequest, at: usize) -> bool {
    request.body["results"].as_array().unwrap().contains(&completed(at))
}

/// Requests with results, and the number of claims that they ask for.
fn reports(queue: &Queue) -> Vec<(Value, u64)> {
    let with_results = queue.requests("/work").into_iter().filter(|request| request.body["results"] != json!([]));
    with_results.map(|mut request| (request.body["results"].take(), request.body["claim"].as_u64().unwrap())).collect()
}

fn me() -> WorkerName {
    WorkerName { group: "g".parse().unwrap(), id: "w".parse().unwrap() }
}

fn alone(queue: &Queue) -> ConsumerBuilder {
    consumer(queue).without_session()
}

fn at_once() -> impl Handler<Value> {
    |_job: Job, _stop: Stop| async {}
}

#[tokio::test]
async fn busy_consumer_reports_and_claims_in_one_request() {
    let queue = queue_with(&claimed(0)).await;
    for (ended, next) in [(0, vec![claimed(1)]), (1, vec![claimed(2)]), (2, vec![])] {
        queue.once("/work", ok(json!({"results": [accepted(TASK_IDS[ended])], "tasks": next})));
    }
    let running = Running::start(alone(&queue).handler(at_once()));
    let requests = queue.wait_for("/work", 5).await;
    for (ended, request) in requests[1..4].iter().enumerate() {
        let body = json!({"taskQueueId": "p/w", "workerGroup": "g", "workerId": "w", "results": [completed(ended)],
                          "claim": 1, "wait": 0});
        assert_eq!((&request.body, request.signed_by.as_str()), (&body, "worker"));
    }
    assert_eq!(requests[4].body["results"], json!([]));
    assert_ne!(requests[4].body["wait"], 0);
    running.stop().await;
    assert_eq!(reported(&queue).len(), 3);
}

#[tokio::test]
async fn results_during_an_exchange_go_with_the_next_one() {
    let queue = Queue::start().await;
    queue.on("/work", |request| {
        let after = if is_exchange(request) { Duration::from_millis(500) } else { Duration::ZERO };
        Reply { after, ..accept(request) }
    });
    queue.once("/work", ok(json!({"results": [], "tasks": [claimed(0), claimed(1), claimed(2)]})));
    let (begun, go) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    let (begins, gate) = (Arc::clone(&begun), Arc::clone(&go));
    let running = Running::start(alone(&queue).capacity(3).handler(move |_job: Job, _stop: Stop| {
        let (begins, gate) = (Arc::clone(&begins), Arc::clone(&gate));
        async move {
            begins.add_permits(1);
            gate.acquire().await.unwrap().forget();
        }
    }));
    begun.acquire_many(3).await.unwrap().forget();
    go.add_permits(3);
    until("all reports are answered", || (running.jobs() == 0).then_some(())).await;
    running.stop().await;
    assert_eq!(reported(&queue).len(), 3);
    let reports = reports(&queue);
    assert!(reports.len() <= 2, "{reports:?}");
    let sizes = reports.iter().map(|(results, claim)| (results.as_array().map_or(0, Vec::len), *claim));
    assert!(sizes.into_iter().all(|(size, claim)| claim >= size as u64), "{reports:?}");
}

/// With a source the next job begins during deferred work.
#[tokio::test]
async fn result_does_not_wait_for_deferred_work() {
    let queue = Queue::start().await;
    queue.hand_out(&[claimed(0)]);
    queue.on("/work", |request| {
        let tasks = if has_result(request, 0) { vec![claimed(1)] } else { Vec::new() };
        ok(json!({"results": [accepted(TASK_IDS[0])], "tasks": tasks}))
    });
    let source = ClaimWork::new(client(&queue), "p/w".parse().unwrap(), me());
    let go = Arc::new(Semaphore::new(0));
    let gate = Arc::clone(&go);
    let running = Running::start(consumer(&queue).source(source).handler(move |job: Job, _stop: Stop| {
        let gate = Arc::clone(&gate);
        async move {
            if job.task_id().to_string() == TASK_IDS[0] {
                job.afterwards(async move {
                    gate.acquire().await.unwrap().forget();
                });
            }
        }
    }));
    let report = queue.wait_for("completed", 1).await.remove(0);
    assert!(report.call.contains(TASK_IDS[1]), "{}", report.call);
    until("its job ends", || (running.jobs() == 1).then_some(())).await;
    assert_eq!(reports(&queue), [(json!([completed(0)]), 1)]);
    go.add_permits(1);
    running.stop().await;
}

#[tokio::test]
async fn run_that_is_given_back_is_reported_without_a_claim() {
    for (after, delay, claim) in [(None, json!(null), 0), (Some(0), json!(0), 0), (Some(2), json!(2), 1)] {
        let queue = queue_with(&claimed(0)).await;
        let after = after.map(Duration::from_secs);
        let running = Running::start(
            alone(&queue).handler(move |_job: Job, _stop: Stop| async move { Outcome::Release { after } }),
        );
        until("its report is answered", || (!reports(&queue).is_empty() && running.jobs() == 0).then_some(())).await;
        running.stop().await;
        let reports = reports(&queue);
        assert_eq!((reports.len(), &reports[0].0[0]["delay"], reports[0].1), (1, &delay, claim));
    }
}

#[tokio::test]
async fn late_exchange_is_reported_apart_and_its_claims_are_kept() {
    let queue = queue_with(&claimed(0)).await;
    queue.on("/work", |request| {
        if !is_exchange(request) || !has_result(request, 0) {
            return accept(request);
        }
        Reply { after: LATE, ..ok(json!({"results": [accepted(TASK_IDS[0])], "tasks": [claimed(1)]})) }
    });
    let running = Running::start(alone(&queue).handler(at_once()));
    until("the next job is reported", || (reports(&queue).len() == 3).then_some(())).await;
    let expected = [(json!([completed(0)]), 1), (json!([completed(0)]), 0), (json!([completed(1)]), 1)];
    assert_eq!(reports(&queue), expected);
    running.stop().await;
}

#[tokio::test]
async fn result_is_not_repeated_after_its_lease() {
    let queue = queue_with(&claim(TASK_IDS[0], Duration::from_secs(2), &json!({}))).await;
    queue.on("/work", |request| {
        let after = if is_exchange(request) { LONG } else { Duration::ZERO };
        Reply { after, ..accept(request) }
    });
    let running = Running::start(alone(&queue).handler(at_once()));
    until("it is being reported", || (reports(&queue).len() == 1).then_some(())).await;
    until("its job ends", || (running.jobs() == 0).then_some(())).await;
    running.stop().await;
    assert_eq!(reports(&queue), [(json!([completed(0)]), 1)]);
}

/// Starts three jobs that end at once.
fn start_three(queue: &Queue) -> Running {
    queue.once("/work", ok(json!({"results": [], "tasks": [claimed(0), claimed(1), claimed(2)]})));
    Running::start(alone(queue).capacity(3).handler(at_once()))
}

async fn all_end(queue: &Queue, running: Running) {
    let are_sent = || (0..3).all(|at| reported(queue).contains(&completed(at)));
    until("all jobs end", || (are_sent() && running.jobs() == 0).then_some(())).await;
    running.stop().await;
}

/// Ids of tasks, more than `TASK_IDS` has.
fn many_tasks(count: u8) -> Vec<String> {
    (0..count).map(|at| format!("{}{}AAAAAAQACAAAAAAAAAAA", letter(at / 26), letter(at % 26))).collect()
}

fn letter(at: u8) -> char {
    char::from(b'A' + at)
}

#[tokio::test]
async fn many_results_are_sent_beside_an_unanswered_exchange() {
    let queue = Queue::start().await;
    queue.on("/work", |request| {
        let after = if is_exchange(request) { LONG } else { Duration::ZERO };
        Reply { after, ..accept(request) }
    });
    let tasks = many_tasks(48);
    let claims: Vec<Value> = tasks.iter().map(|task| claim(task, LEASE, &json!({}))).collect();
    queue.once("/work", ok(json!({"results": [], "tasks": claims})));
    let go = Arc::new(Semaphore::new(0));
    let gate = Arc::clone(&go);
    let running = Running::start(alone(&queue).capacity(48).handler(move |_job: Job, _stop: Stop| {
        let gate = Arc::clone(&gate);
        async move {
            gate.acquire().await.unwrap().forget();
        }
    }));
    let exchanges = || queue.requests("/work").into_iter().filter(is_exchange).collect::<Vec<_>>();
    go.add_permits(24);
    until("some results are sent", || (!exchanges().is_empty()).then_some(())).await;
    go.add_permits(24);
    let sent = until("others are sent too", || Some(exchanges()).filter(|sent| sent.len() == 2)).await;
    let mut reported = Vec::new();
    for request in &sent {
        let results = request.body["results"].as_array().unwrap();
        assert_eq!(request.body["claim"], results.len(), "{}", request.body);
        reported.extend(results.iter().map(|result| result["taskId"].to_string()));
    }
    assert!(sent[1].body["results"].as_array().unwrap().len() >= 16, "{}", sent[1].body);
    let count = reported.len();
    reported.sort();
    reported.dedup();
    assert_eq!(reported.len(), count, "a result was sent twice");
    running.stop().await;
}

#[tokio::test]
async fn short_job_is_reported_with_a_claim_despite_free_slots() {
    let queue = Queue::start().await;
    queue.on("/work", |request| {
        if request.body["results"] != json!([]) {
            return accept(request);
        }
        Reply { after: Duration::from_millis(20), ..ok(json!({"results": [], "tasks": [claimed(0)]})) }
    });
    let running = Running::start(alone(&queue).capacity(2).handler(at_once()));
    until("a result goes with a claim", || reports(&queue).iter().any(|(_, claim)| *claim > 0).then_some(())).await;
    running.stop().await;
}

#[tokio::test]
async fn report_does_not_wait_for_a_parked_call() {
    let queue = queue_with(&claimed(0)).await;
    queue.on("/work", |request| {
        let is_parked = request.body["results"] == json!([]);
        Reply { after: if is_parked { LONG } else { Duration::ZERO }, ..accept(request) }
    });
    let go = Arc::new(Semaphore::new(0));
    let gate = Arc::clone(&go);
    let running = Running::start(alone(&queue).capacity(2).handler(move |_job: Job, _stop: Stop| {
        let gate = Arc::clone(&gate);
        async move {
            gate.acquire().await.unwrap().forget();
        }
    }));
    queue.wait_for("/work", 2).await;
    go.add_permits(1);
    until("its job ends", || (running.jobs() == 0).then_some(())).await;
    assert_eq!(reports(&queue), [(json!([completed(0)]), 0)]);
    assert!(queue.hung_up("/work").is_empty(), "the parked call was cut");
    running.stop().await;
}

#[tokio::test]
async fn result_of_a_cut_exchange_is_repeated() {
    let queue = queue_with(&claimed(0)).await;
    queue.on("/work", |request| {
        let cut = is_exchange(request);
        Reply { cut, ..accept(request) }
    });
    let running = Running::start(alone(&queue).handler(at_once()));
    until("it is repeated", || (reports(&queue).len() == 2).then_some(())).await;
    until("its job ends", || (running.jobs() == 0).then_some(())).await;
    assert_eq!(reports(&queue), [(json!([completed(0)]), 1), (json!([completed(0)]), 0)]);
    running.stop().await;
}

#[tokio::test]
async fn refused_result_ends_its_job_and_no_other() {
    let queue = Queue::start().await;
    queue.on("/work", |request| {
        let mut reply = accept(request);
        for answer in reply.body["results"].as_array_mut().unwrap() {
            if answer["taskId"] == TASK_IDS[1] {
                *answer =
                    json!({"taskId": TASK_IDS[1], "runId": 0, "error": {"code": "RequestConflict", "message": "no"}});
            }
        }
        reply
    });
    let running = start_three(&queue);
    all_end(&queue, running).await;
    assert_eq!(reported(&queue).len(), 3, "{:?}", reported(&queue));
}

#[tokio::test]
async fn request_refused_for_one_result_loses_no_other() {
    let queue = Queue::start().await;
    queue.on("/work", |request| if has_result(request, 1) { refuse(400) } else { accept(request) });
    let running = start_three(&queue);
    all_end(&queue, running).await;
    let reports = reports(&queue);
    for at in [0, 2] {
        let accepted = reports
            .iter()
            .map(|(results, _)| results.as_array().unwrap())
            .filter(|results| results.contains(&completed(at)) && !results.contains(&completed(1)));
        assert_eq!(accepted.count(), 1, "{at}: {reports:?}");
    }
    assert!(reports.contains(&(json!([completed(1)]), 0)), "{reports:?}");
}

#[tokio::test]
async fn result_without_an_answer_is_repeated() {
    let queue = queue_with(&claimed(0)).await;
    queue.on(
        "/work",
        |request| if is_exchange(request) { ok(json!({"results": [], "tasks": []})) } else { accept(request) },
    );
    let running = Running::start(alone(&queue).handler(at_once()));
    until("it is repeated", || (reports(&queue).len() == 2).then_some(())).await;
    assert_eq!(reports(&queue), [(json!([completed(0)]), 1), (json!([completed(0)]), 0)]);
    running.stop().await;
}

#[tokio::test]
async fn deferred_work_keeps_the_slot_of_its_job() {
    let queue = queue_with(&claimed(0)).await;
    let go = Arc::new(Semaphore::new(0));
    let gate = Arc::clone(&go);
    let running = Running::start(alone(&queue).handler(move |job: Job, _stop: Stop| {
        let gate = Arc::clone(&gate);
        async move {
            job.afterwards(async move {
                gate.acquire().await.unwrap().forget();
            });
        }
    }));
    until("it is reported", || (!reports(&queue).is_empty()).then_some(())).await;
    assert_eq!((reports(&queue), running.jobs()), (vec![(json!([completed(0)]), 0)], 1));
    assert_eq!(queue.requests("/work").len(), 2, "another job is claimed");
    go.add_permits(1);
    let requests = queue.wait_for("/work", 3).await;
    assert_eq!((&requests[2].body["results"], &requests[2].body["claim"]), (&json!([]), &json!(1)));
    running.stop().await;
}

#[tokio::test]
async fn shutdown_does_not_wait_for_an_exchange() {
    let queue = queue_with(&claimed(0)).await;
    queue.on("/work", |request| {
        let after = if is_exchange(request) { LONG } else { Duration::ZERO };
        Reply { after, ..accept(request) }
    });
    let running = Running::start(alone(&queue).handler(at_once()));
    until("it is being reported", || (reports(&queue).len() == 1).then_some(())).await;
    let begun = Instant::now();
    running.stop().await;
    assert!(begun.elapsed() < Duration::from_secs(4), "it waited until results are repeated");
    assert_eq!(reports(&queue)[1], (json!([completed(0)]), 0));
}
