//! Unknown paths and methods.

use serde_json::Value;
use tenure_tests::http::QUEUE_API;

use crate::rig::{Raw, RawReply, Rig, new_task};

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
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_method_is_refused_with_allowed_methods() {
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
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn signed_path_without_utf_8_is_refused_like_changed_url() {
    let rig = Rig::start().await;
    for target in ["queue-%ff", "queue-%ff/messages", "queue-1-4/messages/%ff"] {
        let reply = rig.send(&Raw::new("GET", &format!("/api/tenure/v1/messages/{target}?sig=x"))).await;
        assert_eq!(reply.status, 403, "{target}: {}", reply.text());
        assert_eq!(reply.header("x-ms-error-code"), Some("AuthenticationFailed"), "{target}");
    }
}
