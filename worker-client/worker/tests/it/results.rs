//! Results sent with the next call for work, or reported separately.

use std::time::Duration;

use serde_json::{Value, json};
use tenure_client::RetryPolicy;
use tenure_worker::{Plane, Settings};

use crate::queue::{Queue, Reply, TASK_IDS, claim, ok, refuse, until};
use crate::worker::{LEASE, Running, shell};

/// Longer than any test.
const LONG: Duration = Duration::from_secs(60);

fn accepted(task: &str) -> Value {
    let status = claim(task, LEASE, &json!({}))["status"].clone();
    json!({"taskId": task, "runId": 0, "status": status})
}

fn refused(task: &str, code: &str) -> Value {
    json!({"taskId": task, "runId": 0, "error": {"code": code, "message": "the test says no"}})
}

fn worked(results: &[Value], tasks: &[Value]) -> Reply {
    ok(json!({"results": results, "tasks": tasks}))
}

fn task(at: usize, script: &str) -> Value {
    claim(TASK_IDS[at], LEASE, &shell(script))
}

fn start(queue: Queue, capacity: usize) -> Running {
    Running::start_on(Plane::Claim, queue, capacity)
}

#[tokio::test]
async fn busy_worker_reports_and_claims_in_one_request() {
    let queue = Queue::start().await;
    queue.hand_out(&[task(0, "true")]);
    queue.once("/work", worked(&[accepted(TASK_IDS[0])], &[task(1, "exit 3")]));
    let malformed = claim(TASK_IDS[2], LEASE, &json!({"command": 1}));
    queue.once("/work", worked(&[accepted(TASK_IDS[1])], &[malformed]));
    queue.once("/work", worked(&[accepted(TASK_IDS[2])], &[]));
    let running = start(queue, 1);
    let requests = running.queue.wait_for("/work", 3).await;
    running.queue.wait_for("p%2Fw", 2).await;
    let completed = json!({"taskId": TASK_IDS[0], "runId": 0, "outcome": "completed"});
    let failed = json!({"taskId": TASK_IDS[1], "runId": 0, "outcome": "failed",
                        "failure": {"message": "exit code 3", "exitCode": 3}});
    let why = "malformed payload: payload.command must be a list, not empty, of commands";
    let malformed = json!({"taskId": TASK_IDS[2], "runId": 0, "outcome": "exception", "reason": "malformed-payload",
                           "failure": {"message": why, "kind": "malformed-payload"}});
    for (request, result) in requests.iter().zip([completed, failed, malformed]) {
        let body = json!({"taskQueueId": "p/w", "workerGroup": "g", "workerId": "w", "results": [result], "claim": 1, "wait": 0});
        assert_eq!((&request.body, request.signed_by.as_str()), (&body, "worker"));
        assert_eq!(request.call, "POST /api/tenure/v1/work");
    }
    assert_eq!(running.queue.reports().len(), 0);
    running.stop().await;
}

#[tokio::test]
async fn results_that_end_together_share_a_request() {
    let queue = Queue::start().await;
    queue.hand_out(&[0, 1].map(|at| task(at, "while ! test -e ../go; do sleep 0.05; done")));
    // The other run ends while the first result is being sent.
    queue.on("/work", move |request| {
        let results = request.body["results"].as_array().unwrap();
        let answers: Vec<Value> = results.iter().map(|result| accepted(result["taskId"].as_str().unwrap())).collect();
        Reply { after: Duration::from_millis(500), ..worked(&answers, &[]) }
    });
    let running = start(queue, 2);
    running.queue.wait_for("p%2Fw", 1).await;
    until("both run", || {
        let at = |n: usize| running.dir.path().join(format!("work/{}-0", TASK_IDS[n])).exists();
        (at(0) && at(1)).then_some(())
    })
    .await;
    std::fs::write(running.dir.path().join("work/go"), "").unwrap();
    running.queue.wait_for("p%2Fw", 2).await;
    let requests = running.queue.requests("/work");
    let results: usize = requests.iter().map(|request| request.body["results"].as_array().unwrap().len()).sum();
    assert_eq!((results, running.queue.reports().len()), (2, 0));
    assert!(requests.iter().all(|request| {
        let room = request.body["claim"].as_u64().unwrap();
        (1..=2).contains(&room)
    }));
    running.stop().await;
}

#[tokio::test]
async fn unanswered_result_is_reported_separately() {
    for unusable in [refuse(503), ok(json!({})), Reply { cut: true, ..Reply::default() }] {
        let queue = Queue::start().await;
        queue.hand_out(&[task(0, "true")]);
        queue.hand_out(&[task(1, "true")]);
        queue.once("/work", unusable);
        queue.once("/work", worked(&[accepted(TASK_IDS[1])], &[]));
        let running = start(queue, 1);
        running.queue.wait_for("/work", 2).await;
        let reports = running.queue.reports();
        assert_eq!((reports.len(), reports[0].signed_by.as_str()), (1, "task-0"));
        assert!(reports[0].call.contains(TASK_IDS[0]), "{}", reports[0].call);
        running.stop().await;
    }
}

