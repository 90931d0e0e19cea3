//! Options of tasks: what they may say and who may, where they are stored, and when a task with a delay may start.

use chrono::TimeDelta;
use serde_json::{Value, json};
use sqlx::Row as _;
use tenure_api::dates::Timestamp;
use tenure_api::ids::SlugId;
use tenure_tests::http::{Answer, TENURE_API};

use crate::rig::{LOOK_EVERY, Rig, call, credentials_of, definition, eventually, minutes_from_now, new_task, run_of};

const QUEUE: &str = "options/linux";
const DAY_MINUTES: i64 = 24 * 60;

/// A definition with these options in its `extra`.
fn with(options: &Value) -> Value {
    let mut task = definition(QUEUE);
    task["extra"] = json!({"other": 1, "tenure": options});
    task
}

async fn submit(rig: &Rig, task: &Value) -> Answer {
    rig.call("POST", &format!("{TENURE_API}/tasks"), Some(task)).await
}

/// Rows that a task leaves behind.
async fn rows(rig: &Rig) -> i64 {
    let sql = "SELECT (SELECT count(*) FROM tasks) + (SELECT count(*) FROM task_definitions) + (SELECT count(*) FROM due)
                    + (SELECT count(*) FROM pending) + (SELECT count(*) FROM task_options) + (SELECT count(*) FROM task_groups)
                    + (SELECT count(*) FROM transitions)";
    sqlx::query(sql).fetch_one(&mut rig.database.connect("test").await).await.unwrap().get(0)
}

async fn put_policy(rig: &Rig, policy: &Value) {
    let answer = rig.call("PUT", &format!("{TENURE_API}/queues/options%2Flinux/policy"), Some(policy)).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
}

async fn advance(rig: &Rig, seconds: i64) {
    let answer = rig.call("POST", &format!("{TENURE_API}/clock/advance"), Some(&json!({"seconds": seconds}))).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
}

async fn now(rig: &Rig) -> Timestamp {
    let answer = rig.call("GET", &format!("{TENURE_API}/clock"), None).await;
    serde_json::from_value(answer.body["now"].clone()).unwrap()
}

