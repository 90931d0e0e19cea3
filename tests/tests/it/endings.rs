//! What a lost or slow worker costs, by the lease: rows T1, T2, T5, T6 and T7 of the seed's behaviours; and what a worker says
//! beside the end of a run.

mod kill;
mod release;
mod results;

use std::time::{Duration, Instant};

use chrono::{DateTime, TimeDelta, Utc};
use serde_json::{Value, json};
use sqlx::AssertSqlSafe;
use tenure_api::credentials::Credentials;
use tenure_api::ids::SlugId;
use tenure_tests::clock::{unix_millis, wire_date};
use tenure_tests::http::{Answer, TENURE_API};

use crate::rig::{Rig, call, claim_path, credentials_of, definition, eventually, new_task, run_of};

const QUEUE: &str = "endings/linux";
/// The lease of the queues here, in seconds: the shortest that a policy may have.
const LEASE: i64 = 10;
/// The passes look so often, and a test may find them ten times as late.
const LATE: TimeDelta = TimeDelta::milliseconds(2_500);

async fn start(policy: Value) -> Rig {
    with_policy(Rig::start().await, policy).await
}

/// With a clock that the test moves ahead: a move is answered after everything that fell due has happened.
async fn start_by_hand(policy: Value) -> Rig {
    let rig = Rig::start_with(|launch| launch.flag("--clock", "manual").flag("--claim-work-wait", "0s")).await;
    with_policy(rig, policy).await
}

async fn with_policy(rig: Rig, mut policy: Value) -> Rig {
    policy["claimTimeout"] = LEASE.into();
    let answer = rig.call("PUT", &format!("{TENURE_API}/queues/endings%2Flinux/policy"), Some(&policy)).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    rig
}

async fn advance(rig: &Rig, seconds: f64) {
    let answer = rig.call("POST", &format!("{TENURE_API}/clock/advance"), Some(&json!({"seconds": seconds}))).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
}

async fn create(rig: &Rig, count: usize) -> Vec<SlugId> {
    let mut tasks = Vec::new();
    for _ in 0..count {
        let task = new_task();
        let mut definition = definition(QUEUE);
        definition["retries"] = 1.into();
        assert_eq!(rig.create(task, &definition).await.status, 200);
        tasks.push(task);
    }
    tasks
}

async fn number(rig: &Rig, sql: &str) -> i64 {
    let mut database = rig.database.connect("test").await;
    sqlx::query_scalar(AssertSqlSafe(sql.to_owned())).fetch_one(&mut database).await.unwrap()
}

async fn claim_as(rig: &Rig, worker: &str, tasks: u16) -> Vec<Value> {
    let body = json!({"workerGroup": "group", "workerId": worker, "tasks": tasks});
    let answer = rig.call("POST", &claim_path(QUEUE), Some(&body)).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    answer.body["tasks"].as_array().unwrap().clone()
}

/// A call for a claimed run, by its credentials.
async fn of_run(rig: &Rig, claim: &Value, what: &str, body: Option<&Value>) -> Answer {
    as_worker(rig, &credentials_of(claim), claim, what, body).await
}

async fn as_worker(rig: &Rig, who: &Credentials, claim: &Value, what: &str, body: Option<&Value>) -> Answer {
    let path = match what {
        "release" => format!("{TENURE_API}{}/release", run_of(claim).replacen("/task/", "/tasks/", 1)),
        _ => format!("{}/{what}", run_of(claim)),
    };
    call(&mut rig.client(), who, "POST", &path, body).await
}

/// Renews the claim, whose credentials it answers with.
async fn renew(rig: &Rig, claim: &mut Value) {
    let renewed = of_run(rig, claim, "reclaim", None).await;
    assert_eq!(renewed.status, 200, "{}", renewed.body);
    *claim = renewed.body;
}

fn date(value: &Value) -> DateTime<Utc> {
    value.as_str().unwrap_or_else(|| panic!("{value} is no date")).parse().unwrap()
}

