//! Typed jobs and their handles.

use serde_json::{Value, json};
use tenure_client::{EnqueueError, Error, RawValue, ResultError, State};

use crate::consumer::client;
use crate::queue::{Queue, RecordedRequest, Reply, TASK_IDS, ok, refuse};

/// Every task gets the same id.
fn created(request: &RecordedRequest) -> Reply {
    let tasks: Vec<Value> = request.body["tasks"]
        .as_array()
        .unwrap()
        .iter()
        .map(|_| json!({"taskId": TASK_IDS[0], "status": {}}))
        .collect();
    ok(json!({"taskGroupId": TASK_IDS[0], "tasks": tasks}))
}

fn key(request: &RecordedRequest) -> String {
    request.headers["idempotency-key"].to_str().unwrap().to_owned()
}

fn waited(state: &str, reason: &str, more: &Value) -> Reply {
    let run = json!({"runId": 0, "state": state, "reasonCreated": "scheduled", "reasonResolved": reason});
    let status = json!({"taskId": TASK_IDS[0], "state": state, "retriesLeft": 5, "runs": [run]});
    let mut answer = json!({"status": status, "resolved": true});
    answer.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    ok(answer)
}

#[tokio::test]
async fn unanswered_job_is_repeated_with_its_key() {
    let queue = Queue::start().await;
    queue.on("/tasks", created);
    queue.once("/tasks", refuse(503));
    queue.once("/tasks", Reply { cut: true, ..Reply::default() });
    let mail = client(&queue).queue("acme/mail");
    let handle = mail.enqueue(&json!({"to": "a"})).kind("send").retries(3).await.unwrap();
    assert_eq!(handle.task_id().to_string(), TASK_IDS[0]);
    let requests = queue.requests("/tasks");
    let payload = json!({"kind": "send", "args": {"to": "a"}});
    let task = json!({"taskQueueId": "acme/mail", "payload": payload, "metadata": {"name": "send"}, "retries": 3});
    assert_eq!((requests.len(), &requests[0].body), (3, &json!({"tasks": [task]})));
    assert!(requests.iter().all(|request| request.body == requests[0].body && key(request) == key(&requests[0])));
    mail.enqueue(&json!({})).await.unwrap();
    mail.enqueue(&json!({})).once("own").await.unwrap();
    let requests = queue.requests("/tasks");
    assert_ne!(key(&requests[3]), key(&requests[0]));
    assert_eq!((requests.len(), key(&requests[4]).as_str()), (5, "own"));
}

#[tokio::test]
async fn jobs_are_added_by_batches() {
    let queue = Queue::start().await;
    queue.on("/tasks", created);
    let client = client(&queue);
    let numbers = client.queue("acme/numbers");
    let handles = numbers.enqueue_all((0..1_001).map(|number| json!({ "number": number }))).await.unwrap();
    let sizes = |queue: &Queue| -> Vec<usize> {
        queue.requests("/tasks").iter().map(|request| request.body["tasks"].as_array().unwrap().len()).collect()
    };
    assert_eq!((handles.len(), sizes(&queue)), (1_001, vec![1_000, 1]));
    assert_eq!(queue.requests("/tasks")[1].body["tasks"][0]["payload"], json!({"number": 1_000}));
    // A server refuses larger bodies.
    let large = json!({"text": "x".repeat(3 << 20)});
    client.enqueue_all((0..3).map(|_| numbers.enqueue(&large))).await.unwrap();
    assert_eq!(sizes(&queue)[2..], [2, 1]);
    assert!(numbers.enqueue_all([(); 0]).await.unwrap().is_empty());
    assert_eq!(queue.requests("/tasks").len(), 4);
}

#[tokio::test]
async fn refused_batch_names_earlier_jobs() {
    let queue = Queue::start().await;
    queue.on(
        "/tasks",
        |request| if request.body["tasks"][0]["payload"]["n"] == 0 { created(request) } else { refuse(403) },
    );
    let numbers = client(&queue).queue("acme/numbers");
    let refused = numbers.enqueue_all((0..2_500).map(|n| json!({ "n": n }))).await.unwrap_err();
    assert_eq!((refused.enqueued.len(), queue.requests("/tasks").len()), (1_000, 2));
    assert!(matches!(refused.error, EnqueueError::Request(Error::Refused { status: 403, .. })), "{:?}", refused.error);
}

#[tokio::test]
async fn result_is_awaited_and_read() {
    let queue = Queue::start().await;
    queue.once(
        "/wait",
        ok(json!({"status": {"taskId": TASK_IDS[0], "state": "running", "retriesLeft": 5, "runs": []},
                                  "resolved": false})),
    );
    queue.on("/wait", |_| waited("completed", "completed", &json!({"result": ["a", 1]})));
    let handle = client(&queue).handle(TASK_IDS[0].parse().unwrap());
    assert_eq!(handle.result::<(String, u8)>().await.unwrap(), ("a".to_owned(), 1));
    assert_eq!(queue.requests("/wait").len(), 2);
    assert_eq!(queue.requests("/wait")[0].query, "seconds=60");
    assert!(matches!(handle.result::<u8>().await, Err(ResultError::OtherType { .. })));
}

#[tokio::test]
async fn absent_result_is_null_unless_refused() {
    let queue = Queue::start().await;
    queue.on("/wait", |_| waited("completed", "completed", &json!({})));
    let missing = json!({"code": "ResourceNotFound", "message": "it has neither result nor failure"});
    queue.on("/result", move |_| Reply { status: 404, body: missing.clone(), ..Reply::default() });
    let handle = client(&queue).handle(TASK_IDS[0].parse().unwrap());
    handle.result::<()>().await.unwrap();
    assert!(matches!(handle.result::<u8>().await, Err(ResultError::OtherType { .. })));
    queue.on("/result", |_| refuse(403));
    let refused = handle.result::<()>().await;
    assert!(matches!(refused, Err(ResultError::Request(Error::Refused { status: 403, .. }))), "{refused:?}");
}

#[tokio::test]
async fn job_without_success_has_no_result() {
    let queue = Queue::start().await;
    let handle = client(&queue).handle(TASK_IDS[0].parse().unwrap());
    let failure = json!({"message": "no such mailbox", "kind": "MailError", "somethingNew": 1});
    let reported = json!({"failure": failure, "result": {"tried": ["a", "b"]}});
    for (state, is_state, why, more, text, partial) in [
        ("failed", State::Failed, "failed", &reported, "failed: no such mailbox", Some(r#"{"tried":["a","b"]}"#)),
        ("exception", State::Exception, "canceled", &json!({}), "canceled", None),
    ] {
        queue.once("/wait", waited(state, why, more));
        let error = handle.result::<()>().await.unwrap_err();
        assert_eq!(error.to_string(), format!("task {} ended as {text}", TASK_IDS[0]));
        let ResultError::NotCompleted { state, result, .. } = error else { panic!("{error:?}") };
        assert_eq!((state, result.as_deref().map(RawValue::get)), (is_state, partial));
    }
    queue.on("/cancel", |_| {
        ok(json!({"status": {"taskId": TASK_IDS[0], "state": "exception", "retriesLeft": 5, "runs": []}}))
    });
    assert_eq!(handle.cancel().await.unwrap().state, State::Exception);
    assert_eq!(queue.requests("/cancel")[0].call, format!("POST /api/queue/v1/task/{}/cancel", TASK_IDS[0]));
}
