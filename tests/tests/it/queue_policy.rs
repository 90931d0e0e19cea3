//! Policies of queues, and pauses.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use sqlx::Row as _;
use tenure_api::credentials::Credentials;
use tenure_tests::http::{Answer, TENURE_API};
use tenure_tests::server::Launch;

use crate::rig::{
    Raw, RawReply, Rig, Signature, call, claim, claim_path, client_of, credentials_of, definition, eventually,
    new_task, ok, run_of, status, worker,
};

const QUEUE: &str = "policy/linux";
const WAIT: Duration = Duration::from_secs(2);

fn path(rest: &str) -> String {
    format!("{TENURE_API}/queues/policy%2Flinux/{rest}")
}

async fn put(rig: &Rig, policy: &Value) -> Answer {
    rig.call("PUT", &path("policy"), Some(policy)).await
}

async fn refiled(rig: &Rig) -> Value {
    eventually("all runs follow the policy", async || {
        let body = rig.call("GET", &path("policy"), None).await.body;
        (body["refiling"] == 0).then_some(body)
    })
    .await
}

async fn with_if_match(rig: &Rig, method: &str, version: &str, policy: Option<&Value>) -> RawReply {
    let target = path("policy");
    let signature = Signature { who: &rig.root, method, target: &target, ..Signature::of(&rig.server) };
    let body = policy.map(Value::to_string);
    let raw = Raw::new(method, &target).authorization(&signature.header()).json(body.as_ref().map(String::as_bytes));
    rig.send(&raw.header("If-Match", version)).await
}

async fn pause(rig: &Rig, body: &Value) -> Answer {
    let answer = rig.call("POST", &path("pause"), Some(body)).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    answer
}

async fn resume(rig: &Rig) {
    let answer = rig.call("POST", &path("resume"), None).await;
    assert_eq!((answer.status, answer.body), (200, json!({"taskQueueId": QUEUE, "paused": false})));
}

async fn notes(rig: &Rig) -> Vec<(String, Value)> {
    let answer = rig.call("GET", &format!("{TENURE_API}/events?after=0"), None).await;
    let events = answer.body["events"].as_array().unwrap_or_else(|| panic!("{}", answer.body)).clone();
    let ours = events.into_iter().filter_map(|event| {
        let name = event["exchange"].as_str()?.strip_prefix("exchange/tenure/v1/")?.to_owned();
        assert_eq!(event["routingKey"], "primary.policy.linux._");
        Some((name, event["payload"].clone()))
    });
    ours.collect()
}

