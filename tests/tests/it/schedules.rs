//! Schedules: requests, rights, and two servers that are killed.

use std::time::Duration;

use serde_json::{Value, json};
use tenure_api::credentials::Credentials;
use tenure_tests::http::{Answer, TENURE_API};
use tenure_tests::random::Random;
use tenure_tests::server::Launch;

use crate::rig::{Raw, Rig, Signature, call, client_of, eventually, ok};

const QUEUE: &str = "schedules/linux";
/// More with `TENURE_SCHEDULES=10000`.
const SCHEDULES: usize = 200;
const KILLS: usize = 4;

fn path(rest: &str) -> String {
    format!("{TENURE_API}/schedules/{rest}")
}

/// Its only time by itself is in January.
fn yearly() -> Value {
    json!({"cron": "0 3 1 1 *", "timezone": "Europe/Berlin", "task": {"taskQueueId": QUEUE}, "deadlineAfter": 3600})
}

async fn put(rig: &Rig, who: &Credentials, name: &str, body: &Value) -> Answer {
    call(&mut rig.client(), who, "PUT", &path(name), Some(body)).await
}

/// Makes all schedules due now.
async fn come_due(rig: &Rig) {
    let mut database = rig.database.connect("test").await;
    let sql = "UPDATE schedules SET next_at = date_trunc('second', now()), try_at = now()";
    sqlx::query(sql).execute(&mut database).await.unwrap();
}

