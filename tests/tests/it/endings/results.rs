//! Results over HTTP: their readers, and invalid bodies.

use super::*;
use crate::rig::{Raw, Signature};

fn result_path(task: SlugId, query: &str) -> String {
    format!("{TENURE_API}/tasks/{task}/result{query}")
}

async fn read(rig: &Rig, task: SlugId) -> Answer {
    rig.call("GET", &result_path(task, ""), None).await
}

async fn claimed(rig: &Rig) -> (SlugId, Value) {
    let task = create(rig, 1).await[0];
    (task, claim_as(rig, "w1", 1).await.remove(0))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn result_is_stored_with_report_and_needs_read_scope() {
    let rig = Rig::start().await;
    let reader = rig.make_client("reader", &[&format!("tenure:get-result:{QUEUE}"), "queue:status:*"]).await;
    let watcher = rig.make_client("watcher", &["tenure:get-result:endings/other", "queue:status:*"]).await;
    for (what, state) in [("completed", "completed"), ("failed", "failed")] {
        let (task, claim) = claimed(&rig).await;
        assert_eq!(read(&rig, task).await.code(), "ResourceNotFound", "not before the report");
        let returned = json!({"rows": 12, "text": "ä \u{0} \"", "list": [1.50, null]});
        let reported = of_run(&rig, &claim, what, Some(&json!({"result": returned}))).await;
        assert_eq!((reported.status, &reported.body["status"]["state"]), (200, &json!(state)), "{}", reported.body);
        let expected = json!({"taskId": task, "runId": 0, "state": state, "result": returned});
        for query in ["", "?runId=0"] {
            let answer = call(&mut rig.client(), &reader, "GET", &result_path(task, query), None).await;
            assert_eq!((answer.status, &answer.body), (200, &expected));
        }
        let refused = call(&mut rig.client(), &watcher, "GET", &result_path(task, ""), None).await;
        assert_eq!((refused.status, refused.code()), (403, "InsufficientScopes"));
        for (query, status) in [("?runId=1", 404), ("?runId=x", 400), ("?other=1", 400)] {
            assert_eq!(rig.call("GET", &result_path(task, query), None).await.status, status, "{query}");
        }
        let wait = format!("{TENURE_API}/tasks/{task}/wait?seconds=0");
        let seen = call(&mut rig.client(), &reader, "GET", &wait, None).await;
        assert_eq!((seen.status, &seen.body["result"]), (200, &returned));
        let seen = call(&mut rig.client(), &watcher, "GET", &wait, None).await;
        assert_eq!((seen.status, &seen.body["resolved"], seen.body.get("result")), (200, &json!(true), None));
    }
    assert_eq!(read(&rig, new_task()).await.code(), "ResourceNotFound");
}

async fn send(rig: &Rig, claim: &Value, what: &str, body: Option<&str>) -> (u16, Value) {
    let target = format!("/api/queue/v1{}/{what}", run_of(claim));
    let who = credentials_of(claim);
    let signature = Signature { who: &who, method: "POST", target: &target, ..Signature::of(&rig.server) };
    let raw = Raw::new("POST", &target).authorization(&signature.header()).json(body.map(str::as_bytes));
    let reply = rig.send(&raw).await;
    (reply.status, reply.json()["status"]["state"].clone())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unreadable_result_is_refused_and_spaces_do_not_count() {
    let rig = Rig::start().await;
    let (task, claim) = claimed(&rig).await;
    for lost in [r#"{"result": 1, "result": 2}"#, r#"{"result": "#] {
        assert_eq!(send(&rig, &claim, "completed", Some(lost)).await.0, 400, "{lost}");
    }
    assert_eq!(rig.status(task).await["state"], "running");
    let longest = "x".repeat(65_534);
    let spaces = format!("{{\"result\": \"{longest}\"  \n}}");
    assert_eq!(send(&rig, &claim, "completed", Some(&spaces)).await, (200, json!("completed")));
    assert_eq!(read(&rig, task).await.body["result"], longest);
}
