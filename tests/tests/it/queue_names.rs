//! Short names of queues in Tenure's own API, and refusals of invalid ones.

use serde_json::{Value, json};
use tenure_tests::http::TENURE_API;

use crate::rig::{Rig, call, definition, new_task, ok};

const FULL: &str = "default/mail";

fn path(rest: &str) -> String {
    format!("{TENURE_API}/{rest}")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn short_name_means_the_default_provisioner() {
    let rig = Rig::start().await;
    let policy = json!({"completeTime": 600});
    assert_eq!(ok(rig.call("PUT", &path("queues/mail/policy"), Some(&policy)).await)["taskQueueId"], FULL);
    assert_eq!(ok(rig.call("GET", &path("queues/default%2Fmail/policy"), None).await)["policy"], policy);
    let created = ok(rig.call("POST", &path("tasks"), Some(&json!({"taskQueueId": "mail"}))).await);
    assert_eq!(created["tasks"][0]["status"]["taskQueueId"], FULL);
    let queue = ok(rig.call("GET", &path("queues/mail"), None).await);
    assert_eq!((&queue["taskQueueId"], &queue["pending"]), (&json!(FULL), &json!(1)));
    let session = rig.start_session("mail", "worker", json!({})).await;
    let workers = ok(rig.call("GET", &path("queues/mail/workers"), None).await);
    assert_eq!(workers["workers"][0]["sessionId"], json!(session));
    let round = json!({"taskQueueId": "mail", "workerGroup": "group", "workerId": "worker", "claim": 1, "wait": 0});
    let claimed = ok(rig.call("POST", &path("work"), Some(&round)).await);
    assert_eq!(claimed["tasks"][0]["task"]["taskQueueId"], FULL);
    assert_eq!(rig.call("DELETE", &path("queues/mail/policy"), None).await.status, 200);
    let removed = rig.call("POST", &path("workers/mail/group/worker/removed"), None).await;
    assert_eq!((removed.status, &removed.body["claimsEnded"]), (200, &json!(1)), "{}", removed.body);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scopes_name_the_full_queue() {
    let rig = Rig::start().await;
    let full = rig.make_client("full", &["tenure:get-queue:default/mail"]).await;
    let short = rig.make_client("short", &["tenure:get-queue:mail", "tenure:get-queue:mail*"]).await;
    for (who, status) in [(&full, 200), (&short, 403)] {
        let answer = call(&mut rig.client(), who, "GET", &path("queues/mail"), None).await;
        assert_eq!(answer.status, status, "{}", answer.body);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn invalid_name_is_refused_with_suggestion() {
    let rig = Rig::start().await;
    let me = |queue: &str| json!({"taskQueueId": queue, "workerGroup": "group", "workerId": "worker"});
    let refused = async |method: &str, rest: &str, body: Option<Value>, code: &str| {
        let answer = rig.call(method, &path(rest), body.as_ref()).await;
        let message = answer.body["message"].as_str().unwrap().to_owned();
        assert_eq!((answer.status, answer.code()), (400, code), "{message}");
        assert!(message.contains("taskQueueId") && message.contains("a-z, 0-9 and -"), "{message}");
        message
    };
    for (rest, body) in [
        ("tasks", json!({"taskQueueId": "web/send_email"})),
        ("tasks", json!({"tasks": [{"taskQueueId": "web/send_email"}]})),
        ("sessions", me("web/send_email")),
        ("work", me("web/send_email")),
    ] {
        let message = refused("POST", rest, Some(body), "InputValidationError").await;
        assert!(message.contains(r#"Try "web/send-email""#), "{message}");
    }
    let message = refused("GET", "queues/send_email", None, "InvalidRequestArguments").await;
    assert!(message.contains(r#"Try "send-email""#), "{message}");
    assert_eq!(rig.call("GET", &path("queues"), None).await.body["queues"], json!([]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn taskclusters_operations_demand_full_names() {
    let rig = Rig::start().await;
    let created = rig.create(new_task(), &definition("mail")).await;
    assert_eq!((created.status, created.code()), (400, "InputValidationError"));
    let counts = json!({"taskQueueIds": ["mail"]});
    for (method, path, body) in [
        ("POST", "/claim-work/mail", Some(json!({"workerGroup": "group", "workerId": "worker", "tasks": 1}))),
        ("GET", "/pending/mail", None),
        ("GET", "/task-queues/mail", None),
        ("GET", "/api/worker-manager/v1/workers/mail/group/worker", None),
        ("GET", "/api/purge-cache/v1/purge-cache/mail", None),
    ] {
        let answer = rig.call(method, path, body.as_ref()).await;
        assert_eq!((answer.status, answer.code()), (400, "InvalidRequestArguments"), "{path}: {}", answer.body);
    }
    let answer = rig.call("POST", "/task-queues/counts", Some(&counts)).await;
    assert_eq!((answer.status, answer.code()), (400, "InputValidationError"));
}