#[tokio::test]
async fn report_is_retried_despite_retry_after() {
    let queue = Queue::start().await;
    queue.once("completed", Reply { headers: vec![("retry-after", "60".into())], ..refuse(503) });
    let running = Running::with_task(queue, LEASE, &shell("true")).await;
    running.queue.wait_for("completed", 2).await;
    running.stop().await;
}

#[tokio::test]
async fn report_is_retried_despite_long_pauses_of_client() {
    let queue = Queue::start().await;
    queue.hand_out(&[task(0, "true")]);
    queue.once("completed", refuse(503));
    let running = Running::with_settings(queue, |settings| {
        let client = settings.client.with_retry_policy(RetryPolicy::default().first_pause(LONG));
        Settings { client, ..settings }
    });
    let reports = running.queue.wait_for("completed", 2).await;
    let pause = reports[1].at - reports[0].at;
    assert!(pause < Duration::from_secs(10), "{pause:?}");
    running.stop().await;
}

#[tokio::test]
async fn slow_call_for_work_does_not_delay_results() {
    let queue = Queue::start().await;
    queue.hand_out(&[task(0, "true"), task(1, "sleep 1")]);
    // Less than the client's timeout.
    queue
        .once("/work", Reply { after: Duration::from_secs(8), ..worked(&[accepted(TASK_IDS[0])], &[task(2, "true")]) });
    let running = start(queue, 2);
    let reports = running.queue.wait_for("completed", 2).await;
    assert_eq!(running.queue.requests("/work").len(), 1, "another call before the answer");
    let of = |at: usize| reports.iter().filter(|report| report.call.contains(TASK_IDS[at])).count();
    assert_eq!((of(0), of(1)), (1, 1));
    let reports = running.queue.wait_for("completed", 3).await;
    assert!(reports[2].call.contains(TASK_IDS[2]), "{}", reports[2].call);
    running.stop().await;
}

#[tokio::test]
async fn refused_result_is_lost_and_failed_one_reported_again() {
    for (code, reports) in
        [("RequestConflict", 0), ("InsufficientScopes", 0), ("ResourceNotFound", 0), ("ServiceUnavailable", 1)]
    {
        let queue = Queue::start().await;
        queue.hand_out(&[task(0, "true")]);
        queue.once("/work", worked(&[refused(TASK_IDS[0], code)], &[]));
        let running = start(queue, 1);
        running.queue.wait_for("/work", 1).await;
        running.queue.wait_for("completed", reports).await;
        // The answer has arrived. A shutdown before it would report the result again.
        running.queue.wait_for("p%2Fw", 2).await;
        let queue = running.queue.clone();
        running.stop().await;
        assert_eq!(queue.reports().len(), reports, "{code}");
    }
}

/// Other servers of the Queue API do not know the field.
#[tokio::test]
async fn refused_failure_is_left_out_of_next_report() {
    let queue = Queue::start().await;
    queue.once("exception", refuse(400));
    let running = Running::with_task(queue, LEASE, &json!({"command": 1})).await;
    let reports = running.queue.wait_for("exception", 2).await;
    assert!(reports[0].body["failure"].is_object(), "{}", reports[0].body);
    assert_eq!(reports[1].body, json!({"reason": "malformed-payload"}));
    running.stop().await;
}

#[tokio::test]
async fn result_during_waiting_call_is_reported_at_once() {
    let queue = Queue::start().await;
    queue.hand_out(&[task(0, "while ! test -e ../go; do sleep 0.05; done")]);
    queue.on("p%2Fw", |_| Reply { after: LONG, ..ok(json!({"tasks": []})) });
    queue.on("/work", |_| worked(&[accepted(TASK_IDS[0])], &[]));
    let running = start(queue, 2);
    running.queue.wait_for("p%2Fw", 2).await;
    std::fs::write(running.dir.path().join("work/go"), "").unwrap();
    running.queue.wait_for("completed", 1).await;
    assert_eq!(running.queue.requests("/work").len(), 0);
    running.stop().await;
}

#[tokio::test]
async fn shutdown_does_not_wait_for_answer_to_result() {
    let queue = Queue::start().await;
    queue.hand_out(&[task(0, "true")]);
    queue.on("/work", |_| Reply { after: LONG, ..worked(&[accepted(TASK_IDS[0])], &[]) });
    let running = start(queue, 1);
    running.queue.wait_for("/work", 1).await;
    let queue = running.queue.clone();
    running.stop().await;
    let reports = queue.reports();
    assert_eq!(reports.len(), 1, "separate reports");
    assert!(reports[0].call.ends_with("completed"), "{}", reports[0].call);
}
