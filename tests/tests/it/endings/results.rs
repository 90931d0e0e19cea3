//! Results and failures over HTTP: their readers, and invalid bodies.

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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failure_is_stored_with_report_and_needs_read_scope() {
    let rig = Rig::start().await;
    let reader = rig.make_client("reader", &[&format!("tenure:get-result:{QUEUE}"), "queue:status:*"]).await;
    let watcher = rig.make_client("watcher", &["tenure:get-result:endings/other", "queue:status:*"]).await;
    let failure = json!({"message": "ä \" exit code 7", "kind": "ExitCode", "exitCode": 7});
    for (what, body, state) in [
        ("failed", json!({"failure": failure}), "failed"),
        ("failed", json!({"failure": failure, "result": [1]}), "failed"),
        ("completed", json!({"success": false, "failure": failure}), "failed"),
        ("exception", json!({"reason": "malformed-payload", "failure": failure}), "exception"),
    ] {
        let (task, claim) = claimed(&rig).await;
        for _ in 0..2 {
            let reported = of_run(&rig, &claim, what, Some(&body)).await;
            assert_eq!((reported.status, &reported.body["status"]["state"]), (200, &json!(state)), "{}", reported.body);
        }
        let mut other = body.clone();
        other["failure"]["exitCode"] = 8.into();
        let refused = of_run(&rig, &claim, what, Some(&other)).await;
        assert_eq!((refused.status, refused.code()), (409, "RequestConflict"));
        let message = refused.body["message"].as_str().unwrap();
        assert!(message.contains("already resolved with another failure"), "{message}");
        let mut expected = json!({"taskId": task, "runId": 0, "state": state, "failure": failure});
        if let Some(result) = body.get("result") {
            expected["result"] = result.clone();
        }
        let found = call(&mut rig.client(), &reader, "GET", &result_path(task, ""), None).await;
        assert_eq!((found.status, &found.body), (200, &expected));
        for (who, shown) in [(&reader, Some(&failure)), (&watcher, None)] {
            let wait = format!("{TENURE_API}/tasks/{task}/wait?seconds=0");
            let waited = call(&mut rig.client(), who, "GET", &wait, None).await;
            assert_eq!((waited.status, waited.body.get("failure")), (200, shown), "{}", waited.body);
            let why = call(&mut rig.client(), who, "GET", &format!("{TENURE_API}/tasks/{task}/why"), None).await;
            assert_eq!((why.status, why.body["reasons"][0].get("failure")), (200, shown), "{}", why.body);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refused_failure_changes_nothing() {
    let rig = Rig::start().await;
    let (task, claim) = claimed(&rig).await;
    for (what, body, named) in [
        ("failed", json!({"failure": {"message": ""}}), "`failure.message`"),
        ("failed", json!({"failure": {"message": "x".repeat(4_097)}}), "`failure.message`"),
        ("failed", json!({"failure": {"message": "m", "kind": ""}}), "`failure.kind`"),
        ("failed", json!({"failure": {"message": "m\u{0}"}}), "`failure.message`"),
        ("failed", json!({"failure": {"kind": "k"}}), "`failure`"),
        ("failed", json!({"failure": ["m"]}), "`failure`"),
        ("failed", json!({"failure": null}), "`failure`"),
        ("failed", json!({"retry": "no"}), "`retry`"),
        ("exception", json!({"reason": "internal-error", "failure": {"message": ""}}), "`failure.message`"),
        ("completed", json!({"failure": {"message": "m"}}), "`failure` is only for failed runs and exceptions"),
        ("completed", json!({"retry": false}), "`retry` is only for failed runs"),
    ] {
        let refused = of_run(&rig, &claim, what, Some(&body)).await;
        assert_eq!(refused.status, 400, "{body}: {}", refused.body);
        let message = refused.body["message"].as_str().unwrap();
        assert!(message.contains(named), "{body}: {message}");
    }
    assert_eq!(rig.status(task).await["state"], "running");
    let escaped = r#"{"f\u0061ilure": {"message": "m"}}"#;
    assert_eq!(send(&rig, &claim, "completed", Some(escaped)).await.0, 400, "the name has an escape");
    assert_eq!(send(&rig, &claim, "failed", Some(escaped)).await, (200, json!("failed")));
    assert_eq!(read(&rig, task).await.body["failure"], json!({"message": "m"}));
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
