//! What a caller can get wrong, and that nothing comes of it but an answer with what to change.

mod paths;

use serde_json::{Value, json};
use tenure_tests::http::QUEUE_API;

use crate::rig::{Rig, TIMEOUT, claim_path, definition, minutes_from_now, new_task, run_of, worker};

const QUEUE: &str = "bad/input";
const SCHEMA: &str = "InputValidationError";
const RULE: &str = "InputError";
const SHAPE: &str = "MalformedPayload";
const ARGUMENTS: &str = "InvalidRequestArguments";
/// 10 MB, as the contract has it.
const BODY_MAX: usize = 10 << 20;

/// A definition with one thing changed.
fn spoiled(pointer: &str, value: &Value) -> Value {
    let mut body = definition(QUEUE);
    let (parent, key) = pointer.rsplit_once('/').unwrap();
    body.pointer_mut(parent).unwrap()[key] = value.clone();
    body
}

/// Each of these must be refused with the code and a message that has the text, and leave no trace.
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
async fn a_field_of_the_wrong_type_or_past_its_limit_is_refused_by_name() {
    let rig = Rig::start().await;
    let long = |length: usize| json!("x".repeat(length));
    let many = |count: usize| (0..count).map(|n| json!(format!("route.{n}"))).collect::<Value>();
    let edges = (0..10_001).map(|_| json!(new_task())).collect::<Value>();
    let twice = new_task();
    let source = |length: usize| json!(format!("https://{}", "x".repeat(length - 8)));
    let fields = [
        ("/taskQueueId", vec![json!("noslash"), json!("p/W"), json!("p/-w"), json!("p/w/x"), json!(""), json!(1)]),
        ("/taskQueueId", vec![json!(format!("{}/w", "p".repeat(39))), json!(format!("p/{}", "w".repeat(39)))]),
        ("/provisionerId", vec![json!("a b"), json!(""), long(39), json!(1)]),
        ("/workerType", vec![json!("W"), json!("w-"), long(39), json!([])]),
        ("/schedulerId", vec![json!("a b"), json!(""), long(39), json!(1)]),
        ("/projectId", vec![json!("a b"), json!(""), long(501), json!(1)]),
        ("/taskGroupId", vec![json!("short"), long(22), json!(1)]),
        ("/dependencies", vec![json!("x"), json!(["short"]), json!([twice, twice]), edges]),
        ("/requires", vec![json!("some"), json!(1)]),
        ("/routes", vec![json!("x"), json!([1]), json!([""]), json!([long(250)]), many(65), json!(["a", "a"])]),
        ("/routes", vec![json!(["a\u{0}b"])]),
        ("/priority", vec![json!("normal"), json!("HIGH"), json!(1)]),
        ("/retries", vec![json!(-1), json!(50), json!(1.5), json!("5"), json!(70_000)]),
        ("/created", vec![json!("yesterday"), json!(1), json!("2026-13-01T00:00:00Z")]),
        ("/deadline", vec![json!("soon"), json!(1), Value::Null]),
        ("/expires", vec![json!("never"), json!(1)]),
        ("/scopes", vec![json!("x"), json!([1]), json!(["\u{e9}"]), json!(["a\nb"])]),
        ("/payload", vec![json!([]), json!("x"), json!(1), Value::Null]),
        ("/extra", vec![json!([]), json!("x")]),
        ("/tags", vec![json!([]), json!({"a": 1}), json!({"a": long(4_097)})]),
        ("/metadata", vec![json!("x"), json!({}), Value::Null]),
        ("/metadata/name", vec![long(256), json!(1), Value::Null]),
        ("/metadata/description", vec![long(32_769), json!(1)]),
        ("/metadata/owner", vec![long(256), json!(1)]),
        ("/metadata/source", vec![source(4_097), json!("ftp://x"), json!("x"), json!(1)]),
        ("/metadata/unheard", vec![json!(1)]),
        ("/unheard", vec![json!(1)]),
    ];
    let bodies: Vec<_> = fields
        .iter()
        .flat_map(|(pointer, values)| {
            values.iter().map(|value| (spoiled(pointer, value), SCHEMA, pointer.rsplit('/').next().unwrap()))
        })
        .collect();
    all_refused(&rig, &bodies).await;
    rig.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_field_that_is_missing_or_null_is_refused_by_name() {
    let rig = Rig::start().await;
    let mut bodies = Vec::new();
    for field in ["created", "deadline", "payload", "metadata"] {
        let mut body = definition(QUEUE);
        body.as_object_mut().unwrap().remove(field);
        bodies.push((body, SCHEMA, field));
    }
    for field in ["name", "description", "owner", "source"] {
        let mut body = definition(QUEUE);
        body["metadata"].as_object_mut().unwrap().remove(field);
        bodies.push((body, SCHEMA, field));
    }
    let optional = [
        "provisionerId",
        "workerType",
        "taskQueueId",
        "schedulerId",
        "projectId",
        "taskGroupId",
        "dependencies",
        "requires",
        "routes",
        "priority",
        "retries",
        "expires",
        "scopes",
        "tags",
        "extra",
    ];
    bodies.extend(optional.map(|field| (spoiled(&format!("/{field}"), &Value::Null), SCHEMA, field)));
    bodies.push((json!([]), SCHEMA, "the body"));
    all_refused(&rig, &bodies).await;
    rig.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fields_that_break_a_rule_are_refused_by_name() {
    let rig = Rig::start().await;
    let with = |changes: &[(&str, Value)]| {
        let mut body = definition(QUEUE);
        for (field, value) in changes {
            body[*field] = value.clone();
        }
        body
    };
    let mut unnamed = definition(QUEUE);
    unnamed.as_object_mut().unwrap().remove("taskQueueId");
    let minutes = |minutes: i64| json!(minutes_from_now(minutes));
    let bodies = [
        (unnamed.clone(), RULE, "taskQueueId"),
        (with(&[("provisionerId", json!("bad"))]), RULE, "workerType"),
        (with(&[("workerType", json!("input"))]), RULE, "provisionerId"),
        (with(&[("provisionerId", json!("bad")), ("workerType", json!("other"))]), RULE, "taskQueueId"),
        (with(&[("created", minutes(-17))]), RULE, "created"),
        (with(&[("created", minutes(17))]), RULE, "created"),
        (with(&[("created", minutes(1)), ("deadline", minutes(0))]), RULE, "created"),
        (with(&[("created", minutes(-5)), ("deadline", minutes(-1))]), RULE, "deadline"),
        (with(&[("deadline", minutes(5 * 24 * 60 + 17))]), RULE, "deadline"),
        (with(&[("expires", minutes(59))]), RULE, "expires"),
        (with(&[("scopes", json!(["queue:**"]))]), RULE, "scopes"),
    ];
    all_refused(&rig, &bodies).await;
    // What lies just inside is accepted.
    for body in [
        with(&[("created", minutes(-14)), ("deadline", minutes(5 * 24 * 60 + 14))]),
        with(&[("provisionerId", json!("bad")), ("workerType", json!("input"))]),
        with(&[("retries", json!(49)), ("routes", json!(["x".repeat(249)])), ("projectId", json!("p".repeat(500)))]),
        with(&[("scopes", json!(["a*", "a*", ""])), ("tags", json!({"": "\u{0}"})), ("schedulerId", json!("-"))]),
    ] {
        let answer = rig.create(new_task(), &body).await;
        assert_eq!(answer.status, 200, "{}", answer.body);
    }
    rig.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dependencies_that_do_not_exist_are_refused_and_store_nothing() {
    let rig = Rig::start().await;
    let (task, other, missing) = (new_task(), new_task(), new_task());
    assert_eq!(rig.create(other, &definition(QUEUE)).await.status, 200);
    let answer = rig.create(task, &spoiled("/dependencies", &json!([other, missing]))).await;
    assert_eq!((answer.status, answer.code()), (400, "InputError"), "{}", answer.body);
    let message = answer.body["message"].as_str().unwrap();
    assert!(message.contains("`dependencies`") && message.contains(&missing.to_string()), "{message}");
    assert!(!message.contains(&other.to_string()), "{message}");
    assert_eq!(rig.call("GET", &format!("/task/{task}/status"), None).await.status, 404);
    rig.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_that_is_not_acceptable_json_is_malformed() {
    let rig = Rig::start().await;
    let good = definition(QUEUE).to_string();
    let nested = |depth: usize| {
        let payload = format!("{{\"a\":{}1{}}}", "[".repeat(depth), "]".repeat(depth));
        good.replace(r#"{"command":["true"]}"#, &payload)
    };
    let spliced = |text: &str, bytes: &[u8]| {
        let (before, after) = text.split_once("true").unwrap();
        [before.as_bytes(), bytes, after.as_bytes()].concat()
    };
    let cases: Vec<(&str, Vec<u8>)> = vec![
        ("empty", Vec::new()),
        ("half", good.as_bytes()[..good.len() - 1].to_vec()),
        ("more behind it", format!("{good}{{}}").into_bytes()),
        ("text", b"task=1".to_vec()),
        ("a string", b"\"task\"".to_vec()),
        ("a number", b" 1".to_vec()),
        ("too deep", nested(99).into_bytes()),
        ("far too deep", nested(200_000).into_bytes()),
        ("not UTF-8", spliced(&good, b"\xff\xfe")),
        ("half of a surrogate pair", good.replace("true", r"\ud800").into_bytes()),
        ("a key twice", good.replacen('{', r#"{"retries":1,"retries":2,"#, 1).into_bytes()),
        ("a key twice, once escaped", good.replacen('{', r#"{"retries":1,"r\u0065tries":2,"#, 1).into_bytes()),
        ("a key twice in the payload", good.replace(r#"["true"]"#, r#"{"a":[{"k":1,"k":1}]}"#).into_bytes()),
    ];
    for (what, body) in cases {
        let task = new_task();
        let path = format!("/task/{task}");
        let reply = rig.send(&rig.signed(&rig.root, "PUT", &path, Some(&body))).await;
        let message = reply.refused(400, SHAPE);
        let field = match what {
            "not UTF-8" | "half of a surrogate pair" => "`payload.command[0]`",
            "a key twice in the payload" => "`payload.command.a[0]`",
            _ => "",
        };
        assert!(message.contains(field), "{what}: {message}");
        if what.contains("twice") {
            assert!(
                message.contains("twice") && (message.contains("retries") || message.contains("\"k\"")),
                "{message}"
            );
        }
        assert_eq!(rig.call("GET", &path, None).await.status, 404, "{what}");
    }
    let deep = rig.signed(&rig.root, "PUT", &format!("/task/{}", new_task()), Some(nested(90).as_bytes()));
    assert_eq!(rig.send(&deep).await.status, 200);
    rig.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_must_be_sent_as_json() {
    let rig = Rig::start().await;
    let body = definition(QUEUE).to_string();
    let path = format!("/task/{}", new_task());
    for content_type in ["text/plain", "application/x-www-form-urlencoded", "application/jsonp", ""] {
        let raw = rig.signed(&rig.root, "PUT", &path, Some(body.as_bytes())).header("Content-Type", content_type);
        rig.send(&raw).await.refused(400, SHAPE);
    }
    let raw = rig.signed(&rig.root, "PUT", &path, Some(body.as_bytes())).without("Content-Type");
    rig.send(&raw).await.refused(400, SHAPE);
    let mut raw = rig.signed(&rig.root, "PUT", &path, None);
    rig.send(&raw).await.refused(400, SHAPE);
    raw = raw.json(Some(body.as_bytes())).header("Content-Type", "Application/JSON; charset=utf-8");
    assert_eq!(rig.send(&raw).await.status, 200);
    rig.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_of_ten_megabytes_is_taken_and_one_more_byte_is_not() {
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
    rig.server.stop().await;
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
    // The second time it is a repeat.
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
    rig.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bodies_of_workers_are_checked_field_by_field() {
    let rig = Rig::start().await;
    let task = new_task();
    assert_eq!(rig.create(task, &definition(QUEUE)).await.status, 200);
    let claim = |changes: Value| {
        let mut body = worker(1);
        body.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
        body
    };
    let run = format!("/task/{task}/runs/0");
    let (claim_work, exception) = (claim_path(QUEUE), format!("{run}/exception"));
    let one = |key: &str, value: Value| claim(json!({key: value}));
    let cases = [
        (&claim_work, one("tasks", json!(0)), "tasks"),
        (&claim_work, one("tasks", json!(33)), "tasks"),
        (&claim_work, one("tasks", json!(-1)), "tasks"),
        (&claim_work, one("tasks", json!("1")), "tasks"),
        (&claim_work, one("tasks", json!(100_000)), "tasks"),
        (&claim_work, one("tasks", Value::Null), "tasks"),
        (&claim_work, one("workerGroup", json!("x".repeat(39))), "workerGroup"),
        (&claim_work, one("workerId", json!("a b")), "workerId"),
        (&claim_work, json!({"workerId": "w"}), "workerGroup"),
        (&claim_work, one("unheard", json!(1)), "unheard"),
        (&format!("{run}/claim"), worker(1), "tasks"),
        (&format!("{run}/claim"), json!({"workerGroup": "g", "workerId": ""}), "workerId"),
        (&exception, json!({"reason": "superseded"}), "reason"),
        (&exception, json!({"reason": "claim-expired"}), "reason"),
        (&exception, json!({"reason": 1}), "reason"),
        (&exception, json!({}), "reason"),
        (&exception, json!({"reason": "internal-error", "unheard": 1}), "unheard"),
        (&"/task-queues/counts".to_owned(), json!({"taskQueueIds": ["p/W"]}), "taskQueueIds"),
        (&"/task-queues/counts".to_owned(), json!({"taskQueueIds": vec!["p/w"; 1_001]}), "taskQueueIds"),
        (&"/task-queues/counts".to_owned(), json!({}), "taskQueueIds"),
    ];
    for (path, body, named) in cases {
        let answer = rig.call("POST", path, Some(&body)).await;
        assert_eq!((answer.status, answer.code()), (400, SCHEMA), "{path} {body}: {}", answer.body);
        let message = answer.body["message"].as_str().unwrap();
        assert!(message.contains(named), "{path} {body}: {message}");
    }
    let status = rig.status(task).await;
    assert_eq!((&status["state"], status["runs"].as_array().unwrap().len()), (&json!("pending"), 1));
    // Operations without an input ignore bodies, whatever they are.
    let claims = rig.claim(QUEUE, 32).await;
    let path = format!("{}/completed", run_of(&claims[0]));
    let reply = rig.send(&rig.signed(&rig.root, "POST", &path, Some(b"{not json"))).await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    rig.server.stop().await;
}

/// What serde derives for a structure also takes an array of its fields.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_array_is_no_object_even_if_it_has_the_fields_in_their_order() {
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
    rig.server.stop().await;
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
    rig.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refused_report_of_a_shutdown_answers_no_request_that_waits() {
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
    rig.server.stop().await;
}
