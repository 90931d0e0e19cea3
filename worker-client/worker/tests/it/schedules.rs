//! Schedules, as the client sends them.

use std::time::Duration;

use serde_json::json;
use tenure_client::{CatchUp, EnqueueError, Error, OnDuplicate};

use crate::consumer::client;
use crate::queue::{Queue, Reply, TASK_IDS, ok, refuse};

const PATH: &str = "/api/tenure/v1/schedules/nightly";

#[tokio::test]
async fn schedule_has_pattern_and_job() {
    let queue = Queue::start().await;
    queue.on("/nightly", |_| ok(json!({"name": "nightly", "next": ["2027-01-31T02:00:00.000Z"]})));
    let reports = client(&queue).queue("acme/reports");
    let report = reports.enqueue(&json!({"of": "yesterday"})).kind("report").unique("nightly");
    let report = report.on_duplicate(OnDuplicate::Queue).deadline(Duration::from_millis(3_599_500));
    let schedule = report.schedule("nightly", "0 3 * * *").timezone("Europe/Berlin").catch_up(CatchUp::All);
    assert_eq!(schedule.await.unwrap()["next"][0], "2027-01-31T02:00:00.000Z");
    reports.enqueue(&json!({})).schedule("nightly", "@daily").await.unwrap();

    let requests = queue.requests("/nightly");
    assert!(requests.iter().all(|request| request.call == format!("PUT {PATH}")), "{requests:?}");
    let task = json!({
        "taskQueueId": "acme/reports",
        "payload": {"kind": "report", "args": {"of": "yesterday"}},
        "metadata": {"name": "report"},
        "options": {"unique": "nightly", "onDuplicate": "queue"},
    });
    let full = json!({"cron": "0 3 * * *", "timezone": "Europe/Berlin", "task": task, "deadlineAfter": 3600,
        "catchUp": "all"});
    assert_eq!(requests[0].body, full);
    let plain = json!({"cron": "@daily", "task": {"taskQueueId": "acme/reports", "payload": {}}});
    assert_eq!(requests[1].body, plain);

    let wrong = client(&queue).queue("a/b/c").enqueue(&json!({})).schedule("nightly", "@daily").await;
    assert!(matches!(wrong, Err(EnqueueError::Queue(_))), "{wrong:?}");
    assert_eq!(queue.requests("/nightly").len(), 2);
}

#[tokio::test]
async fn lost_trigger_is_repeated_with_its_key() {
    let queue = Queue::start().await;
    queue.once("/trigger", Reply { cut: true, ..Reply::default() });
    queue.on("/trigger", |_| ok(json!({"taskId": TASK_IDS[1]})));
    let client = client(&queue);
    assert_eq!(client.trigger_schedule("nightly").await.unwrap().task_id().to_string(), TASK_IDS[1]);
    client.trigger_schedule("nightly").await.unwrap();
    let requests = queue.requests("/trigger");
    assert!(requests.iter().all(|request| request.call == format!("POST {PATH}/trigger")), "{requests:?}");
    let keys: Vec<&str> = requests.iter().map(|request| request.headers["idempotency-key"].to_str().unwrap()).collect();
    assert_eq!(keys.len(), 3);
    assert!(keys[0] == keys[1] && keys[1] != keys[2], "{keys:?}");

    let body = json!({"code": "DuplicateTask", "message": "it has the name", "taskId": TASK_IDS[1]});
    queue.once("/trigger", Reply { body, ..refuse(409) });
    let refused = client.trigger_schedule("nightly").await.unwrap_err();
    assert!(
        matches!(&refused, Error::DuplicateTask { holder, .. } if holder.to_string() == TASK_IDS[1]),
        "{refused:?}"
    );
}

#[tokio::test]
async fn schedules_are_read_paused_and_deleted() {
    let queue = Queue::start().await;
    let client = client(&queue);
    client.get_schedule("a/b c").await.unwrap();
    client.pause_schedule("nightly").await.unwrap();
    client.resume_schedule("nightly").await.unwrap();
    client.delete_schedule("nightly").await.unwrap();
    for continuation in [None, Some("a/b")] {
        client.list_schedules(continuation).await.unwrap();
    }
    let calls: Vec<(String, String)> =
        queue.requests("").into_iter().map(|request| (request.call, request.query)).collect();
    let expected = [
        ("GET /api/tenure/v1/schedules/a%2Fb%20c", ""),
        ("POST /api/tenure/v1/schedules/nightly/pause", ""),
        ("POST /api/tenure/v1/schedules/nightly/resume", ""),
        ("DELETE /api/tenure/v1/schedules/nightly", ""),
        ("GET /api/tenure/v1/schedules", ""),
        ("GET /api/tenure/v1/schedules", "continuationToken=a%2Fb"),
    ];
    assert_eq!(calls, expected.map(|(call, query)| (call.to_owned(), query.to_owned())));
}
