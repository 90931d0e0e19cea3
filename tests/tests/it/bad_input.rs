//! Invalid requests of callers: each is refused with advice and changes nothing.

mod paths;

use serde_json::{Value, json};
use tenure_tests::http::QUEUE_API;

use crate::rig::{Rig, TIMEOUT, claim_path, definition, minutes_from_now, new_task, run_of, worker};

const QUEUE: &str = "bad/input";
const SCHEMA: &str = "InputValidationError";
const ARGUMENTS: &str = "InvalidRequestArguments";
/// 10 MB, as the contract has it.
const BODY_MAX: usize = 10 << 20;

fn spoiled(pointer: &str, value: &Value) -> Value {
    let mut body = definition(QUEUE);
    let (parent, key) = pointer.rsplit_once('/').unwrap();
    body.pointer_mut(parent).unwrap()[key] = value.clone();
    body
}

/// Asserts that each body is refused with the code and a message that contains the text, and leaves
/// no trace.
async fn all_refused(rig: &Rig, bodies: &[(Value, &str, &str)]) {
    for (body, code, named) in bodies {
        let task = new_task();
        let answer = rig.create(task, body).await;
        let shown: String = body.to_string().chars().take(300).collect();
        assert_eq!((answer.status, answer.code()), (400, *code), "{} for {shown}", answer.body);
        let message = answer.body["message"].as_str().unwrap();
        assert!(message.contains(named), "{message:?} does not name {named} for {shown}");
        let missing = rig.call("GET", &format!("/task/{task}"), None).await;
        assert_eq!(missing.status, 404, "a refused task was stored: {shown}");
    }
    let counts = rig.call("GET", "/task-queues/bad%2Finput/counts", None).await;
    assert_eq!((&counts.body["pendingTasks"], &counts.body["claimedTasks"]), (&json!(0), &json!(0)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn body_over_ten_megabytes_is_refused() {
    let rig = Rig::start().await;
    let good = definition(QUEUE).to_string();
    for (size, expected) in [(BODY_MAX, 200), (BODY_MAX + 1, 413)] {
        let padding = "x".repeat(size - good.len());
        let body = good.replace("\"true\"", &format!("\"true{padding}\""));
        assert_eq!(body.len(), size);
        let path = format!("/task/{}", new_task());
        let reply = rig.send(&rig.signed(&rig.root, "PUT", &path, Some(body.as_bytes()))).await;
        assert_eq!(reply.status, expected, "{}", reply.text().chars().take(500).collect::<String>());
        if expected == 413 {
            reply.refused(413, "InputTooLarge");
            assert_eq!(rig.call("GET", &path, None).await.status, 404);
        } else {
            let stored = rig.send(&rig.signed(&rig.root, "GET", &path, None)).await;
            assert!(stored.text().contains(&padding));
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn payload_and_extra_come_back_byte_for_byte() {
    let rig = Rig::start().await;
    let payload = concat!(
        r#"{ "nul":"\u0000","\u0000":1 , "e":"\u00e9é", "pair":"\ud83d\ude00","#,
        r#""n":1.00000000000000000000000000001E+400,"big":123456789012345678901234567890,"z":-0.0,"a":[ ] }"#
    );
    let extra = r#"{"slash":"\/","tab":"\t" , "deep":{"b":1,"a":2}}"#;
    let body = definition(QUEUE).to_string().replace(r#"{"command":["true"]}"#, payload);
    let body = body.replacen('{', &format!("{{\"extra\":{extra},"), 1);
    let task = new_task();
    let path = format!("/task/{task}");
    for _ in 0..2 {
        let reply = rig.send(&rig.signed(&rig.root, "PUT", &path, Some(body.as_bytes()))).await;
        assert_eq!(reply.status, 200, "{}", reply.text());
    }
    let claim = rig.signed(&rig.root, "POST", &claim_path(QUEUE), Some(worker(1).to_string().as_bytes()));
    for raw in [rig.signed(&rig.root, "GET", &path, None), claim] {
        let text = rig.send(&raw).await.text();
        assert!(text.contains(&format!("\"payload\":{payload}")), "{text}");
        assert!(text.contains(&format!("\"extra\":{extra}")), "{text}");
    }
}

/// Derived serde structures also accept an array of their fields.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn array_of_fields_is_not_accepted_as_object() {
    let rig = Rig::start().await;
    let people = json!(["n", "d", "o@example.com", "https://example.com/"]);
    all_refused(&rig, &[(spoiled("/metadata", &people), SCHEMA, "metadata"), (json!([]), SCHEMA, "object")]).await;
    let mut task = definition(QUEUE);
    task["metadata"] = people;
    let task_values: Vec<&Value> = task.as_object().unwrap().values().collect();
    let digest = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824";
    let object = json!({"projectId": "p", "uploadId": new_task(), "hashes": [digest], "expires": minutes_from_now(60),
        "proposedUploadMethods": {}});
    let mut ways = object.clone();
    ways["hashes"] = json!({});
    ways["proposedUploadMethods"] = json!([]);
    let proof = json!({"workerPoolId": QUEUE, "providerId": "static", "workerGroup": "g", "workerId": "w",
        "workerIdentityProof": ["x".repeat(44)]});
    let cases = [
        (claim_path(QUEUE), json!(["group", "worker", 1])),
        ("/tasks/status".to_owned(), json!([[new_task()]])),
        ("/api/tenure/v1/tasks".to_owned(), json!({"tasks": [task_values]})),
        ("/api/tenure/v1/tasks".to_owned(), task.clone()),
        ("/api/auth/v1/test-authenticate".to_owned(), json!([])),
        ("/api/worker-manager/v1/worker/register".to_owned(), proof),
    ];
    let mut inline = object.clone();
    inline["hashes"] = json!({});
    inline["proposedUploadMethods"] = json!({"dataInline": ["text/plain", "aGVsbG8="]});
    let mut url = inline.clone();
    url["proposedUploadMethods"] = json!({"putUrl": ["text/plain", 5]});
    let worker = json!({"expires": minutes_from_now(60), "providerInfo": ["x".repeat(44)]});
    let puts = [
        ("/api/object/v1/upload/name", object),
        ("/api/object/v1/upload/name", ways),
        ("/api/object/v1/upload/name", inline),
        ("/api/object/v1/upload/name", url),
        ("/api/object/v1/start-download/name", json!({"acceptDownloadMethods": [true, false]})),
        ("/api/worker-manager/v1/workers/bad%2Finput/g/w", worker),
    ];
    let puts = puts.map(|(path, body)| (path.to_owned(), body));
    let posts = cases.map(|(path, body)| ("POST", path, body)).into_iter();
    for (method, path, body) in posts.chain(puts.map(|(path, body)| ("PUT", path, body))) {
        let answer = rig.call(method, &path, Some(&body)).await;
        assert_eq!((answer.status, answer.code()), (400, SCHEMA), "{method} {path} {body}: {}", answer.body);
        assert!(answer.body["message"].as_str().unwrap().contains("object"), "{path}: {}", answer.body);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_error_names_the_call_that_failed_and_repeats_it() {
    let rig = Rig::start().await;
    let task = new_task();
    let body = json!({"reason": "superseded"});
    let path = format!("/task/{task}/runs/7/exception");
    let reply = rig.send(&rig.signed(&rig.root, "POST", &path, Some(body.to_string().as_bytes()))).await;
    let message = reply.refused(400, SCHEMA);
    let answer = reply.json();
    let keys = |value: &Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    assert_eq!(keys(&answer), ["code", "message", "requestInfo"]);
    let info = &answer["requestInfo"];
    assert_eq!(keys(info), ["method", "params", "payload", "time"]);
    assert_eq!(info["method"], "reportException");
    assert_eq!(info["params"], json!({"taskId": task, "runId": "7"}));
    assert_eq!(info["payload"], body);
    let time = info["time"].as_str().unwrap();
    assert!(time.len() == 24 && time.ends_with('Z') && time.as_bytes()[19] == b'.', "{time}");
    for line in ["\n---\n", "* method:     reportException", &format!("* errorCode:  {SCHEMA}"), "* statusCode: 400"] {
        assert!(message.contains(line), "{message}");
    }
    assert!(message.contains(&format!("* time:       {time}")), "{message}");
    assert_eq!(reply.header("content-type"), Some("application/json"));
    assert_eq!(reply.header("cache-control"), Some("no-store no-cache must-revalidate"));
    assert!(reply.header("x-for-request-id").is_some() && reply.header("x-for-trace-id").is_some());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refused_shutdown_report_ends_no_waiting_request() {
    let rig = Rig::start_with(|launch| launch.flag("--claim-work-wait", "20s")).await;
    let (first, second) = (new_task(), new_task());
    assert_eq!(rig.create(first, &definition(QUEUE)).await.status, 200);
    let claim = rig.claim(QUEUE, 1).await.remove(0);
    let mut waiting = rig.client();
    let path = format!("{QUEUE_API}{}", claim_path(QUEUE));
    waiting.start(&rig.root, "POST", &path, Some(worker(1).to_string().as_bytes())).await.unwrap();
    let report = format!("{}/exception?x=1", run_of(&claim));
    let refused = rig.call("POST", &report, Some(&json!({"reason": "worker-shutdown"}))).await;
    assert_eq!((refused.status, refused.code()), (400, ARGUMENTS), "{}", refused.body);
    assert_eq!(rig.create(second, &definition(QUEUE)).await.status, 200);
    let reply = tokio::time::timeout(TIMEOUT, waiting.finish()).await.unwrap().unwrap();
    let body: Value = serde_json::from_slice(&reply.body).unwrap();
    assert_eq!(body["tasks"][0]["status"]["taskId"], second.to_string(), "{body}");
}