async fn stored_retention(rig: &Rig) -> [Option<f64>; 3] {
    let mut database = rig.database.connect("test").await;
    let sql = "SELECT deadline_after, retain_completed, retain_failed FROM task_queues WHERE name = 'policy/linux'";
    let row = sqlx::query(sql).fetch_one(&mut database).await.unwrap();
    [0_usize, 1, 2].map(|column| row.get(column))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn retention_is_copied_to_the_queue_and_removed() {
    let rig = Rig::start().await;
    for (policy, expected) in [
        (
            json!({"deadlineAfter": 60, "retain": {"completed": 604_800, "failed": null}}),
            [60.0, 604_800.0, f64::INFINITY],
        ),
        (json!({"deadlineAfter": 31_622_400, "retain": {}}), [31_622_400.0, f64::INFINITY, f64::INFINITY]),
    ] {
        ok(put(&rig, &policy).await);
        assert_eq!(stored_retention(&rig).await, expected.map(Some), "{policy}");
    }
    assert_eq!(rig.call("DELETE", &path("policy"), None).await.status, 200);
    assert_eq!(stored_retention(&rig).await, [None; 3]);
    ok(put(&rig, &json!({"retain": {"failed": 60}})).await);
    assert_eq!(stored_retention(&rig).await, [None, Some(f64::INFINITY), Some(60.0)]);
    for (wrong, field) in [
        (json!({"retain": {"completed": 59}}), "`retain.completed`"),
        (json!({"retain": {"failed": 31_622_401}}), "`retain.failed`"),
    ] {
        let refused = put(&rig, &wrong).await;
        assert_eq!((refused.status, refused.code()), (400, "InputError"));
        assert!(refused.body["message"].as_str().unwrap().contains(field), "{}", refused.body);
    }
    assert_eq!(stored_retention(&rig).await, [None, Some(f64::INFINITY), Some(60.0)], "refusals change nothing");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn policy_is_shown_as_sent_with_a_version_per_change() {
    let rig = Rig::start().await;
    let get = async || rig.call("GET", &path("policy"), None).await;
    assert_eq!(get().await.code(), "ResourceNotFound");
    assert_eq!(rig.call("DELETE", &path("policy"), None).await.body, json!({}), "whether there is one or not");
    let first = json!({"delivery": "at-least-once", "completeTime": 600});
    let stored = ok(put(&rig, &first).await);
    let expected = json!({"taskQueueId": QUEUE, "version": 1, "policy": first, "clientId": rig.root.client_id, "refiling": 0,
        "updated": stored["updated"]});
    assert_eq!(stored["refiling"], 1, "a run that is created meanwhile may not follow it yet");
    assert_eq!(refiled(&rig).await, expected);
    assert_eq!(put(&rig, &first).await.body, expected, "a repeat changes nothing");
    let elsewhere = format!("{TENURE_API}/queues/policy/linux/policy");
    assert_eq!(rig.call("GET", &elsewhere, None).await.body, expected, "in two segments");
    let other = rig.another("two").await;
    let seen = call(&mut client_of(&other), &rig.root, "GET", &path("policy"), None).await;
    assert_eq!(seen.body, expected, "at another server");

    let second = json!({"delay": 30});
    for wrong in ["\"2\"", "\"0\""] {
        let refused = with_if_match(&rig, "PUT", wrong, Some(&second)).await;
        let why = refused.refused(409, "RequestConflict");
        assert!(why.contains("has version 1"), "{why}");
    }
    for (wrong, code) in [("1", "InputError"), ("\"x\"", "InputError"), ("W/\"1\"", "InputError")] {
        let why = with_if_match(&rig, "PUT", wrong, Some(&second)).await.refused(400, code);
        assert!(why.contains("If-Match"), "{why}");
    }
    assert_eq!(get().await.body, expected, "nothing was changed");
    for repeat in ["a change", "the same, whose answer was lost"] {
        assert_eq!(with_if_match(&rig, "PUT", "\"1\"", Some(&second)).await.json()["version"], 2, "{repeat}");
    }
    with_if_match(&rig, "DELETE", "\"1\"", None).await.refused(409, "RequestConflict");
    for repeat in ["a change", "the same, whose answer was lost"] {
        assert_eq!(with_if_match(&rig, "DELETE", "\"2\"", None).await.json(), json!({}), "{repeat}");
        assert_eq!(get().await.code(), "ResourceNotFound");
    }
    with_if_match(&rig, "PUT", "*", Some(&second)).await.refused(409, "RequestConflict");
    assert!(put(&rig, &second).await.body["version"].as_i64().unwrap() > 2, "versions go on growing");

    let changes = notes(&rig).await;
    assert!(changes.iter().all(|(name, _)| name == "queue-policy-changed"), "{changes:?}");
    let seen: Vec<_> =
        changes.iter().map(|(_, note)| (note["policyVersion"].clone(), note["policy"].clone())).collect();
    let all = [(1, first), (2, second.clone()), (3, Value::Null), (4, second)];
    assert_eq!(seen, all.map(|(version, policy)| (json!(version), policy)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn queue_named_like_a_path_end_needs_one_segment() {
    let rig = Rig::start().await;
    for word in ["policy", "pause", "resume", "workers"] {
        let queue = format!("acme/{word}");
        let of = |segments: &str, rest: &str| format!("{TENURE_API}/queues/{segments}{rest}");
        let (one, two) = (format!("acme%2F{word}"), format!("acme/{word}"));
        for (segments, version) in [(&one, 1), (&two, 2)] {
            let delay = json!({"delay": 30 * version});
            let put = rig.call("PUT", &of(segments, "/policy"), Some(&delay)).await;
            assert_eq!((put.status, &put.body["taskQueueId"]), (200, &json!(queue)), "{segments}: {}", put.body);
            let get = rig.call("GET", &of(segments, "/policy"), None).await.body;
            assert_eq!((&get["policy"], &get["version"]), (&delay, &json!(version)), "{segments}: {get}");
            let paused = rig.call("POST", &of(segments, "/pause"), Some(&json!({"reason": "night"}))).await;
            assert_eq!(
                (paused.status, &paused.body["taskQueueId"]),
                (200, &json!(queue)),
                "{segments}: {}",
                paused.body
            );
            let now = rig.call("GET", &of(&one, ""), None).await.body;
            assert_eq!((&now["taskQueueId"], &now["pause"]["reason"]), (&json!(queue), &json!("night")), "{now}");
            let resumed = rig.call("POST", &of(segments, "/resume"), None).await;
            assert_eq!(resumed.body, json!({"taskQueueId": queue, "paused": false}), "{segments}");
            let workers = rig.call("GET", &of(segments, "/workers"), None).await;
            assert_eq!((workers.status, workers.body), (200, json!({"workers": []})), "{segments}");
        }
        // Two segments name a part of the queue `default/acme`.
        let taken = rig.call("GET", &of(&two, ""), None).await.status;
        assert_eq!(
            taken,
            match word {
                "policy" => 404,
                "workers" => 200,
                _ => 405,
            },
            "{word}"
        );
        assert_eq!(rig.call("DELETE", &of(&one, "/policy"), None).await.body, json!({}));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changes_need_a_scope_and_reading_another_one() {
    let rig = Rig::start().await;
    let manager = rig.make_client("manager", &[&format!("tenure:manage-queue:{QUEUE}")]).await;
    let reader = rig.make_client("reader", &[&format!("tenure:get-queue:{QUEUE}")]).await;
    let elsewhere = rig.make_client("elsewhere", &["tenure:manage-queue:other/*", "tenure:get-queue:other/*"]).await;
    let status = async |who: &Credentials, method: &str, rest: &str| {
        let body = (method == "PUT").then(|| json!({}));
        call(&mut rig.client(), who, method, &path(rest), body.as_ref()).await.status
    };
    let changes = [("PUT", "policy"), ("POST", "pause"), ("POST", "resume"), ("DELETE", "policy")];
    for (method, rest) in changes {
        assert_eq!(status(&reader, method, rest).await, 403, "{method} {rest}");
        assert_eq!(status(&elsewhere, method, rest).await, 403, "{method} {rest}");
        let without = rig.send(&Raw::new(method, &path(rest)).json(Some(b"{}"))).await;
        without.refused(403, "InsufficientScopes");
    }
    assert_eq!(status(&manager, "PUT", "policy").await, 200);
    assert_eq!((status(&reader, "GET", "policy").await, status(&manager, "GET", "policy").await), (200, 403));
    assert_eq!(status(&elsewhere, "GET", "policy").await, 403);
    for (method, rest) in changes {
        assert_eq!(status(&manager, method, rest).await, 200, "{method} {rest}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn paused_queue_hands_out_nothing_and_accepts_reports() {
    let wait = format!("{}s", WAIT.as_secs());
    let rig = Rig::start_with(|launch| launch.flag("--claim-work-wait", &wait)).await;
    let (running, waiting) = (new_task(), new_task());
    assert_eq!(rig.create(running, &definition(QUEUE)).await.status, 200);
    let held = rig.claim(QUEUE, 1).await.remove(0);
    let launch = Launch::on_database(rig.database.url(), &rig.secret_key).flag("--claim-work-wait", &wait);
    let other = launch.start(rig.folder.path(), "two").await;
    let paused = pause(&rig, &json!({"reason": "full"})).await.body;
    let expected = json!({"taskQueueId": QUEUE, "paused": true, "since": paused["since"], "reason": "full",
        "clientId": rig.root.client_id});
    assert_eq!(paused, expected);
    assert_eq!(pause(&rig, &json!({"reason": "full"})).await.body, expected, "a repeat changes nothing");

    assert_eq!(rig.create(waiting, &definition(QUEUE)).await.status, 200);
    for server in [&rig.server, &other] {
        let asked = Instant::now();
        assert!(claim(&mut client_of(server), &rig.root, QUEUE, 1).await.is_empty());
        assert!(asked.elapsed() >= WAIT, "it waits as long as if there were nothing");
    }
    let named = rig.call("POST", &format!("/task/{waiting}/runs/0/claim"), Some(&worker_body())).await;
    assert_eq!((named.status, named.code()), (409, "RequestConflict"));
    let why = named.body["message"].as_str().unwrap();
    assert!(why.contains("is paused by root: full"), "{why}");
    assert_eq!(rig.status(waiting).await["state"], "pending");
    let counts = rig.call("GET", "/pending/policy%2Flinux", None).await.body;
    assert_eq!(counts["pendingTasks"], 1);
    rig.create_one("policy/other").await;
    assert_eq!(rig.claim("policy/other", 1).await.len(), 1, "another queue is not paused");

    let credentials = credentials_of(&held);
    for step in ["reclaim", "completed"] {
        let path = format!("{}/{step}", run_of(&held));
        assert_eq!(call(&mut rig.client(), &credentials, "POST", &path, None).await.status, 200, "{step}");
    }
    assert_eq!(status(&mut rig.client(), &rig.root, running).await["state"], "completed");

    // Workers that wait at both servers get the pending runs as soon as the queue is resumed.
    rig.create_one(QUEUE).await;
    let wait_at = |server| {
        let (mut client, root) = (client_of(server), rig.root.clone());
        tokio::spawn(async move { call(&mut client, &root, "POST", &claim_path(QUEUE), Some(&worker(1))).await })
    };
    let waiters = [wait_at(&rig.server), wait_at(&other)];
    tokio::time::sleep(WAIT / 4).await;
    resume(&rig).await;
    resume(&rig).await;
    for waiter in waiters {
        let answer = waiter.await.unwrap();
        assert_eq!(answer.body["tasks"].as_array().map(Vec::len), Some(1), "{}", answer.body);
    }
    let names: Vec<String> = notes(&rig).await.into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["queue-paused", "queue-resumed"]);
}

async fn poll(rig: &Rig) -> usize {
    let urls = rig.call("GET", "/poll-task-url/policy/linux", None).await.body;
    let lowest = urls["queues"][6]["signedPollUrl"].as_str().unwrap();
    let reply = rig.send(&Raw::new("GET", lowest.strip_prefix(rig.server.root_url()).unwrap())).await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    reply.text().matches("<QueueMessage>").count()
}

async fn work(rig: &Rig, result: &Value) -> usize {
    let body = json!({"taskQueueId": QUEUE, "workerGroup": "group", "workerId": "worker", "claim": 1, "results": [result],
        "wait": 0});
    let answer = ok(rig.call("POST", &format!("{TENURE_API}/work"), Some(&body)).await);
    assert_eq!(answer["results"][0]["status"]["state"], "completed", "{answer}");
    answer["tasks"].as_array().unwrap().len()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pause_holds_for_every_way_to_ask_for_work() {
    let wait = format!("{}s", WAIT.as_secs());
    let rig = Rig::start_with(|launch| launch.flag("--claim-work-wait", &wait)).await;
    let running = [new_task(), new_task()];
    for task in running {
        assert_eq!(rig.create(task, &definition(QUEUE)).await.status, 200);
    }
    assert_eq!(rig.claim(QUEUE, 2).await.len(), 2);
    let result = |n: usize| json!({"taskId": running[n], "runId": 0, "outcome": "completed"});
    let parked = {
        let (mut client, root) = (rig.client(), rig.root.clone());
        tokio::spawn(async move { call(&mut client, &root, "POST", &claim_path(QUEUE), Some(&worker(1))).await })
    };
    tokio::time::sleep(WAIT / 4).await;
    pause(&rig, &json!({})).await;
    let tasks = [new_task(), new_task(), new_task(), new_task()];
    for task in tasks {
        assert_eq!(rig.create(task, &definition(QUEUE)).await.status, 200);
    }
    assert_eq!(parked.await.unwrap().body["tasks"], json!([]), "it waits on, and gets nothing");
    assert!(rig.claim(QUEUE, 1).await.is_empty());
    assert_eq!(poll(&rig).await, 0);
    assert_eq!(work(&rig, &result(0)).await, 0, "results are taken");
    let by_name = async |n: usize| {
        rig.call("POST", &format!("/task/{}/runs/0/claim", tasks[n]), Some(&worker_body())).await.status
    };
    assert_eq!(by_name(0).await, 409);

    resume(&rig).await;
    assert_eq!(by_name(0).await, 200);
    assert_eq!(work(&rig, &result(1)).await, 1);
    assert_eq!(rig.claim(QUEUE, 1).await.len(), 1);
    assert_eq!(poll(&rig).await, 1, "the last one");

    pause(&rig, &json!({})).await;
    let mut claimed = Vec::new();
    for &task in &tasks {
        claimed.push(rig.status(task).await["state"] == "running");
    }
    let last = claimed.iter().position(|claimed| !claimed).unwrap();
    assert_eq!(by_name(last).await, 409);
    resume(&rig).await;
    assert_eq!(by_name(last).await, 200);
}

fn worker_body() -> Value {
    json!({"workerGroup": "group", "workerId": "worker"})
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failing_refile_is_logged_once_and_again_on_recovery() {
    let rig = Rig::start().await;
    let mut conn = rig.database.connect("test").await;
    // So slowly that the pass is postponed, and passes without it succeed.
    let fail = "CREATE FUNCTION fail_slowly() RETURNS trigger LANGUAGE plpgsql AS
                $$ BEGIN PERFORM pg_sleep(0.25); RAISE 'not now'; END $$;
                CREATE TRIGGER fail_slowly BEFORE UPDATE ON queue_policies FOR EACH ROW EXECUTE FUNCTION fail_slowly()";
    sqlx::raw_sql(fail).execute(&mut conn).await.unwrap();
    assert_eq!(put(&rig, &json!({"delay": 1})).await.status, 200);
    let passes = async |metric: &str| {
        let text = rig.send(&Raw::new("GET", "/metrics")).await.text();
        let name = format!("{metric}{{pass=\"refile\"}} ");
        text.lines().find_map(|line| line.strip_prefix(&name)?.parse::<f64>().ok()).unwrap_or_default()
    };
    let logged = |what: &str| {
        let log = rig.server.log();
        log.lines().filter(|line| line.contains(&format!("background pass {what}")) && line.contains("refile")).count()
    };
    eventually("it fails", async || (passes("tenure_pass_failures_total").await > 0.0).then_some(())).await;
    let succeeded = passes("tenure_pass_seconds_count").await;
    eventually("it is put off", async || (passes("tenure_pass_seconds_count").await > succeeded).then_some(())).await;
    assert_eq!((logged("failed"), logged("recovered")), (1, 0));
    sqlx::raw_sql("DROP FUNCTION fail_slowly CASCADE").execute(&mut conn).await.unwrap();
    refiled(&rig).await;
    eventually("it has recovered", async || (logged("recovered") == 1).then_some(())).await;
    assert_eq!(logged("failed"), 1);
}