fn date(value: &Value) -> Timestamp {
    serde_json::from_value(value.clone()).unwrap_or_else(|error| panic!("{value}: {error}"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_options_may_not_say_is_refused_by_name_and_nothing_is_stored() {
    let rig = Rig::start().await;
    let (schema, rule) = ("InputValidationError", "InputError");
    let (before, soon) = (rows(&rig).await, minutes_from_now(10));
    for (options, code, named) in [
        (json!([]), schema, ""),
        (json!(5), schema, ""),
        (json!({"unknown": 1}), schema, ".unknown`"),
        (json!({"delay": "5"}), schema, ".delay`"),
        (json!({"delay": 1.5}), schema, ".delay`"),
        (json!({"delay": null}), schema, ".delay`"),
        (json!({"delay": -1}), rule, ".delay` must be from 0 to 31622400"),
        (json!({"delay": 31_622_401}), rule, ".delay`"),
        (json!({"notBefore": "soon"}), schema, ".notBefore`"),
        (json!({"delay": 1, "notBefore": soon}), rule, ".notBefore` must not both be given"),
        (json!({"delivery": "sometimes"}), schema, ".delivery`"),
        (json!({"completeTime": -1}), rule, ".completeTime`"),
        (json!({"completeTime": 432_001}), rule, ".completeTime` must be from 0 to 432000"),
        (json!({"retryDelay": 5}), schema, ".retryDelay`"),
        (json!({"retryDelay": {}}), schema, "first"),
        (json!({"retryDelay": {"first": 3_601}}), rule, ".retryDelay.first` must be from 0 to 3600"),
        (json!({"retryDelay": {"first": 1, "factor": 0.5}}), rule, ".retryDelay.factor` must be from 1 to 10"),
        (json!({"retryDelay": {"first": 1, "most": 86_401}}), rule, ".retryDelay.most`"),
        (json!({"key": ""}), rule, ".key`"),
        (json!({"key": "k".repeat(256)}), rule, ".key`"),
        (json!({"unique": "u"}), rule, ".unique` is not built yet"),
        (json!({"onDuplicate": "queue"}), rule, ".onDuplicate` is not built yet"),
        (
            json!({"worker": {"workerGroup": "g", "workerId": "w", "wait": 3_601}}),
            rule,
            ".worker.wait` must be from 0 to 3600",
        ),
        // At the deadline or later it would never run.
        (json!({"delay": 3_700}), rule, ".delay`, 3700 seconds from now, must end before `deadline`"),
        (json!({"notBefore": minutes_from_now(61)}), rule, "; state a later `deadline`"),
    ] {
        let task = new_task();
        let created = rig.create(task, &with(&options)).await;
        let mut several = definition(QUEUE);
        several["taskId"] = json!(task);
        several["options"] = options.clone();
        let submitted = submit(&rig, &json!({"tasks": [{"taskQueueId": QUEUE}, several]})).await;
        for (answer, place) in [(created, "`extra.tenure"), (submitted, "tasks[1]: `options")] {
            let why = answer.body["message"].as_str().unwrap_or_default();
            assert_eq!((answer.status, answer.code()), (400, code), "{options}: {}", answer.body);
            assert!(why.contains(place) && why.contains(named), "{options}: {why}");
        }
        assert_eq!(rig.call("GET", &format!("/task/{task}/status"), None).await.status, 404);
    }
    // The deadline that a task has which states none.
    let night = |more: &Value| {
        let mut task = json!({"taskQueueId": QUEUE, "options": {"notBefore": minutes_from_now(2 * DAY_MINUTES)}});
        task.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        task
    };
    let refused = submit(&rig, &night(&json!({}))).await;
    let why = refused.body["message"].as_str().unwrap_or_default();
    assert_eq!((refused.status, refused.code()), (400, rule), "{}", refused.body);
    assert!(why.starts_with("`options.notBefore`, ") && why.contains("; state a later `deadline`"), "{why}");
    let mut both = with(&json!({}));
    both["options"] = json!({});
    let answer = submit(&rig, &both).await;
    assert_eq!((answer.status, answer.code()), (400, rule));
    assert!(answer.body["message"].as_str().unwrap().contains("`options` and `extra.tenure` must not both be given"));
    assert_eq!(rows(&rig).await, before);
    let fixed = submit(&rig, &night(&json!({"deadline": minutes_from_now(3 * DAY_MINUTES)}))).await;
    assert_eq!(fixed.status, 200, "{}", fixed.body);
    rig.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_a_submission_may_have_a_deadline_in_a_year() {
    let rig = Rig::start().await;
    let until = |days: i64| {
        let mut task = definition(QUEUE);
        task["deadline"] = json!(minutes_from_now(days * DAY_MINUTES));
        task
    };
    for (days, status) in [(5, 200), (6, 400)] {
        let answer = rig.create(new_task(), &until(days)).await;
        assert_eq!(answer.status, status, "{}", answer.body);
        assert_eq!(status == 400, answer.body["message"].as_str().is_some_and(|why| why.contains("at most 5 days")));
    }
    for (days, status) in [(366, 200), (367, 400)] {
        // Alone, and beside others.
        for body in [until(days), json!({"tasks": [{"taskQueueId": QUEUE}, until(days)]})] {
            let before = rows(&rig).await;
            let answer = submit(&rig, &body).await;
            assert_eq!(answer.status, status, "{}", answer.body);
            if status == 400 {
                let why = answer.body["message"].as_str().unwrap();
                assert!(why.contains("`deadline` must be at most 366 days from now"), "{why}");
                assert_eq!(rows(&rig).await, before, "nothing of it is stored");
            }
        }
    }
    let mut late = until(366);
    late["options"] = json!({"delay": 31_500_000});
    assert_eq!(submit(&rig, &late).await.status, 200, "a delay of 364 days");
    rig.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_lost_worker_costs_is_said_only_with_a_scope_of_its_own() {
    let rig = Rig::start().await;
    let plain = ["queue:create-task:lowest:options/*", "queue:create-task:project:none", "queue:scheduler-id:-"];
    let more = [&plain[..], &["tenure:task-options:options/linux"]].concat();
    let few = rig.make_client("few", &plain).await;
    let all = rig.make_client("all", &more).await;
    for (options, allowed) in [
        (json!({"delay": 5, "completeTime": 9, "retryDelay": {"first": 1}}), true),
        (json!({"delivery": "at-least-once"}), false),
        (json!({"delivery": "retries"}), false),
    ] {
        let mut submission = definition(QUEUE);
        submission["options"] = options.clone();
        for (method, path, body) in [
            ("PUT", format!("/task/{}", new_task()), with(&options)),
            ("POST", format!("{TENURE_API}/tasks"), submission),
        ] {
            let answer = call(&mut rig.client(), &few, method, &path, Some(&body)).await;
            assert_eq!(answer.status, if allowed { 200 } else { 403 }, "{options}: {}", answer.body);
            assert!(allowed || answer.body["message"].as_str().unwrap().contains("tenure:task-options:options/linux"));
            assert_eq!(call(&mut rig.client(), &all, method, &path, Some(&body)).await.status, 200);
        }
    }
    rig.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn options_have_one_stored_form_and_a_repeat_stays_one_also_after_the_delay() {
    let rig = Rig::start_with(|launch| launch.flag("--clock", "manual").flag("--claim-work-wait", "0s")).await;
    let options = json!({"delay": 60, "retryDelay": {"first": 1, "factor": 1.5}});
    let (task, body) = (new_task(), with(&options));
    let mut submission = body.clone();
    submission["taskId"] = json!(task);
    submission["extra"].as_object_mut().unwrap().remove("tenure");
    submission["options"] = options.clone();
    let first = submit(&rig, &submission).await;
    assert_eq!((first.status, &first.body["tasks"][0]["status"]["state"]), (200, &json!("pending")), "{}", first.body);
    let shown = rig.call("GET", &format!("/task/{task}"), None).await.body;
    assert_eq!(shown["extra"], json!({"other": 1, "tenure": options}));
    assert!(shown.get("options").is_none());
    let left = rows(&rig).await;
    for _ in 0..2 {
        let again = submit(&rig, &submission).await;
        assert_eq!(again.body["tasks"][0]["status"]["runs"][0]["runId"], 0, "{}", again.body);
        let created = rig.create(task, &body).await;
        assert_eq!(created.status, 200, "{}", created.body);
        assert_eq!(created.body["status"]["state"], "pending");
        let mut other = body.clone();
        other["extra"]["tenure"]["delay"] = json!(61);
        assert_eq!(rig.create(task, &other).await.code(), "RequestConflict");
        advance(&rig, 90).await;
    }
    assert!(rows(&rig).await <= left + 1, "nothing but the note that it is ready");
    rig.server.stop().await;
}

/// Claims the only task of the queue as soon as that can be, and completes it: when it became pending, and when it was started.
async fn run(rig: &Rig, task: SlugId) -> (Timestamp, Timestamp) {
    let claim = eventually("the task is ready", async || {
        let mut claims = rig.claim(QUEUE, 1).await;
        tokio::time::sleep(LOOK_EVERY).await;
        claims.pop()
    })
    .await;
    assert_eq!(claim["status"]["taskId"], json!(task));
    let path = format!("{}/completed", run_of(&claim));
    assert_eq!(call(&mut rig.client(), &credentials_of(&claim), "POST", &path, None).await.status, 200);
    let run = &claim["status"]["runs"][0];
    (date(&run["scheduled"]), date(&run["started"]))
}

// What ends a hold is the pass `holds`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_is_never_started_before_its_time() {
    let rig = Rig::start_with(|launch| launch.flag("--clock", "manual").flag("--claim-work-wait", "0s")).await;
    // Its options, whether they are beside it, and the policy of its queue.
    for (mut options, beside, policy) in [
        (json!({"delay": 1_000}), false, json!({})),
        (json!({"delay": 1_000}), true, json!({"delay": 30, "delivery": "at-least-once"})),
        (json!({"notBefore": "in a thousand seconds"}), false, json!({"delay": 3_000})),
        (json!({}), false, json!({"delay": 1_000})),
        (json!({"completeTime": 600}), true, json!({"delay": 1_000})),
    ] {
        let case = format!("{options} {policy}");
        put_policy(&rig, &policy).await;
        let created = now(&rig).await;
        let in_seconds = |seconds| Timestamp::new(created.time() + TimeDelta::seconds(seconds));
        let not_before = options.get_mut("notBefore").map(|not_before| {
            *not_before = json!(in_seconds(1_000));
            in_seconds(1_000)
        });
        let task = new_task();
        let mut body = definition(QUEUE);
        body["created"] = json!(created);
        body["deadline"] = json!(in_seconds(3_600));
        let answer = if beside {
            body["taskId"] = json!(task);
            body["options"] = options;
            submit(&rig, &body).await
        } else {
            body["extra"] = json!({"tenure": options});
            rig.create(task, &body).await
        };
        assert_eq!(answer.status, 200, "{case}: {}", answer.body);
        assert_eq!(rig.status(task).await["state"], "pending", "{case}");
        assert!(rig.claim(QUEUE, 1).await.is_empty(), "{case}");
        advance(&rig, 940).await;
        assert!(rig.claim(QUEUE, 1).await.is_empty(), "{case}");
        advance(&rig, 61).await;
        let (scheduled, started) = run(&rig, task).await;
        let ready = not_before.map_or_else(|| scheduled.time() + TimeDelta::seconds(1_000), Timestamp::time);
        assert!(started.time() >= ready, "{case}: started at {started}, before {ready}");
    }
    rig.server.stop().await;
}
