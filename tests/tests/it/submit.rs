//! Creating one or several tasks at once: defaults, local names, atomicity, repeats.

use std::time::Duration;

use serde_json::{Value, json};
use sqlx::Row as _;
use tenure_api::credentials::Credentials;
use tenure_api::dates::Timestamp;
use tenure_engine::clock::real_now;
use tenure_tests::http::{Answer, TENURE_API};

use crate::rig::{Raw, RawReply, Rig, Signature, call, definition, eventually, minutes_from_now, new_task, ok};

const QUEUE: &str = "submit/graph";

async fn submit(rig: &Rig, body: &Value) -> Answer {
    rig.call("POST", &format!("{TENURE_API}/tasks"), Some(body)).await
}

fn keyed(rig: &Rig, who: &Credentials, key: &str, body: &Value) -> Raw {
    let target = format!("{TENURE_API}/tasks");
    let signature = Signature { who, method: "POST", target: &target, ..Signature::of(&rig.server) };
    Raw::new("POST", &target)
        .authorization(&signature.header())
        .json(Some(body.to_string().as_bytes()))
        .header("Idempotency-Key", key)
}

async fn submit_keyed(rig: &Rig, key: &str, body: &Value) -> RawReply {
    rig.send(&keyed(rig, &rig.root, key, body)).await
}

async fn count(rig: &Rig, sql: &'static str) -> i64 {
    let mut database = rig.database.connect("test").await;
    sqlx::query(sql).fetch_one(&mut database).await.unwrap().get(0)
}

async fn left_behind(rig: &Rig) -> i64 {
    count(
        rig,
        "SELECT (SELECT count(*) FROM tasks) + (SELECT count(*) FROM task_definitions) + (SELECT count(*) FROM due)
              + (SELECT count(*) FROM pending) + (SELECT count(*) FROM dependencies) + (SELECT count(*) FROM task_groups)
              + (SELECT count(*) FROM transitions) + (SELECT count(*) FROM task_queues)
              + (SELECT count(*) FROM idempotency_keys)
              + (SELECT COALESCE(sum(pending), 0)::bigint FROM counters)",
    )
    .await
}

fn ids(answer: &Value) -> Vec<String> {
    let tasks = answer["tasks"].as_array().unwrap_or_else(|| panic!("{answer}"));
    tasks.iter().map(|task| task["taskId"].as_str().unwrap().to_owned()).collect()
}

fn states(answer: &Value) -> Vec<&str> {
    answer["tasks"].as_array().unwrap().iter().map(|task| task["status"]["state"].as_str().unwrap()).collect()
}