/// The events of a task that resolve it.
async fn resolutions(rig: &Rig, task: SlugId) -> Vec<String> {
    let answer = rig.call("GET", &format!("{TENURE_API}/events?after=0"), None).await;
    let ends = ["task-completed", "task-failed", "task-exception"];
    let events = answer.body["events"].as_array().unwrap().iter();
    let of_task = events.filter(|event| event["payload"]["status"]["taskId"] == task.to_string());
    let names = of_task.filter_map(|event| Some(event["exchange"].as_str()?.rsplit('/').next()?.to_owned()));
    names.filter(|name| ends.contains(&name.as_str())).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t1_all_runs_of_a_worker_that_exits_go_to_another_when_its_lease_is_over_and_for_nothing() {
    let rig = start(json!({"delivery": "at-least-once"})).await;
    create(&rig, 10).await;
    let lost = claim_as(&rig, "w1", 10).await;
    assert_eq!(lost.len(), 10);
    let mut taken = Vec::new();
    let until = Instant::now() + Duration::from_secs(60);
    while taken.len() < 10 {
        taken.extend(claim_as(&rig, "w2", 10).await);
        assert!(Instant::now() < until, "only {} came back", taken.len());
    }
    for claim in &taken {
        let (before, after) = (&claim["status"]["runs"][0], &claim["status"]["runs"][1]);
        assert_eq!((&before["reasonResolved"], &claim["runId"]), (&json!("claim-expired"), &json!(1)));
        assert_eq!(claim["status"]["retriesLeft"], 1, "it cost nothing");
        let over = date(&before["started"]) + TimeDelta::seconds(LEASE);
        assert_eq!(date(&before["takenUntil"]), over);
        assert!(date(&before["resolved"]) >= over && date(&after["started"]) >= over, "never earlier: {claim}");
        assert!(date(&before["resolved"]) <= over + LATE, "too late: {claim}");
    }
    for claim in &lost {
        assert_eq!(as_worker(&rig, &rig.root, claim, "completed", None).await.status, 409);
    }
    for claim in &taken {
        assert_eq!(of_run(&rig, claim, "completed", None).await.status, 200);
    }
    rig.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t1_a_lease_is_over_at_its_end_and_not_before() {
    for delivery in ["at-least-once", "retries"] {
        let rig = start_by_hand(json!({"delivery": delivery})).await;
        let task = create(&rig, 1).await[0];
        let first = claim_as(&rig, "w1", 1).await.remove(0);
        assert_eq!(
            date(&first["takenUntil"]) - date(&first["status"]["runs"][0]["started"]),
            TimeDelta::seconds(LEASE)
        );
        advance(&rig, 5.0).await;
        assert_eq!(
            (rig.status(task).await["state"].clone(), claim_as(&rig, "w2", 1).await.len()),
            (json!("running"), 0)
        );
        advance(&rig, 5.0).await;
        let second = claim_as(&rig, "w2", 1).await.remove(0);
        assert!(
            date(&second["status"]["runs"][0]["resolved"]) >= date(&first["takenUntil"]),
            "never earlier: {second}"
        );
        assert_eq!((&second["runId"], &second["status"]["taskId"]), (&json!(1), &json!(task)));
        assert_eq!(second["status"]["retriesLeft"], if delivery == "retries" { 0 } else { 1 }, "{delivery}");
        rig.server.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t2_a_run_that_may_not_be_started_twice_ends_as_an_exception_when_its_worker_exits() {
    let rig = start_by_hand(json!({"delivery": "at-most-once"})).await;
    let tasks = create(&rig, 10).await;
    let lost = claim_as(&rig, "w1", 10).await;
    advance(&rig, 5.0).await;
    for &task in &tasks {
        assert_eq!(rig.status(task).await["state"], "running");
    }
    advance(&rig, 5.0).await;
    assert!(claim_as(&rig, "w2", 10).await.is_empty());
    for &task in &tasks {
        let status = rig.status(task).await;
        let over = date(&lost[0]["takenUntil"]);
        assert!(date(&status["runs"][0]["resolved"]) >= over, "never earlier: {status}");
        assert_eq!((&status["state"], &status["retriesLeft"]), (&json!("exception"), &json!(1)));
        assert_eq!(status["runs"].as_array().unwrap().len(), 1, "{status}");
        assert_eq!(status["runs"][0]["reasonResolved"], "claim-expired");
        assert_eq!(resolutions(&rig, task).await, ["task-exception"]);
        let waited = rig.call("GET", &format!("{TENURE_API}/tasks/{task}/wait?seconds=0"), None).await.body;
        assert_eq!((&waited["resolved"], &waited["endedBy"]), (&json!(true), &json!("lease")), "{waited}");
        assert_eq!(waited["status"], status, "which is Taskcluster's");
    }
    assert_eq!(number(&rig, "SELECT count(*) FROM runs WHERE ended_by = 1").await, 10);
    for claim in &lost {
        assert_eq!(as_worker(&rig, &rig.root, claim, "completed", None).await.status, 409);
    }
    rig.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t5_a_slow_worker_is_waited_for_for_as_long_as_it_renews() {
    let rig = start_by_hand(json!({"delivery": "at-least-once"})).await;
    let task = create(&rig, 1).await[0];
    let mut claim = claim_as(&rig, "w1", 1).await.remove(0);
    for _ in 0..20 {
        advance(&rig, 5.0).await;
        renew(&rig, &mut claim).await;
        assert!(claim_as(&rig, "w2", 1).await.is_empty());
    }
    assert_eq!(rig.status(task).await["runs"].as_array().unwrap().len(), 1);
    assert_eq!(of_run(&rig, &claim, "completed", None).await.status, 200);
    assert_eq!(resolutions(&rig, task).await, ["task-completed"]);
    rig.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t6_a_slow_worker_loses_its_run_at_complete_time_although_it_renews() {
    let rig = start(json!({"delivery": "at-least-once", "completeTime": 3})).await;
    let task = create(&rig, 1).await[0];
    let mut first = claim_as(&rig, "w1", 1).await.remove(0);
    let over = date(&first["status"]["runs"][0]["started"]) + TimeDelta::seconds(3);
    let second = eventually("the run goes to another worker", async || {
        let renewed = of_run(&rig, &first, "reclaim", None).await;
        if renewed.status == 200 {
            first = renewed.body;
        }
        claim_as(&rig, "w2", 1).await.pop()
    })
    .await;
    let (before, after) = (&second["status"]["runs"][0], &second["status"]["runs"][1]);
    assert!(date(&before["resolved"]) >= over && date(&after["started"]) >= over, "never earlier: {second}");
    assert!(date(&after["scheduled"]) <= over + LATE, "too late: {second}");
    assert_eq!((&before["reasonResolved"], &second["status"]["retriesLeft"]), (&json!("claim-expired"), &json!(1)));
    assert_eq!(number(&rig, "SELECT count(*) FROM runs WHERE ended_by = 7").await, 1);
    let (late, timely) =
        tokio::join!(of_run(&rig, &first, "completed", None), of_run(&rig, &second, "completed", None));
    assert_eq!((late.status, timely.status), (409, 200), "{} {}", late.body, timely.body);
    // The end of the first run, and the one end of the task.
    assert_eq!(resolutions(&rig, task).await, ["task-exception", "task-completed"]);
    rig.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t6_complete_time_is_over_at_its_end_and_not_before() {
    for delivery in ["at-least-once", "retries"] {
        let rig = start_by_hand(json!({"delivery": delivery, "completeTime": 25})).await;
        create(&rig, 1).await;
        let mut claim = claim_as(&rig, "w1", 1).await.remove(0);
        let over = date(&claim["status"]["runs"][0]["started"]) + TimeDelta::seconds(25);
        for seconds in [5.0, 5.0, 5.0, 5.0] {
            advance(&rig, seconds).await;
            assert!(claim_as(&rig, "w2", 1).await.is_empty(), "{delivery}");
            renew(&rig, &mut claim).await;
        }
        advance(&rig, 5.0).await;
        let second = claim_as(&rig, "w2", 1).await.remove(0);
        assert!(date(&second["status"]["runs"][0]["resolved"]) >= over, "never earlier: {second}");
        assert_eq!(second["status"]["retriesLeft"], if delivery == "retries" { 0 } else { 1 }, "{delivery}");
        assert_eq!(as_worker(&rig, &rig.root, &claim, "reclaim", None).await.status, 409);
        rig.server.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t7_a_run_that_may_not_be_started_twice_is_waited_for_whatever_complete_time_says() {
    let rig = start_by_hand(json!({"delivery": "at-most-once", "completeTime": 3})).await;
    let task = create(&rig, 1).await[0];
    let mut claim = claim_as(&rig, "w1", 1).await.remove(0);
    for _ in 0..10 {
        advance(&rig, 3.0).await;
        renew(&rig, &mut claim).await;
        assert!(claim_as(&rig, "w2", 1).await.is_empty());
    }
    assert_eq!(rig.status(task).await["runs"].as_array().unwrap().len(), 1);
    assert_eq!(of_run(&rig, &claim, "completed", None).await.status, 200);
    rig.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deadline_takes_effect_although_no_request_is_about_its_task() {
    let rig = start(json!({})).await;
    let (task, mut overdue) = (new_task(), definition(QUEUE));
    let deadline = unix_millis() + 2_000;
    overdue["deadline"] = wire_date(deadline).into();
    assert_eq!(rig.create(task, &overdue).await.status, 200);
    // By the events: a request about a task past its deadline might end it.
    let seen = eventually("the task ends", async || {
        let ends = resolutions(&rig, task).await;
        (!ends.is_empty()).then(|| (ends, unix_millis()))
    })
    .await;
    assert_eq!(seen.0, ["task-exception"]);
    assert!((deadline..=deadline + LATE.num_milliseconds()).contains(&seen.1), "{} ms late", seen.1 - deadline);
    assert_eq!(rig.status(task).await["runs"][0]["reasonResolved"], "deadline-exceeded");
    rig.server.stop().await;
}
