//! New features while a server of the previous release is connected to the database.

use serde_json::{Value, json};
use sqlx::Connection as _;
use tenure_engine::gate::NEEDED;
use tenure_tests::http::{TENURE_API, queue_segment};

use crate::rig::{Rig, definition, eventually, new_task, ok};

const QUEUE: &str = "older/linux";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn new_features_wait_for_upgrade_of_older_server() {
    let rig = Rig::start().await;
    let older = rig.database.connect(&format!("tenure/{} tick", NEEDED - 1)).await;
    let policy = format!("{TENURE_API}/queues/{}/policy", queue_segment(QUEUE));
    let schedule = format!("{TENURE_API}/schedules/nightly");
    let partition = format!("{TENURE_API}/partitions/mail");
    let [task, named] = [(); 2].map(|()| format!("/task/{}", new_task()));
    let tasks = format!("{TENURE_API}/tasks");
    let with_options = |options: Value| {
        let mut task = definition(QUEUE);
        task["extra"] = json!({"tenure": options});
        task
    };
    let requests = [
        ("PUT", &policy, json!({"retryFailed": true})),
        ("PUT", &policy, json!({"deadlineAfter": 3600})),
        ("PUT", &schedule, json!({"cron": "0 3 * * *", "task": {"taskQueueId": QUEUE}})),
        ("PUT", &partition, json!({})),
        ("PUT", &policy, json!({"partition": "mail"})),
        ("PUT", &policy, json!({"retain": {"completed": 3600}})),
        ("PUT", &policy, json!({"onDuplicate": "queue"})),
        ("PUT", &policy, json!({"backlog": {"tasks": 1_000}})),
        ("PUT", &policy, json!({"lateResult": "first-wins"})),
        ("PUT", &task, with_options(json!({"retryFailed": true}))),
        ("PUT", &named, with_options(json!({"unique": "created"}))),
        ("POST", &tasks, json!({"taskQueueId": QUEUE, "options": {"retryFailed": true}})),
        ("POST", &tasks, json!({"taskQueueId": QUEUE, "options": {"unique": "submitted"}})),
    ];
    for (method, path, body) in &requests {
        let refused = rig.call(method, path, Some(body)).await;
        assert_eq!((refused.status, refused.code()), (409, "RequestConflict"), "{body}");
        let message = refused.body["message"].as_str().unwrap();
        assert!(message.contains("a server of an older release is connected"), "{message}");
    }
    for (what, body) in [
        ("failed", json!({"failure": {"message": "m"}})),
        ("exception", json!({"reason": "malformed-payload", "failure": {"message": "m"}})),
    ] {
        let reported = rig.create_one(QUEUE).await;
        let claim = rig.claim(QUEUE, 1).await.remove(0);
        rig.report(&claim, what, Some(&body)).await;
        let result = rig.call("GET", &format!("{TENURE_API}/tasks/{reported}/result"), None).await;
        assert_eq!(result.code(), "ResourceNotFound", "the failure is left out: {}", result.body);
    }
    older.close().await.unwrap();
    let (method, path, body) = &requests[0];
    eventually("the first use succeeds", async || {
        (rig.call(method, path, Some(body)).await.status == 200).then_some(())
    })
    .await;
    for (method, path, body) in &requests {
        ok(rig.call(method, path, Some(body)).await);
    }
}
