//! The event log over HTTP: exchanges, routing keys, payloads, positions.

use serde_json::{Value, json};
use tenure_tests::http::{QUEUE_API, TENURE_API};

use crate::rig::{Rig, credentials_of, definition, new_task, ok, run_of};

async fn events(rig: &Rig, after: i64, limit: usize) -> Vec<Value> {
    let path = format!("{TENURE_API}/events?after={after}&limit={limit}");
    let answer = ok(rig.call("GET", &path, None).await);
    answer["events"].as_array().unwrap().clone()
}

fn exchange(event: &Value) -> &str {
    event["exchange"].as_str().unwrap().strip_prefix("exchange/taskcluster-queue/v1/").unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_of_task_are_ordered_and_show_its_state_then() {
    let rig = Rig::start().await;
    let task = new_task();
    let mut asked = definition("event/log");
    asked["routes"] = json!(["index.a.b", "notify.x"]);
    asked["tags"] = json!({"kind": "build"});
    assert_eq!(rig.create(task, &asked).await.status, 200);
    let first = rig.claim("event/log", 1).await.remove(0);
    rig.report(&first, "exception", Some(&json!({"reason": "intermittent-task"}))).await;
    let second = rig.claim("event/log", 1).await.remove(0);
    rig.report(&second, "completed", None).await;

    let log = events(&rig, 0, 100).await;
    let positions: Vec<i64> = log.iter().map(|event| event["position"].as_i64().unwrap()).collect();
    assert_eq!(positions, (1..=8).collect::<Vec<_>>(), "positions have no gaps");
    let (group, log) = log.split_last().unwrap();
    assert_eq!(exchange(group), "task-group-resolved");
    let emitted: Vec<(&str, &Value, &Value, usize)> = log
        .iter()
        .map(|event| {
            let status = &event["payload"]["status"];
            (exchange(event), &event["payload"]["runId"], &status["state"], status["runs"].as_array().unwrap().len())
        })
        .collect();
    let text = |word: &str| json!(word);
    assert_eq!(
        emitted,
        [
            ("task-defined", &Value::Null, &text("unscheduled"), 0),
            ("task-pending", &json!(0), &text("pending"), 1),
            ("task-running", &json!(0), &text("running"), 1),
            // The status of a retried exception already shows the new run.
            ("task-exception", &json!(0), &text("pending"), 2),
            ("task-pending", &json!(1), &text("pending"), 2),
            ("task-running", &json!(1), &text("running"), 2),
            ("task-completed", &json!(1), &text("completed"), 2),
        ]
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_event_has_its_routing_key_its_cc_routes_and_its_payload() {
    let rig = Rig::start().await;
    let task = new_task();
    let mut asked = definition("event/log");
    asked["routes"] = json!(["index.a.b", "notify.x"]);
    asked["tags"] = json!({"kind": "build"});
    asked["schedulerId"] = json!("sched");
    assert_eq!(rig.create(task, &asked).await.status, 200);
    let claim = rig.claim("event/log", 1).await.remove(0);
    let log = events(&rig, 2, 1).await;
    let running = &log[0];
    assert_eq!(exchange(running), "task-running");
    assert_eq!(running["routingKey"], json!(format!("primary.{task}.0.group.worker.event.log.sched.{task}._")));
    assert_eq!(running["cc"], json!(["route.index.a.b", "route.notify.x"]));
    let payload = &running["payload"];
    assert_eq!(payload["version"], 1);
    assert_eq!(payload["workerGroup"], "group");
    assert_eq!(payload["workerId"], "worker");
    assert_eq!(payload["takenUntil"], claim["takenUntil"]);
    assert_eq!(payload["status"], claim["status"]);
    assert_eq!(payload["task"], json!({"tags": {"kind": "build"}}));
    // A renewal is no event, and does not change earlier events.
    let path = format!("{QUEUE_API}{}/reclaim", run_of(&claim));
    let renewed = rig.client().call(&credentials_of(&claim), "POST", &path, None).await.unwrap();
    assert_eq!(renewed.status, 200);
    assert_eq!(events(&rig, 2, 10).await, log);
    let defined = &events(&rig, 0, 1).await[0];
    assert_eq!(defined["routingKey"], json!(format!("primary.{task}._._._.event.log.sched.{task}._")));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn expired_cursor_gets_410_with_oldest_position() {
    let rig = Rig::start().await;
    for _ in 0..5 {
        rig.create_one("event/log").await;
    }
    assert_eq!(events(&rig, 0, 100).await.len(), 10);
    let mut database = rig.database.connect("test").await;
    // A purge retains what a reader has not processed yet, and the next one is a minute later.
    crate::rig::eventually("the passes process eight events", async || {
        let processed: i64 =
            sqlx::query_scalar("SELECT min(position) FROM log_readers").fetch_one(&mut database).await.unwrap();
        (processed >= 8).then_some(())
    })
    .await;
    sqlx::query("UPDATE outbox SET at = at - interval '8 days' WHERE id < (SELECT max(id) FROM outbox)")
        .execute(&mut database)
        .await
        .unwrap();
    // Old events are purged once a minute, and when a server starts.
    let _second = rig.another("second").await;
    let gone = crate::rig::eventually("the old events are purged", async || {
        let answer = rig.call("GET", &format!("{TENURE_API}/events?after=0"), None).await;
        (answer.status == 410).then_some(answer)
    })
    .await;
    assert_eq!(gone.code(), "ResourceExpired");
    let message = gone.body["message"].as_str().unwrap();
    assert!(message.contains("after=8"), "{message}");
    assert_eq!(events(&rig, 8, 100).await.len(), 2);
}
