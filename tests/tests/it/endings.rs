//! Ends of runs: deadlines, results, releases, races, and a server killed meanwhile.
//! `verify_delivery.rs` compares the cost of lost and slow workers with the published table.

mod kill;
mod late_results;
mod races;
mod release;
mod results;
mod retried_failures;

use serde_json::{Value, json};
use sqlx::AssertSqlSafe;
use tenure_api::credentials::Credentials;
use tenure_api::ids::SlugId;
use tenure_tests::clock::{unix_millis, wire_date};
use tenure_tests::http::{Answer, TENURE_API};

use crate::rig::{Rig, call, claim_path, credentials_of, definition, eventually, new_task, ok, run_of};

const QUEUE: &str = "endings/linux";
/// Ten times the interval of the pass for deadlines, in milliseconds.
const LATE_MS: i64 = 2_500;

async fn create(rig: &Rig, count: usize) -> Vec<SlugId> {
    let mut tasks = Vec::new();
    for _ in 0..count {
        tasks.push(rig.create_with(QUEUE, |task| task["retries"] = 1.into()).await);
    }
    tasks
}

async fn number(rig: &Rig, sql: &str) -> i64 {
    let mut database = rig.database.connect("test").await;
    sqlx::query_scalar(AssertSqlSafe(sql.to_owned())).fetch_one(&mut database).await.unwrap()
}

async fn claim_as(rig: &Rig, worker: &str, tasks: u16) -> Vec<Value> {
    let body = json!({"workerGroup": "group", "workerId": worker, "tasks": tasks});
    let answer = ok(rig.call("POST", &claim_path(QUEUE), Some(&body)).await);
    answer["tasks"].as_array().unwrap().clone()
}

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

async fn resolutions(rig: &Rig, task: SlugId) -> Vec<String> {
    let answer = rig.call("GET", &format!("{TENURE_API}/events?after=0"), None).await;
    let ends = ["task-completed", "task-failed", "task-exception"];
    let events = answer.body["events"].as_array().unwrap().iter();
    let of_task = events.filter(|event| event["payload"]["status"]["taskId"] == task.to_string());
    let names = of_task.filter_map(|event| Some(event["exchange"].as_str()?.rsplit('/').next()?.to_owned()));
    names.filter(|name| ends.contains(&name.as_str())).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deadline_takes_effect_without_a_request() {
    let rig = Rig::start().await;
    let (task, mut overdue) = (new_task(), definition(QUEUE));
    let deadline = unix_millis() + 2_000;
    overdue["deadline"] = wire_date(deadline).into();
    assert_eq!(rig.create(task, &overdue).await.status, 200);
    // By events: a request about an overdue task might end it.
    let seen = eventually("the task ends", async || {
        let ends = resolutions(&rig, task).await;
        (!ends.is_empty()).then(|| (ends, unix_millis()))
    })
    .await;
    assert_eq!(seen.0, ["task-exception"]);
    assert!((deadline..=deadline + LATE_MS).contains(&seen.1), "{} ms late", seen.1 - deadline);
    assert_eq!(rig.status(task).await["runs"][0]["reasonResolved"], "deadline-exceeded");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn q11_reclaim_extends_the_claim_until_it_has_ended() {
    let rig = Rig::start_with(|launch| {
        launch.flag("--clock", "manual").flag("--claim-work-wait", "0s").flag("--claim-timeout", "20m")
    })
    .await;
    let task = create(&rig, 1).await[0];
    let without_retries = rig.create_with(QUEUE, |task| task["retries"] = 0.into()).await;
    let claims = claim_as(&rig, "worker", 2).await;
    rig.advance(900).await;
    let renewed = ok(of_run(&rig, &claims[0], "reclaim", Some(&json!({}))).await);
    let until = |answer: &Value| {
        chrono::DateTime::parse_from_rfc3339(answer["takenUntil"].as_str().unwrap()).unwrap().timestamp()
    };
    assert!(until(&renewed) >= until(&claims[0]) + 890, "{renewed}");
    assert_ne!(renewed["credentials"]["certificate"], claims[0]["credentials"]["certificate"]);
    // Beyond the first lease, within the second.
    rig.advance(600).await;
    assert_eq!(rig.status(task).await["state"], "running");
    let again = as_worker(&rig, &credentials_of(&renewed), &claims[0], "reclaim", Some(&json!({}))).await;
    assert_eq!(again.status, 200, "{}", again.body);
    let ended = rig.status(without_retries).await;
    assert_eq!((&ended["state"], &ended["runs"][0]["reasonResolved"]), (&json!("exception"), &json!("claim-expired")));
    assert_eq!(ended["runs"].as_array().unwrap().len(), 1, "no retry was left");
    rig.advance(1_201).await;
    let status = rig.status(task).await;
    assert_eq!((&status["state"], &status["retriesLeft"]), (&json!("pending"), &json!(0)), "{status}");
    assert_eq!(status["runs"][0]["reasonResolved"], "claim-expired");
    for what in ["reclaim", "completed"] {
        let late = as_worker(&rig, &rig.root, &claims[0], what, Some(&json!({}))).await;
        assert_eq!((late.status, late.code()), (409, "RequestConflict"), "{what}: {}", late.body);
    }
}