async fn complete_one(rig: &Rig) -> String {
    let claim = rig.claim(QUEUE, 1).await.remove(0);
    rig.report(&claim, "completed", None).await;
    claim["status"]["taskId"].as_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_task_needs_no_more_than_its_queue() {
    let rig = Rig::start().await;
    let answer = ok(submit(&rig, &json!({"taskQueueId": QUEUE})).await);
    let id = &ids(&answer)[0];
    assert_eq!((states(&answer), answer["taskGroupId"].as_str().unwrap()), (vec!["pending"], id.as_str()));
    let task = rig.call("GET", &format!("/task/{id}"), None).await.body;
    assert_eq!(task["metadata"]["owner"], "root");
    let source = task["metadata"]["source"].as_str().unwrap();
    assert_eq!(source, format!("{}/api/queue/v1/task/{id}", rig.server.root_url()));
    assert_eq!(&complete_one(&rig).await, id);
}

/// Hours from its creation to the deadline of a task that was submitted alone.
async fn hours_to_deadline(rig: &Rig, body: &Value) -> i64 {
    let id = &ids(&ok(submit(rig, body).await))[0];
    let task = rig.call("GET", &format!("/task/{id}"), None).await.body;
    let time = |field: &str| serde_json::from_value::<Timestamp>(task[field].clone()).unwrap().time();
    assert!(time("expires") >= time("deadline"), "{task}");
    (time("deadline") - time("created")).num_hours()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn default_deadline_is_in_366_days_or_as_the_policy_says() {
    let rig = Rig::start().await;
    let of_queue = json!({"taskQueueId": QUEUE});
    assert_eq!(hours_to_deadline(&rig, &of_queue).await, 366 * 24);
    rig.put_policy(QUEUE, &json!({"deadlineAfter": 7_200})).await;
    assert_eq!(hours_to_deadline(&rig, &of_queue).await, 2);
    assert_eq!(hours_to_deadline(&rig, &json!({"provisionerId": "submit", "workerType": "graph"})).await, 2);
    assert_eq!(hours_to_deadline(&rig, &json!({"taskQueueId": "submit/other"})).await, 366 * 24);
    let path = format!("{TENURE_API}/queues/submit%2Fgraph/policy");
    for (wrong, says) in [(59, "from 60 to 31622400"), (31_622_401, "from 60 to 31622400")] {
        let answer = rig.call("PUT", &path, Some(&json!({"deadlineAfter": wrong}))).await;
        assert_eq!((answer.status, answer.code()), (400, "InputError"));
        let message = answer.body["message"].as_str().unwrap();
        assert!(message.contains("`deadlineAfter`") && message.contains(says), "{message}");
    }
    assert_eq!(hours_to_deadline(&rig, &of_queue).await, 2, "refusals change nothing");
    assert_eq!(rig.call("DELETE", &path, None).await.status, 200);
    assert_eq!(hours_to_deadline(&rig, &of_queue).await, 366 * 24);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn default_deadline_is_not_after_a_dependencys_expiry() {
    let rig = Rig::start().await;
    let early = rig.create_with("other/queue", |task| task["expires"] = json!(minutes_from_now(60 * 48))).await;
    let hours = hours_to_deadline(&rig, &json!({"taskQueueId": QUEUE, "dependencies": [early]})).await;
    assert_eq!(hours, 47);
    let soon = rig.create_with("other/queue", |task| task["expires"] = json!(minutes_from_now(120))).await;
    let refused = submit(&rig, &json!({"taskQueueId": QUEUE, "dependencies": [soon]})).await;
    assert_eq!((refused.status, refused.code()), (400, "InputError"));
    assert!(refused.body["message"].as_str().unwrap().contains("expire before this task's `deadline`"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_tasks_of_a_graph_wait_for_each_other_by_their_names() {
    let rig = Rig::start().await;
    let (before, own) = (new_task(), new_task());
    assert_eq!(rig.create(before, &definition("other/queue")).await.status, 200);
    let answer = submit(
        &rig,
        &json!({"tasks": [
            {"taskQueueId": QUEUE, "name": "test", "dependencies": ["build"]},
            {"taskQueueId": QUEUE, "name": "build", "taskId": own},
            {"taskQueueId": QUEUE, "dependencies": [own, before]},
        ]}),
    )
    .await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    assert_eq!(states(&answer.body), ["unscheduled", "pending", "unscheduled"]);
    let names: Vec<&Value> = answer.body["tasks"].as_array().unwrap().iter().map(|task| &task["name"]).collect();
    assert_eq!(names, [&json!("test"), &json!("build"), &Value::Null]);
    let ids = ids(&answer.body);
    assert_eq!(ids[1], own.to_string());
    let group = answer.body["taskGroupId"].as_str().unwrap();
    let listed = rig.call("GET", &format!("/task-group/{group}/list"), None).await.body;
    assert_eq!(listed["tasks"].as_array().unwrap().len(), 3);
    assert_eq!(complete_one(&rig).await, ids[1]);
    let state = async |id: &str| rig.status(id.parse().unwrap()).await["state"].clone();
    eventually("the test may run", async || (state(&ids[0]).await == "pending").then_some(())).await;
    assert_eq!(state(&ids[2]).await, "unscheduled", "it waits for another task still");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_tasks_are_one_request() {
    let rig = Rig::start().await;
    let mut tasks = vec![json!({"taskQueueId": QUEUE, "name": "first"})];
    tasks.extend((1..1000).map(|n| {
        let dependencies = if n % 2 == 0 { json!(["first"]) } else { json!([]) };
        json!({"taskQueueId": QUEUE, "name": format!("n{n}"), "dependencies": dependencies})
    }));
    let started = std::time::Instant::now();
    let answer = submit(&rig, &json!({ "tasks": tasks })).await;
    println!("1,000 tasks took {:?}", started.elapsed());
    assert_eq!(answer.status, 200, "{}", answer.body);
    assert_eq!(states(&answer.body).iter().filter(|state| **state == "pending").count(), 501);
    assert_eq!(answer.body["tasks"][999]["name"], "n999");
    let counts = rig.call("GET", "/task-queues/submit%2Fgraph/counts", None).await.body;
    assert_eq!(counts["pendingTasks"], 501);
    assert_eq!(complete_one(&rig).await, ids(&answer.body)[0], "the order of the request is the order of the queue");
    eventually("all may run", async || {
        let counts = rig.call("GET", "/task-queues/submit%2Fgraph/counts", None).await.body;
        (counts["pendingTasks"] == 999).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dense_graph_is_created() {
    let rig = Rig::start().await;
    let tasks: Vec<Value> = (0..400)
        .map(|n| json!({"taskQueueId": QUEUE, "name": n.to_string(), "dependencies": (0..n).map(|k: i32| k.to_string()).collect::<Vec<_>>()}))
        .collect();
    let started = std::time::Instant::now();
    let answer = submit(&rig, &json!({ "tasks": tasks })).await;
    println!("79,800 dependencies took {:?}", started.elapsed());
    assert_eq!(answer.status, 200, "{}", answer.body);
    assert_eq!(count(&rig, "SELECT count(*) FROM dependencies").await, 79_800);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_task_that_is_refused_is_the_end_of_all() {
    let rig = Rig::start().await;
    let (taken, sealed, missing) = (new_task(), new_task(), new_task());
    assert_eq!(rig.create(taken, &definition("other/queue")).await.status, 200);
    assert_eq!(rig.create(sealed, &definition("other/queue")).await.status, 200);
    assert_eq!(rig.call("POST", &format!("/task-group/{sealed}/seal"), None).await.status, 200);
    eventually("counts are folded", async || (count(&rig, "SELECT count(*) FROM outbox_new").await == 0).then_some(()))
        .await;
    let before = left_behind(&rig).await;
    for (bad, status, code, expected) in [
        (json!({"taskId": taken}), 409, "RequestConflict", "exists already"),
        (json!({"dependencies": [missing]}), 400, "InputError", "do not exist"),
        (json!({"created": minutes_from_now(-30)}), 400, "InputError", "`created` must be within 15 minutes"),
        (
            json!({"deadline": minutes_from_now(60 * 24 * 367)}),
            400,
            "InputError",
            "`deadline` must be at most 366 days",
        ),
        (json!({"schedulerId": "somebody-else"}), 409, "RequestConflict", "belongs to schedulerId -"),
        (json!({"retries": 50}), 400, "InputValidationError", "`retries`"),
        (json!({"dependencies": ["n701", "who"]}), 400, "InputError", "neither a task id nor"),
    ] {
        let mut tasks: Vec<Value> = (0..1000).map(|n| json!({"taskQueueId": QUEUE, "name": format!("n{n}")})).collect();
        for (field, value) in bad.as_object().unwrap() {
            tasks[700][field] = value.clone();
        }
        let reply = submit_keyed(&rig, "a key", &json!({ "tasks": tasks })).await;
        let body = reply.json();
        let message = body["message"].as_str().unwrap();
        assert_eq!((reply.status, body["code"].as_str().unwrap()), (status, code), "{message}");
        assert!(message.contains("tasks[700]") && message.contains(expected), "{message}");
        assert_eq!(left_behind(&rig).await, before, "{message}");
    }
    let body = json!({"taskGroupId": sealed, "tasks": [{"taskQueueId": QUEUE}, {"taskQueueId": QUEUE}]});
    let answer = submit(&rig, &body).await;
    assert_eq!((answer.status, answer.code()), (409, "RequestConflict"));
    assert!(answer.body["message"].as_str().unwrap().starts_with("tasks[0]: task group"), "{}", answer.body);
    assert_eq!(left_behind(&rig).await, before);
    let reply = submit_keyed(&rig, "a key", &json!({"taskQueueId": QUEUE})).await;
    assert_eq!(reply.status, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_task_needs_the_scopes_of_create_task() {
    let rig = Rig::start().await;
    let scopes = ["queue:create-task:lowest:submit/*", "queue:create-task:project:none", "queue:scheduler-id:-"];
    let narrow = rig.make_client("narrow", &scopes).await;
    let path = format!("{TENURE_API}/tasks");
    let mut client = rig.client();
    let good = json!({"tasks": [{"taskQueueId": QUEUE}, {"taskQueueId": QUEUE}]});
    assert_eq!(call(&mut client, &narrow, "POST", &path, Some(&good)).await.status, 200);
    let bad = json!({"tasks": [{"taskQueueId": QUEUE}, {"taskQueueId": QUEUE, "priority": "high"}]});
    let answer = call(&mut client, &narrow, "POST", &path, Some(&bad)).await;
    assert_eq!((answer.status, answer.code()), (403, "InsufficientScopes"));
    assert!(answer.body["message"].as_str().unwrap().starts_with("tasks[1]: "), "{}", answer.body);
    assert_eq!(count(&rig, "SELECT count(*) FROM tasks").await, 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idempotency_key_that_is_too_long_or_not_ascii_is_refused() {
    let rig = Rig::start().await;
    let good = json!({"taskQueueId": QUEUE});
    for key in ["", &"x".repeat(256), "\u{e9}", "a\tb"] {
        let reply = submit_keyed(&rig, key, &good).await;
        assert!(reply.json()["message"].as_str().unwrap().contains("Idempotency-Key must be given once"), "{key:?}");
        reply.refused(400, "InvalidRequestArguments");
    }
    assert_eq!(submit_keyed(&rig, &"x".repeat(255), &good).await.status, 200);
    assert_eq!(count(&rig, "SELECT count(*) FROM tasks").await, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn repeat_with_ids_creates_missing_tasks() {
    let rig = Rig::start().await;
    let group = new_task();
    let entry = |id, dependencies: Value| {
        let mut entry = definition(QUEUE);
        entry["taskId"] = json!(id);
        entry["dependencies"] = dependencies;
        entry
    };
    let (one, two, three) = (new_task(), new_task(), new_task());
    let first = entry(one, json!([]));
    let both = [first.clone(), entry(two, json!([one]))];
    let body = json!({"taskGroupId": group, "tasks": both});
    assert_eq!(submit(&rig, &body).await.status, 200);
    complete_one(&rig).await;
    let again = submit(&rig, &body).await;
    assert_eq!((again.status, states(&again.body)[0]), (200, "completed"), "{}", again.body);
    // A new task that depends on a pending and a resolved one.
    let more = json!({"taskGroupId": group, "tasks": [first, both[1], entry(three, json!([one, two]))]});
    let answer = submit(&rig, &more).await;
    assert_eq!((answer.status, states(&answer.body)[2]), (200, "unscheduled"), "{}", answer.body);
    assert_eq!(count(&rig, "SELECT count(*) FROM tasks").await, 3);
    assert_eq!(complete_one(&rig).await, two.to_string());
    assert_eq!(complete_one(&rig).await, three.to_string());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_makes_a_repeat_harmless() {
    let rig = Rig::start().await;
    let body = json!({"tasks": [{"taskQueueId": QUEUE, "name": "a"}, {"taskQueueId": QUEUE, "dependencies": ["a"]}]});
    let first = submit_keyed(&rig, "once", &body).await.json();
    let again = submit_keyed(&rig, "once", &body).await.json();
    assert_eq!(again, first);
    let text = r#"{ "tasks": [ {"name":"a", "taskQueueId":"submit/graph"}, {"dependencies":["a"],"taskQueueId":"submit/graph"} ] }"#;
    let raw = keyed(&rig, &rig.root, "once", &body).json(Some(text.as_bytes()));
    assert_eq!(rig.send(&raw).await.json(), first);
    let other = submit_keyed(&rig, "once", &json!({"taskQueueId": QUEUE})).await;
    assert!(other.json()["message"].as_str().unwrap().contains("header Idempotency-Key"));
    other.refused(409, "RequestConflict");
    assert_eq!(count(&rig, "SELECT count(*) FROM tasks").await, 2);
    complete_one(&rig).await;
    let later = submit_keyed(&rig, "once", &body).await.json();
    assert_eq!((ids(&later), states(&later)[0]), (ids(&first), "completed"), "the same tasks as they are now");
    // Another key, or another client with the same key, is independent.
    assert_ne!(ids(&submit_keyed(&rig, "twice", &body).await.json()), ids(&first));
    let friend = rig.make_client("friend", &["*"]).await;
    assert_ne!(ids(&rig.send(&keyed(&rig, &friend, "once", &body)).await.json()), ids(&first));
    assert_eq!(count(&rig, "SELECT count(*) FROM tasks").await, 6);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_repeat_with_its_key_is_answered_after_the_deadline_too() {
    let rig = Rig::start().await;
    let deadline = Timestamp::new(real_now() + chrono::TimeDelta::milliseconds(1500));
    let body = json!({"taskQueueId": QUEUE, "deadline": deadline});
    let first = submit_keyed(&rig, "once", &body).await.json();
    assert_eq!(states(&first), ["pending"], "{first}");
    tokio::time::sleep(Duration::from_millis(1700)).await;
    let later = submit_keyed(&rig, "once", &body).await.json();
    assert_eq!(ids(&later), ids(&first), "{later}");
    submit_keyed(&rig, "another", &body).await.refused(400, "InputError");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_with_the_same_key_at_once_create_once() {
    let rig = Rig::start().await;
    let tasks: Vec<Value> = (0..50).map(|_| json!({"taskQueueId": QUEUE})).collect();
    let body = json!({ "tasks": tasks });
    for round in 1..=5 {
        let key = format!("round {round}");
        let (one, two, three) = tokio::join!(
            submit_keyed(&rig, &key, &body),
            submit_keyed(&rig, &key, &body),
            submit_keyed(&rig, &key, &body)
        );
        assert_eq!((one.status, two.status, three.status), (200, 200, 200));
        assert_eq!(ids(&one.json()), ids(&two.json()));
        assert_eq!(ids(&one.json()), ids(&three.json()));
        assert_eq!(count(&rig, "SELECT count(*) FROM tasks").await, 50 * round);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_of_two_graphs_with_same_task_is_refused_whole() {
    let rig = Rig::start().await;
    let second = rig.another("second").await;
    for round in 1..=5 {
        let (group, shared) = (new_task(), new_task());
        let graph = |name: &str| {
            let mut tasks = vec![json!({"taskQueueId": QUEUE}); 40];
            tasks[20] = json!({"taskQueueId": QUEUE, "taskId": shared, "metadata": {"name": name}});
            json!({"taskGroupId": group, "tasks": tasks})
        };
        let (one, other, path) = (graph("one"), graph("other"), format!("{TENURE_API}/tasks"));
        let mut client = crate::rig::client_of(&second);
        let (one, other) = tokio::join!(submit(&rig, &one), call(&mut client, &rig.root, "POST", &path, Some(&other)));
        let mut outcomes = [one.status, other.status];
        outcomes.sort_unstable();
        assert_eq!(outcomes, [200, 409], "{} {}", one.body, other.body);
        assert_eq!(count(&rig, "SELECT count(*) FROM tasks").await, 40 * round);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_repeat_after_a_lost_answer_finds_what_was_created() {
    let mut rig = Rig::start().await;
    let tasks: Vec<Value> = (0..300).map(|_| json!({"taskQueueId": QUEUE})).collect();
    let body = json!({ "tasks": tasks });
    let (raw, url) = (keyed(&rig, &rig.root, "lost", &body), rig.server.root_url().to_owned());
    let sent = tokio::spawn(async move { raw.send(&url).await.status });
    eventually("it is committed", async || (count(&rig, "SELECT count(*) FROM tasks").await == 300).then_some(()))
        .await;
    rig.server.kill().unwrap();
    sent.abort();
    let mut database = rig.database.connect("test").await;
    let stored =
        sqlx::query("SELECT tasks FROM idempotency_keys WHERE key = 'lost'").fetch_one(&mut database).await.unwrap();
    let stored: Vec<String> = stored
        .get::<Vec<sqlx::types::Uuid>, _>(0)
        .into_iter()
        .map(|id| tenure_api::ids::SlugId::from_uuid(id).unwrap().to_string())
        .collect();
    rig.server = rig.another("second").await;
    let answer = submit_keyed(&rig, "lost", &body).await;
    assert_eq!((answer.status, ids(&answer.json())), (200, stored));
    assert_eq!(count(&rig, "SELECT count(*) FROM tasks").await, 300);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_is_purged_after_a_day() {
    let rig = Rig::start().await;
    let (body, other) = (json!({"taskQueueId": QUEUE}), json!({"taskQueueId": QUEUE, "priority": "high"}));
    let first = submit_keyed(&rig, "day", &body).await.json();
    let mut database = rig.database.connect("test").await;
    let age = "UPDATE idempotency_keys SET created = created - interval '23 hours 59 minutes'";
    sqlx::query(age).execute(&mut database).await.unwrap();
    assert_eq!(ids(&submit_keyed(&rig, "day", &body).await.json()), ids(&first));
    let age = "UPDATE idempotency_keys SET created = created - interval '1 minute'";
    sqlx::query(age).execute(&mut database).await.unwrap();
    // An expired key is ignored before the pass deletes it.
    assert_eq!(submit_keyed(&rig, "day", &other).await.status, 200);
    submit_keyed(&rig, "day", &body).await.refused(409, "RequestConflict");
    let age = "UPDATE idempotency_keys SET created = created - interval '1 day'";
    sqlx::query(age).execute(&mut database).await.unwrap();
    // Old keys are purged once a minute, and when a server starts.
    let _second = rig.another("second").await;
    eventually("it is gone", async || (count(&rig, "SELECT count(*) FROM idempotency_keys").await == 0).then_some(()))
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_queues_are_listed_with_their_counts() {
    let rig = Rig::start().await;
    let body = json!({"tasks": [{"taskQueueId": "b/b"}, {"taskQueueId": "a/a"}, {"taskQueueId": "b/b"}]});
    assert_eq!(submit(&rig, &body).await.status, 200);
    assert_eq!(rig.claim("b/b", 1).await.len(), 1);
    let path = format!("{TENURE_API}/queues");
    let expected = json!({"queues": [
        {"taskQueueId": "a/a", "pendingTasks": 1, "claimedTasks": 0, "delayedTasks": 0, "waitingTasks": 0, "runnableTasks": 1},
        {"taskQueueId": "b/b", "pendingTasks": 1, "claimedTasks": 1, "delayedTasks": 0, "waitingTasks": 0, "runnableTasks": 1},
    ]});
    assert_eq!(rig.call("GET", &path, None).await.body, expected);
    let narrow = rig.make_client("narrow", &["queue:create-task:*"]).await;
    let answer = call(&mut rig.client(), &narrow, "GET", &path, None).await;
    assert_eq!((answer.status, answer.code()), (403, "InsufficientScopes"));
}