async fn handled(rig: &Rig, name: &str) -> Value {
    eventually("the schedule was handled", async || {
        let schedule = ok(rig.call("GET", &path(name), None).await);
        let next = schedule["next"][0].as_str()?.to_owned();
        (schedule["last"].is_object() && next.contains("-01-01T02:00:00")).then_some(schedule)
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_servers_killed_at_random_make_each_time_once() {
    let rig = Rig::start().await;
    let amount: usize = std::env::var("TENURE_SCHEDULES").map_or(SCHEDULES, |text| text.parse().unwrap());
    ok(put(&rig, &rig.root, "s1", &yearly()).await);
    let mut database = rig.database.connect("test").await;
    let copies = "INSERT INTO schedules (name, cron, timezone, task, deadline_after, catch_up, paused, next_at, try_at, client_id,
                                         created, changed)
                  SELECT 's' || n, cron, timezone, task, deadline_after, catch_up, paused, next_at, try_at, client_id, created,
                         changed
                  FROM schedules, generate_series(2, $1) n";
    sqlx::query(copies).bind(i32::try_from(amount).unwrap()).execute(&mut database).await.unwrap();
    let mut other = rig.another("other-0").await;
    come_due(&rig).await;
    let mut random = Random::from_seed(Random::fresh_seed());
    let left = "SELECT count(*) FROM schedules WHERE next_at <= now()";
    for round in 1..=KILLS {
        tokio::time::sleep(Duration::from_millis(random.below(400))).await;
        other.kill().unwrap();
        other = rig.another(&format!("other-{round}")).await;
    }
    let mut before = i64::MAX;
    while before > 0 {
        before = eventually("more schedules were handled", async || {
            let left: i64 = sqlx::query_scalar(left).fetch_one(&mut database).await.unwrap();
            (left < before).then_some(left)
        })
        .await;
    }
    let made: Vec<(String, i64)> =
        sqlx::query_as("SELECT tags::jsonb->>'tenure-schedule', count(*) FROM task_definitions GROUP BY 1")
            .fetch_all(&mut database)
            .await
            .unwrap();
    assert_eq!(made.len(), amount, "every schedule made a task");
    assert!(made.iter().all(|(_, tasks)| *tasks == 1), "{made:?}");
    let dated: i64 =
        sqlx::query_scalar("SELECT count(*) FROM schedules WHERE last_outcome = 1 AND last_task IS NOT NULL")
            .fetch_one(&mut database)
            .await
            .unwrap();
    assert_eq!(dated, amount as i64);
    other.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn schedule_is_shown_with_its_next_times() {
    let rig = Rig::start().await;
    let stored = ok(put(&rig, &rig.root, "yearly", &yearly()).await);
    assert_eq!(stored, ok(rig.call("GET", &path("yearly"), None).await));
    assert_eq!(stored["task"], yearly()["task"]);
    assert_eq!((&stored["catchUp"], &stored["paused"]), (&json!("last"), &json!(false)));
    assert_eq!(stored["clientId"], rig.root.client_id);
    let next = stored["next"].as_array().unwrap();
    assert_eq!(next.len(), 5);
    // 03:00 in Berlin.
    assert!(next.iter().all(|time| time.as_str().unwrap().ends_with("-01-01T02:00:00.000Z")), "{stored}");
    let paused = ok(rig.call("POST", &path("yearly/pause"), None).await);
    assert_eq!((&paused["paused"], &paused["next"]), (&json!(true), &json!([])));
    let task = ok(rig.call("POST", &path("yearly/trigger"), None).await)["taskId"].clone();
    let definition = ok(rig.call("GET", &format!("/task/{}", task.as_str().unwrap()), None).await);
    assert_eq!(definition["tags"]["tenure-schedule"], "yearly");
    assert_eq!(definition["metadata"]["owner"], rig.root.client_id);
    let resumed = ok(rig.call("POST", &path("yearly/resume"), None).await);
    assert_eq!(resumed["next"], stored["next"]);
    assert_eq!(rig.call("DELETE", &path("yearly"), None).await.body, json!({}));
    for (method, rest) in
        [("GET", "yearly"), ("DELETE", "yearly"), ("POST", "yearly/trigger"), ("POST", "yearly/pause")]
    {
        assert_eq!(rig.call(method, &path(rest), None).await.code(), "ResourceNotFound", "{method} {rest}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn repeated_trigger_makes_one_task() {
    let rig = Rig::start().await;
    ok(put(&rig, &rig.root, "one", &yearly()).await);
    ok(put(&rig, &rig.root, "two", &yearly()).await);
    let trigger = async |name: &str, key: &str| {
        let target = path(&format!("{name}/trigger"));
        let signature = Signature { who: &rig.root, method: "POST", target: &target, ..Signature::of(&rig.server) };
        let raw = Raw::new("POST", &target).authorization(&signature.header()).header("Idempotency-Key", key);
        rig.send(&raw).await
    };
    let (first, same) = tokio::join!(trigger("one", "k"), trigger("one", "k"));
    let task = first.json()["taskId"].clone();
    assert!(task.is_string(), "{}", first.json());
    assert_eq!(same.json()["taskId"], task);
    assert_eq!(trigger("one", "k").await.json()["taskId"], task);
    assert_ne!(trigger("one", "l").await.json()["taskId"], task);
    assert_eq!(trigger("two", "k").await.status, 409);
    let queue = ok(rig.call("GET", &format!("{TENURE_API}/queues/schedules%2Flinux"), None).await);
    assert_eq!(queue["pending"], 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn schedules_are_listed_by_pages() {
    let rig = Rig::start().await;
    for name in ["c", "a", "b"] {
        ok(put(&rig, &rig.root, name, &yearly()).await);
    }
    let names = |page: &Value| -> Vec<String> {
        let page = page["schedules"].as_array().unwrap();
        page.iter().map(|schedule| schedule["name"].as_str().unwrap().to_owned()).collect()
    };
    let first = ok(rig.call("GET", &format!("{TENURE_API}/schedules?limit=2"), None).await);
    assert_eq!(names(&first), ["a", "b"]);
    let token = first["continuationToken"].as_str().unwrap();
    let second = rig.call("GET", &format!("{TENURE_API}/schedules?limit=2&continuationToken={token}"), None).await;
    let second = ok(second);
    assert_eq!(names(&second), ["c"]);
    assert!(second["continuationToken"].is_null());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bad_schedules_are_refused() {
    let rig = Rig::start().await;
    let with = |field: &str, value: Value| {
        let mut body = yearly();
        body[field] = value;
        body
    };
    for (name, body, code) in [
        ("a.b", yearly(), "InputError"),
        ("a", with("cron", json!("0 0 3 1 1 *")), "InputError"),
        ("a", with("cron", json!("0 0 30 2 *")), "InputError"),
        ("a", with("timezone", json!("Berlin")), "InputError"),
        ("a", with("deadlineAfter", json!(1)), "InputError"),
        ("a", with("expiresAfter", json!(3600)), "InputError"),
        ("a", with("task", json!({"taskQueueId": QUEUE, "deadline": "2026-01-01T00:00:00Z"})), "InputError"),
        ("a", with("catchUp", json!("some")), "InputValidationError"),
        ("a", with("seconds", json!(1)), "InputValidationError"),
    ] {
        let refused = put(&rig, &rig.root, name, &body).await;
        assert_eq!((refused.status, refused.code()), (400, code), "{name} {body}: {}", refused.body);
    }
    assert_eq!(ok(rig.call("GET", &format!("{TENURE_API}/schedules"), None).await)["schedules"], json!([]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn schedule_needs_scopes_of_its_name_and_of_its_task() {
    let rig = Rig::start().await;
    let creating = ["queue:create-task:lowest:schedules/*", "queue:create-task:project:none", "queue:scheduler-id:-"];
    let managing = "tenure:manage-schedule:ours-*";
    let both: Vec<&str> = creating.iter().copied().chain([managing]).collect();
    let owner = rig.make_client("owner", &both).await;
    let manager = rig.make_client("manager", &[managing]).await;
    let reader = rig.make_client("reader", &["tenure:list-schedules"]).await;
    ok(put(&rig, &owner, "ours-1", &yearly()).await);
    assert_eq!(put(&rig, &owner, "theirs", &yearly()).await.code(), "InsufficientScopes");
    assert_eq!(put(&rig, &manager, "ours-2", &yearly()).await.code(), "InsufficientScopes", "cannot create tasks");
    let as_one = async |who: &Credentials, method: &str, rest: &str| {
        call(&mut rig.client(), who, method, &path(rest), None).await.status
    };
    // The task is made with the rights of the owner.
    assert_eq!(as_one(&manager, "POST", "ours-1/trigger").await, 200);
    assert_eq!(as_one(&reader, "GET", "ours-1").await, 200);
    assert_eq!(as_one(&manager, "GET", "ours-1").await, 200);
    for rest in ["ours-1/trigger", "ours-1/pause", "ours-1/resume"] {
        assert_eq!(as_one(&reader, "POST", rest).await, 403, "{rest}");
    }
    assert_eq!(as_one(&reader, "DELETE", "ours-1").await, 403);
    let list = format!("{TENURE_API}/schedules");
    assert_eq!(call(&mut rig.client(), &manager, "GET", &list, None).await.status, 403);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn disabled_owner_stops_the_schedule_until_it_is_enabled() {
    let rig = Rig::start().await;
    let scopes = ["tenure:manage-schedule:*", "queue:create-task:schedules/linux"];
    let owner = rig.make_client("owner", &scopes).await;
    ok(put(&rig, &owner, "yearly", &yearly()).await);
    ok(rig.call("POST", "/api/auth/v1/clients/owner/disable", None).await);
    // Every server notices within a second.
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    come_due(&rig).await;
    let failed = handled(&rig, "yearly").await;
    assert_eq!(failed["last"]["outcome"], "failed", "{failed}");
    assert!(failed["error"].as_str().unwrap().contains("owner"), "{failed}");
    let events = ok(rig.call("GET", &format!("{TENURE_API}/events?after=0"), None).await);
    let notes = events["events"].as_array().unwrap().iter();
    let notes: Vec<&Value> = notes.filter(|event| event["exchange"] == "exchange/tenure/v1/schedule-failed").collect();
    assert_eq!(notes.len(), 1, "{events}");
    assert_eq!((&notes[0]["payload"]["name"], &notes[0]["payload"]["clientId"]), (&json!("yearly"), &json!("owner")));
    ok(rig.call("POST", "/api/auth/v1/clients/owner/enable", None).await);
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    come_due(&rig).await;
    eventually("the schedule goes on by itself", async || {
        let schedule = ok(rig.call("GET", &path("yearly"), None).await);
        (schedule["last"]["outcome"] == "created" && schedule["error"].is_null()).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn temporary_credentials_cannot_own_a_schedule() {
    let rig = Rig::start().await;
    rig.create_one(QUEUE).await;
    let claim = rig.claim(QUEUE, 1).await.remove(0);
    let lent = crate::rig::credentials_of(&claim);
    let refused = put(&rig, &lent, "yearly", &yearly()).await;
    assert_eq!((refused.status, refused.code()), (403, "InsufficientScopes"));
    assert!(refused.body["message"].as_str().unwrap().contains("temporary credentials"), "{}", refused.body);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn moved_clock_makes_what_is_due() {
    let rig = Rig::manual().await;
    let mut hourly = yearly();
    hourly["cron"] = json!("0 * * * *");
    ok(put(&rig, &rig.root, "hourly", &hourly).await);
    rig.advance(3_700).await;
    let schedule = ok(rig.call("GET", &path("hourly"), None).await);
    assert_eq!(schedule["last"]["outcome"], "created", "{schedule}");
    assert_eq!(schedule["next"].as_array().unwrap().len(), 5);
}

/// A server that only handles this schedule after a start.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn time_missed_while_no_server_ran_is_made_once() {
    let mut rig = Rig::start().await;
    ok(put(&rig, &rig.root, "yearly", &yearly()).await);
    rig.server.kill().unwrap();
    come_due(&rig).await;
    let launch = Launch::on_database(rig.database.url(), &rig.secret_key);
    rig.server = launch.start(rig.folder.path(), "again").await;
    let schedule = handled(&rig, "yearly").await;
    assert_eq!(schedule["last"]["outcome"], "created");
    let other = rig.another("other").await;
    let seen = call(&mut client_of(&other), &rig.root, "GET", &path("yearly"), None).await;
    assert_eq!(seen.body["last"], schedule["last"], "at another server");
    other.stop().await;
}
