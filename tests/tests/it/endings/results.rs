//! What a worker says beside the end of a run: results and `retryAfter`.

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
async fn a_result_is_stored_with_the_report_and_shown_to_those_who_may_see_it() {
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
        // Those who wait see it under the same scope.
        let wait = format!("{TENURE_API}/tasks/{task}/wait?seconds=0");
        let seen = call(&mut rig.client(), &reader, "GET", &wait, None).await;
        assert_eq!((seen.status, &seen.body["result"]), (200, &returned));
        let seen = call(&mut rig.client(), &watcher, "GET", &wait, None).await;
        assert_eq!((seen.status, &seen.body["resolved"], seen.body.get("result")), (200, &json!(true), None));
    }
    assert_eq!(read(&rig, new_task()).await.code(), "ResourceNotFound");
    rig.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_report_without_a_result_has_none_and_what_stock_clients_send_is_taken_as_before() {
    let rig = Rig::start().await;
    for (body, state) in [
        (None, "completed"),
        (Some("{}"), "completed"),
        (Some(r#"{"success": true}"#), "completed"),
        (Some(r#"{"success": false}"#), "failed"),
        (Some(r#"{"other": [1]}"#), "completed"),
        (Some("no JSON"), "completed"),
    ] {
        let (task, claim) = claimed(&rig).await;
        let reply = send(&rig, &claim, "completed", body).await;
        assert_eq!(reply, (200, json!(state)), "{body:?}");
        assert_eq!(read(&rig, task).await.code(), "ResourceNotFound", "{body:?}");
        let waited = rig.call("GET", &format!("{TENURE_API}/tasks/{task}/wait?seconds=0"), None).await;
        assert_eq!(waited.body.get("result"), None);
    }
    // The name of the field in another way of writing it.
    let (task, claim) = claimed(&rig).await;
    assert_eq!(send(&rig, &claim, "completed", Some(r#"{"\u0072esult": 1}"#)).await.0, 200);
    assert_eq!(read(&rig, task).await.body["result"], json!(1));
    rig.server.stop().await;
}

/// A report with these bytes: status and state.
async fn send(rig: &Rig, claim: &Value, what: &str, body: Option<&str>) -> (u16, Value) {
    let target = format!("/api/queue/v1{}/{what}", run_of(claim));
    let who = credentials_of(claim);
    let signature = Signature { who: &who, method: "POST", target: &target, ..Signature::of(&rig.server) };
    let raw = Raw::new("POST", &target).authorization(&signature.header()).json(body.map(str::as_bytes));
    let reply = rig.send(&raw).await;
    (reply.status, reply.json()["status"]["state"].clone())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_repeat_has_the_same_result_or_none() {
    let rig = Rig::start().await;
    let (task, claim) = claimed(&rig).await;
    let report = async |body: Option<Value>| of_run(&rig, &claim, "completed", body.as_ref()).await.status;
    assert_eq!(report(Some(json!({"result": {"a": 1, "b": [2]}}))).await, 200);
    for (body, status) in [
        (Some(json!({"result": {"b": [2], "a": 1}})), 200),
        (None, 200),
        (Some(json!({})), 200),
        (Some(json!({"result": {"a": 1}})), 409),
        (Some(json!({"result": null})), 409),
    ] {
        assert_eq!(report(body.clone()).await, status, "{body:?}");
        assert_eq!(read(&rig, task).await.body["result"], json!({"a": 1, "b": [2]}));
    }
    let (task, claim) = claimed(&rig).await;
    assert_eq!(of_run(&rig, &claim, "failed", None).await.status, 200);
    let late = of_run(&rig, &claim, "failed", Some(&json!({"result": 1}))).await;
    assert_eq!((late.status, late.code()), (409, "RequestConflict"));
    assert_eq!(read(&rig, task).await.status, 404);
    rig.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_report_may_not_say_is_refused_and_the_run_stays() {
    let rig = Rig::start().await;
    let (task, claim) = claimed(&rig).await;
    let most = "x".repeat(65_534);
    for (what, body) in [
        ("completed", json!({"result": format!("{most}x")})),
        ("failed", json!({"result": format!("{most}x")})),
        ("exception", json!({"reason": "intermittent-task", "retryAfter": -1})),
        ("exception", json!({"reason": "intermittent-task", "retryAfter": 86_401})),
        ("exception", json!({"reason": "intermittent-task", "retryAfter": null})),
        ("exception", json!({"reason": "worker-shutdown", "retryAfter": 1})),
        ("exception", json!({"reason": "internal-error", "retryAfter": 1})),
        ("exception", json!({"reason": "intermittent-task", "result": 1})),
    ] {
        let refused = of_run(&rig, &claim, what, Some(&body)).await;
        assert_eq!(refused.status, 400, "{what}: {}", refused.body);
    }
    for lost in [r#"{"result": 1, "result": 2}"#, r#"{"result": "#] {
        assert_eq!(send(&rig, &claim, "completed", Some(lost)).await.0, 400, "no result is lost in silence: {lost}");
    }
    assert_eq!(rig.status(task).await["state"], "running");
    let spaces = format!("{{\"result\": \"{most}\"  \n}}");
    assert_eq!(send(&rig, &claim, "completed", Some(&spaces)).await, (200, json!("completed")));
    assert_eq!(read(&rig, task).await.body["result"], most);
    rig.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn work_takes_what_reports_take() {
    let rig = Rig::start().await;
    let (returning, claim) = claimed(&rig).await;
    let (released, _) = claimed(&rig).await;
    let result = |task: SlugId, outcome: &str| json!({"taskId": task, "runId": 0, "outcome": outcome});
    let work = async |results: Value| {
        let body = json!({"taskQueueId": QUEUE, "workerGroup": "group", "workerId": "w1", "results": results});
        rig.call("POST", &format!("{TENURE_API}/work"), Some(&body)).await
    };
    let mut completed = result(returning, "completed");
    completed["result"] = json!({"rows": 3});
    let answer = work(json!([completed, result(released, "released")])).await;
    let states: Vec<&Value> =
        answer.body["results"].as_array().unwrap().iter().map(|r| &r["status"]["state"]).collect();
    assert_eq!(states, ["completed", "pending"], "{}", answer.body);
    assert_eq!(read(&rig, returning).await.body["result"], json!({"rows": 3}));
    assert_eq!(of_run(&rig, &claim, "completed", None).await.status, 200, "a repeat by the other way");
    completed["result"] = json!({"rows": 4});
    let answer = work(json!([completed])).await;
    assert_eq!(answer.body["results"][0]["error"]["code"], "RequestConflict", "{}", answer.body);
    for field in ["retryAfter", "delay"] {
        let mut wrong = result(released, "failed");
        wrong[field] = json!(5);
        assert_eq!(work(json!([wrong])).await.status, 400, "{field}");
    }
    let mut long = result(released, "failed");
    long["result"] = json!("x".repeat(65_535));
    let answer = work(json!([long])).await;
    assert_eq!(answer.body["results"][0]["error"]["code"], "InputError", "{}", answer.body);
    rig.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_intermittent_task_is_tried_again_when_its_worker_says() {
    let rig = start_by_hand(json!({})).await;
    let (task, claim) = claimed(&rig).await;
    let body = json!({"reason": "intermittent-task", "retryAfter": 30});
    let reported = of_run(&rig, &claim, "exception", Some(&body)).await;
    assert_eq!((reported.status, &reported.body["status"]["state"]), (200, &json!("pending")), "{}", reported.body);
    advance(&rig, 20.0).await;
    assert!(claim_as(&rig, "w2", 1).await.is_empty());
    advance(&rig, 10.0).await;
    let next = claim_as(&rig, "w2", 1).await.remove(0);
    assert_eq!((&next["status"]["taskId"], &next["runId"]), (&json!(task), &json!(1)));
    assert_eq!(next["status"]["retriesLeft"], 0);
    rig.server.stop().await;
}
