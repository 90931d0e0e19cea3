//! Typed jobs and their handles.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tenure_client::{EnqueueError, Error, OnDuplicate, RawValue, ResultError, RetryPolicy, State};

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
async fn full_queue_is_retried_when_it_says() {
    let queue = Queue::start().await;
    queue.on("/tasks", created);
    let full = json!({"code": "BacklogLimitReached", "message": "queue acme/mail has 5 tasks"});
    let full = move || Reply { headers: vec![("retry-after", "1".into())], body: full.clone(), ..refuse(429) };
    queue.once("/tasks", full());
    queue.once("/tasks", full());
    let mail = client(&queue).queue("acme/mail");
    let begun = Instant::now();
    mail.enqueue(&json!({"to": "a"})).await.unwrap();
    assert!(begun.elapsed() >= Duration::from_secs(2));
    let requests = queue.requests("/tasks");
    assert_eq!(requests.len(), 3);
    assert!(requests.iter().all(|request| key(request) == key(&requests[0])));

    queue.on("/tasks", move |_| full());
    let impatient = client(&queue).with_retry_policy(RetryPolicy::never()).queue("acme/mail");
    let EnqueueError::Request(refused) = impatient.enqueue(&json!({})).await.unwrap_err() else { panic!("a request") };
    assert_eq!((refused.status(), refused.retry_after()), (Some(429), Some(Duration::from_secs(1))));
}

#[tokio::test]
async fn duplicate_names_its_holder() {
    let queue = Queue::start().await;
    let mail = client(&queue).queue("acme/mail");
    let mut refusal = json!({"code": "DuplicateTask", "message": "the task has the name\n---\nmore"});
    for (holder, entry, expected) in [
        (json!(TASK_IDS[1]), json!("nightly"), Some((Some("nightly"), "the task has the name"))),
        (json!(TASK_IDS[1]), json!(7), Some((Some("7"), "the task has the name"))),
        (json!(TASK_IDS[1]), json!(null), Some((None, "the task has the name"))),
        (json!(7), json!(0), None),
    ] {
        (refusal["taskId"], refusal["entry"]) = (holder, entry);
        queue.once("/tasks", Reply { body: refusal.clone(), ..refuse(409) });
        let refused = mail.enqueue(&json!({})).unique("nightly").await.unwrap_err();
        let EnqueueError::Request(error) = refused else { panic!("a request") };
        assert_eq!((error.status(), error.is_transient()), (Some(409), false));
        let read = match &error {
            Error::DuplicateTask { holder, entry, message } => {
                assert_eq!(holder.to_string(), TASK_IDS[1]);
                Some((entry.as_deref(), message.as_str()))
            }
            _ => None,
        };
        assert_eq!(read, expected, "{error:?}");
    }
    assert_eq!(queue.requests("/tasks")[0].body["tasks"][0]["options"], json!({"unique": "nightly"}));
    assert_eq!(queue.requests("/tasks").len(), 4, "a duplicate is not retried");
}

#[tokio::test]
async fn coalesced_job_has_handle_of_its_holder() {
    let queue = Queue::start().await;
    let entry = json!({"taskId": TASK_IDS[1], "status": {}, "deduplicated": true});
    queue.on("/tasks", move |_| ok(json!({"taskGroupId": TASK_IDS[0], "tasks": [entry]})));
    let job = client(&queue).queue("acme/mail").enqueue(&json!({}));
    let handle = job.unique("nightly").on_duplicate(OnDuplicate::Coalesce).await.unwrap();
    assert_eq!(handle.task_id().to_string(), TASK_IDS[1]);
    let options = &queue.requests("/tasks")[0].body["tasks"][0]["options"];
    assert_eq!(options, &json!({"unique": "nightly", "onDuplicate": "coalesce"}));
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
    // And at most 200 names.
    let named = (0..201).map(|n| numbers.enqueue(&json!({})).unique(&format!("name-{n}")));
    client.enqueue_all(named.chain([numbers.enqueue(&json!({}))])).await.unwrap();
    assert_eq!(sizes(&queue)[4..], [200, 2]);
    assert!(numbers.enqueue_all([(); 0]).await.unwrap().is_empty());
    assert_eq!(queue.requests("/tasks").len(), 6);
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
