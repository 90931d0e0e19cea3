//! Authorization over real connections. Refused credentials are in `server/src/auth/tests.rs`.

use serde_json::{Value, json};
use tenure_tests::http::QUEUE_API;

use crate::accounts::lend;
use crate::rig::{
    Raw, RawReply, Rig, Signature, call, claim_path, credentials_of, definition, new_task, ok, run_of, worker,
};

const QUEUE: &str = "auth/queue";
const DENIED: &str = "InsufficientScopes";
const FAILED: &str = "AuthenticationFailed";

#[track_caller]
fn unauthenticated(reply: &RawReply) -> String {
    let message = reply.refused(401, FAILED);
    assert_eq!(reply.header("www-authenticate"), Some("hawk"));
    message
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scopes_allow_calls_and_refusal_names_missing_scope() {
    let rig = Rig::start().await;
    let submitter = rig
        .make_client(
            "ci/submitter",
            &["queue:create-task:high:auth/*", "queue:scheduler-id:-", "queue:create-task:project:none"],
        )
        .await;
    let mut client = rig.client();
    let body = |changes: Value| {
        let mut body = definition(QUEUE);
        body.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
        body
    };
    // The scope of a priority includes lower ones.
    for (changes, missing) in [
        (json!({"priority": "high"}), None),
        (json!({"priority": "lowest"}), None),
        (json!({"priority": "highest"}), Some("queue:create-task:highest:auth/queue")),
        (json!({"taskQueueId": "other/queue"}), Some("queue:create-task:lowest:other/queue")),
        (json!({"schedulerId": "other"}), Some("queue:scheduler-id:other")),
        (json!({"projectId": "other"}), Some("queue:create-task:project:other")),
        (json!({"routes": ["index.x"]}), Some("queue:route:index.x")),
        (json!({"scopes": ["secrets:get:x"]}), Some("secrets:get:x")),
    ] {
        let task = new_task();
        let answer = call(&mut client, &submitter, "PUT", &format!("/task/{task}"), Some(&body(changes.clone()))).await;
        match missing {
            None => assert_eq!(answer.status, 200, "{changes}: {}", answer.body),
            Some(scope) => {
                assert_eq!((answer.status, answer.code()), (403, DENIED), "{changes}: {}", answer.body);
                let message = answer.body["message"].as_str().unwrap();
                assert!(message.contains(scope) && message.contains("ci/submitter"), "{message}");
                assert_eq!(rig.call("GET", &format!("/task/{task}"), None).await.status, 404);
            }
        }
    }
    let another_worker = rig.make_client("w", &["queue:claim-work:auth/queue", "queue:worker-id:group/other"]).await;
    let answer = call(&mut client, &another_worker, "POST", &claim_path(QUEUE), Some(&worker(1))).await;
    assert_eq!(answer.status, 403, "{}", answer.body);
    assert!(answer.body["message"].as_str().unwrap().contains("queue:worker-id:group/worker"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_header_may_be_longer_than_four_kilobytes() {
    let rig = Rig::start().await;
    let scopes: Vec<String> = (0..300).map(|n| format!("queue:claimed-count:auth/queue-number-{n}")).collect();
    let scopes: Vec<&str> = scopes.iter().map(String::as_str).collect();
    let lent = lend(&rig.root, &scopes);
    let target = format!("{QUEUE_API}/task-queues/auth%2Fqueue-number-299/counts");
    let header = Signature { who: &lent, target: &target, ..Signature::of(&rig.server) }.header();
    assert!(header.len() > 4_096, "{}", header.len());
    let reply = rig.send(&Raw::new("GET", &target).authorization(&header)).await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    // A task with as many or as long scopes as allowed: its worker gets usable credentials.
    let longest: Vec<String> = (10..30).map(|n| format!("{n}{}", "x".repeat(4_090))).collect();
    for scopes in [json!(scopes), json!(longest)] {
        let mut body = definition(QUEUE);
        body["scopes"] = scopes;
        assert_eq!(rig.create(new_task(), &body).await.status, 200);
        let claims = rig.claim(QUEUE, 1).await;
        let who = credentials_of(&claims[0]);
        ok(call(&mut rig.client(), &who, "POST", &format!("{}/completed", run_of(&claims[0])), None).await);
    }
    let mut body = definition(QUEUE);
    body["scopes"] = json!([longest, vec!["x".to_owned()]].concat());
    let refused = rig.create(new_task(), &body).await;
    assert_eq!((refused.status, &refused.body["code"]), (400, &json!("InputValidationError")), "{}", refused.body);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn escaped_and_plain_queue_paths_are_signed_as_sent() {
    let rig = Rig::start().await;
    let path = |queue: &str| [format!("/pending/{queue}"), format!("/task-queues/{queue}/counts")];
    rig.create_one(QUEUE).await;
    for spelling in ["auth%2Fqueue", "auth%2fqueue", "auth/queue", "%61uth/queue"] {
        for path in path(spelling) {
            let target = format!("{QUEUE_API}{path}");
            let header = Signature { who: &rig.root, target: &target, ..Signature::of(&rig.server) }.header();
            let reply = rig.send(&Raw::new("GET", &target).authorization(&header)).await;
            assert_eq!(reply.status, 200, "{path}: {}", reply.text());
            let body = reply.json();
            assert_eq!((&body["taskQueueId"], &body["pendingTasks"]), (&json!(QUEUE), &json!(1)), "{path}");
        }
        let body = worker(1).to_string();
        let claim = rig.signed(&rig.root, "POST", &format!("/claim-work/{spelling}"), Some(body.as_bytes()));
        let reply = rig.send(&claim).await;
        assert_eq!((reply.status, reply.json()["tasks"].as_array().unwrap().len()), (200, 1), "{spelling}");
        rig.create_one(QUEUE).await;
    }
    let target = format!("{QUEUE_API}/pending/auth%2Fqueue");
    let header = Signature { who: &rig.root, target: &target, ..Signature::of(&rig.server) }.header();
    unauthenticated(
        &rig.send(&Raw::new("GET", &format!("{QUEUE_API}/pending/auth/queue")).authorization(&header)).await,
    );
}
