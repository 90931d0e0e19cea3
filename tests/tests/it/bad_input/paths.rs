//! Paths, methods and parameters that are not what they should be.

use serde_json::{Value, json};
use tenure_tests::http::QUEUE_API;

use super::{ARGUMENTS, QUEUE};
use crate::rig::{Raw, RawReply, Rig, claim_path, definition, new_task, worker};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_parameter_of_the_path_is_refused_by_name() {
    let rig = Rig::start().await;
    let task = new_task();
    let worker = worker(1).to_string();
    let reason = r#"{"reason":"internal-error"}"#;
    let mut cases = Vec::new();
    for id in ["short", "AAAAAAAAAAAAAAAAAAAAAA", &format!("{task}A"), "%20", "a%2Fb", &"x".repeat(3_000)] {
        cases.push(("GET", format!("/task/{id}"), None, "taskId"));
        cases.push(("GET", format!("/task/{id}/status"), None, "taskId"));
        cases.push(("PUT", format!("/task/{id}"), Some("{}"), "taskId"));
        cases.push(("POST", format!("/task/{id}/runs/0/claim"), Some(worker.as_str()), "taskId"));
        cases.push(("POST", format!("/task/{id}/runs/0/completed"), None, "taskId"));
    }
    for run in ["x", "-1", "1.5", "0x1", "%30x", "99999999999999999999"] {
        cases.push(("POST", format!("/task/{task}/runs/{run}/claim"), Some(worker.as_str()), "runId"));
        cases.push(("POST", format!("/task/{task}/runs/{run}/reclaim"), None, "runId"));
        cases.push(("POST", format!("/task/{task}/runs/{run}/completed"), None, "runId"));
        cases.push(("POST", format!("/task/{task}/runs/{run}/failed"), None, "runId"));
        cases.push(("POST", format!("/task/{task}/runs/{run}/exception"), Some(reason), "runId"));
    }
    for queue in ["noslash", "p%2FW", "p%2Fw%2Fx", "p/W", "a%20b/w", "p%2F", "%00%2Fw"] {
        cases.push(("POST", format!("/claim-work/{queue}"), Some(worker.as_str()), "queue"));
        cases.push(("GET", format!("/pending/{queue}"), None, "queue"));
        cases.push(("GET", format!("/task-queues/{queue}"), None, "queue"));
        // `noslash/counts` is a queue.
        let named = if queue == "noslash" { "no.slash" } else { queue };
        for list in ["counts", "pending", "claimed"] {
            cases.push(("GET", format!("/task-queues/{named}/{list}"), None, "queue"));
        }
    }
    // What is not UTF-8 has no name yet.
    cases.push(("GET", "/task/%FF/status".to_owned(), None, "path"));
    cases.push(("POST", format!("/task/{task}/runs/%C3%28/completed"), None, "path"));
    for (method, path, body, named) in cases {
        let reply = rig.send(&rig.signed(&rig.root, method, &path, body.map(str::as_bytes))).await;
        let message = reply.refused(400, ARGUMENTS);
        let message = message.split("---").next().unwrap().to_lowercase();
        assert!(message.contains(&named.to_lowercase()), "{method} {path}: {message}");
    }
    rig.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_undeclared_query_parameter_is_refused_by_name() {
    let rig = Rig::start().await;
    let task = new_task();
    assert_eq!(rig.create(task, &definition(QUEUE)).await.status, 200);
    let run = format!("/task/{task}/runs/0");
    let cases = [
        ("GET", format!("/task/{task}?unheard=1"), None),
        ("GET", format!("/task/{task}/status?unheard"), None),
        ("PUT", format!("/task/{}?unheard=1", new_task()), Some(definition(QUEUE))),
        ("POST", format!("{}?unheard=1", claim_path(QUEUE)), Some(worker(1))),
        ("POST", format!("{run}/claim?unheard=1"), Some(worker(1))),
        ("POST", format!("{run}/reclaim?unheard=1"), None),
        ("POST", format!("{run}/completed?unheard=1"), None),
        ("POST", format!("{run}/failed?unheard=1"), None),
        ("POST", format!("{run}/exception?unheard=1"), Some(json!({"reason": "internal-error"}))),
        ("GET", "/pending/bad%2Finput?unheard=1".to_owned(), None),
        ("GET", "/task-queues/bad%2Finput/counts?unheard=1".to_owned(), None),
        ("POST", "/task-queues/counts?unheard=1".to_owned(), Some(json!({"taskQueueIds": []}))),
        ("POST", "/tasks?unheard=1".to_owned(), Some(json!({"taskIds": []}))),
        ("POST", "/tasks/status?unheard=1".to_owned(), Some(json!({"taskIds": []}))),
        ("GET", "/task-queues/bad%2Finput/pending?unheard=1".to_owned(), None),
        ("GET", "/task-queues/bad/input/claimed?unheard=1".to_owned(), None),
        ("GET", "/api/tenure/v1/clock?unheard=1".to_owned(), None),
        ("GET", "/api/tenure/v1/events?unheard=1".to_owned(), None),
    ];
    for (method, path, body) in cases {
        let answer = rig.call(method, &path, body.as_ref()).await;
        assert_eq!((answer.status, answer.code()), (400, ARGUMENTS), "{path}: {}", answer.body);
        assert!(answer.body["message"].as_str().unwrap().contains("unheard"), "{path}: {}", answer.body);
    }
    for query in ["after=1&after=2", "limit=0", "limit=1001", "limit=x", "after=-1", "limit=%FF"] {
        let answer = rig.call("GET", &format!("/api/tenure/v1/events?{query}"), None).await;
        assert_eq!((answer.status, answer.code()), (400, ARGUMENTS), "{query}: {}", answer.body);
    }
    let status = rig.status(task).await;
    assert_eq!(status["state"], "pending");
    rig.server.stop().await;
}

/// Asserts an error as every operation gives it, with the keys of the same form, and gives its message.
#[track_caller]
fn has_the_shape_of_errors(reply: &RawReply, status: u16, code: &str) -> String {
    let message = reply.refused(status, code);
    assert_eq!(reply.header("content-type"), Some("application/json"));
    let keys = |value: &Value| value.as_object().map(|object| object.keys().cloned().collect::<Vec<_>>());
    let body = reply.json();
    assert_eq!(keys(&body).unwrap(), ["code", "message", "requestInfo"]);
    assert_eq!(keys(&body["requestInfo"]).unwrap(), ["method", "params", "payload", "time"]);
    assert!(message.contains("\n---\n") && message.contains(&format!("* errorCode:  {code}")), "{message}");
    message
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unknown_path_is_not_found() {
    let rig = Rig::start().await;
    let task = new_task();
    for (method, target) in [
        ("GET", "/Task/x".to_owned()),
        ("GET", QUEUE_API.to_owned()),
        ("GET", format!("{QUEUE_API}/")),
        ("GET", format!("{QUEUE_API}/tasks/{task}/")),
        ("GET", format!("{QUEUE_API}/Task/{task}")),
        ("GET", format!("{QUEUE_API}/task/{task}/status/")),
        ("GET", format!("{QUEUE_API}//task/{task}")),
        ("GET", format!("{QUEUE_API}/claim-work/a/b/c")),
    ] {
        let reply = rig.send(&Raw::new(method, &target)).await;
        let message = has_the_shape_of_errors(&reply, 404, "ResourceNotFound");
        assert!(message.contains(&target), "{method} {target}: {message}");
    }
    rig.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_method_that_a_path_does_not_have_is_refused_and_the_answer_names_those_that_it_has() {
    let rig = Rig::start().await;
    let task = new_task();
    for (method, target, allowed) in [
        ("POST", "/".to_owned(), "GET,HEAD"),
        ("GET", "/logout".to_owned(), "POST"),
        ("DELETE", format!("{QUEUE_API}/task/{task}"), "GET,HEAD,PUT"),
        ("POST", format!("{QUEUE_API}/task/{task}"), "GET,HEAD,PUT"),
        ("GET", format!("{QUEUE_API}/claim-work/p%2Fw"), "POST"),
        ("BREW", format!("{QUEUE_API}/ping"), "GET,HEAD"),
    ] {
        let reply = rig.send(&Raw::new(method, &target)).await;
        let message = has_the_shape_of_errors(&reply, 405, "MethodNotAllowed");
        assert!(message.contains(&target) && message.contains(method), "{method} {target}: {message}");
        assert_eq!(reply.header("allow"), Some(allowed), "{method} {target}");
        let options = rig.send(&Raw::new("OPTIONS", &target)).await;
        assert_eq!((options.status, options.header("allow")), (200, Some(&*format!("OPTIONS,{allowed}"))), "{target}");
    }
    let message = "/api/tenure/v1/messages/queue-1-4/messages/00000001-0000-4000-8000-000000000001";
    let options = rig.send(&Raw::new("OPTIONS", message)).await;
    assert_eq!((options.status, options.header("allow")), (200, Some("OPTIONS,DELETE,PUT")));
    let nowhere = rig.send(&Raw::new("OPTIONS", "/nowhere")).await;
    assert_eq!(nowhere.status, 200);
    assert!(nowhere.header("allow").is_some_and(|methods| methods.contains("DELETE")), "it leads nowhere");
    rig.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_signed_path_that_is_not_utf_8_is_refused_as_every_signed_url_that_was_changed() {
    let rig = Rig::start().await;
    for target in ["queue-%ff", "queue-%ff/messages", "queue-1-4/messages/%ff"] {
        let reply = rig.send(&Raw::new("GET", &format!("/api/tenure/v1/messages/{target}?sig=x"))).await;
        assert_eq!(reply.status, 403, "{target}: {}", reply.text());
        assert_eq!(reply.header("x-ms-error-code"), Some("AuthenticationFailed"), "{target}");
    }
    rig.server.stop().await;
}
