//! Row T16: the result of a worker whose run was taken away. Two servers share the database.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use tenure_tests::server::{Launch, Server};

use super::*;
use crate::rig::client_of;

/// Races between a late result and the report of the open run.
const ROUNDS: usize = 1_000;
/// Tasks of a round.
const TOGETHER: usize = 100;
/// Most runs of a claim.
const CLAIM_MAX: usize = 32;
/// Tasks whose results are reported while a server is killed.
const KILLED: usize = 32;
/// The promise of the inbox.
const TOLD_WITHIN: Duration = Duration::from_secs(1);

fn first_wins() -> Value {
    json!({"completeTime": 60, "lateResult": "first-wins"})
}

async fn another(rig: &Rig, name: &str) -> Server {
    let launch = Launch::on_database(rig.database.url(), &rig.secret_key).flag("--clock", "manual");
    launch.flag("--claim-work-wait", "0s").start(rig.folder.path(), name).await
}

/// Claims all pending runs, which are this many.
async fn claim_all(rig: &Rig, worker: &str, runs: usize) -> Vec<Value> {
    let mut claims = Vec::new();
    while claims.len() < runs {
        let tasks = u16::try_from(CLAIM_MAX.min(runs - claims.len())).unwrap();
        let more = claim_as(rig, worker, tasks).await;
        assert!(!more.is_empty(), "{} of {runs} runs are pending", claims.len());
        claims.extend(more);
    }
    claims
}

/// Takes the runs of claims from their workers, by their completeTime.
async fn take(rig: &Rig, claims: &[Value]) {
    rig.advance(61).await;
    for claim in claims {
        until_taken(rig, claim).await;
    }
}

async fn claim_in_session(rig: &Rig, worker: &str, session: &str) -> Value {
    let body = json!({"workerGroup": "group", "workerId": worker, "tasks": 1, "sessionId": session});
    ok(rig.call("POST", &claim_path(QUEUE), Some(&body)).await)["tasks"][0].clone()
}

/// Waits until the run of a claim was taken from its worker.
async fn until_taken(rig: &Rig, claim: &Value) {
    let task: SlugId = claim["status"]["taskId"].as_str().unwrap().parse().unwrap();
    let run = usize::try_from(claim["runId"].as_u64().unwrap()).unwrap();
    eventually("the run is taken away", async || {
        (rig.status(task).await["runs"][run]["reasonResolved"] == "claim-expired").then_some(())
    })
    .await;
}

/// Sends a report to the other server.
async fn report_to(server: &Server, claim: &Value, what: &str, body: Option<&Value>) -> Answer {
    let path = format!("{}/{what}", run_of(claim));
    call(&mut client_of(server), &credentials_of(claim), "POST", &path, body).await
}

async fn ended_items(rig: &Rig, session: &str, wait: u8) -> Vec<Value> {
    let path = format!("{TENURE_API}/sessions/{session}/inbox?after=0&wait={wait}");
    let items = ok(rig.call("GET", &path, None).await)["items"].as_array().unwrap().clone();
    items.into_iter().filter(|item| item["kind"] == "run-ended").collect()
}

fn reasons(status: &Value) -> Vec<(&str, &str)> {
    let runs = status["runs"].as_array().unwrap().iter();
    runs.map(|run| (run["state"].as_str().unwrap(), run["reasonResolved"].as_str().unwrap_or_default())).collect()
}

const RECORDED: [(&str, &str); 3] =
    [("exception", "claim-expired"), ("exception", "superseded"), ("completed", "completed")];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t16_first_late_result_wins() {
    let rig = Rig::manual().await;
    let other = another(&rig, "other").await;
    rig.put_policy(QUEUE, &first_wins()).await;
    let task = create(&rig, 1).await[0];
    let (one, two) = (rig.start_session(QUEUE, "w1", json!({})).await, rig.start_session(QUEUE, "w2", json!({})).await);
    let first = claim_in_session(&rig, "w1", &one).await;
    take(&rig, std::slice::from_ref(&first)).await;
    let item = eventually("its worker is told", async || ended_items(&rig, &one, 0).await.pop()).await;
    assert_eq!((&item["endedBy"], &item["resultCounts"]), (&json!("complete-time"), &json!(true)), "{item}");
    let second = claim_in_session(&rig, "w2", &two).await;
    assert_eq!((&second["status"]["taskId"], &second["runId"]), (&json!(task), &json!(1)));
    // Its artifacts stay with run 0.
    let artifact = json!({"storageType": "reference", "expires": first["status"]["expires"], "url": "https://example.com/a",
        "contentType": "text/plain"});
    let path = format!("{}/artifacts/public/late", run_of(&first));
    ok(call(&mut rig.client(), &credentials_of(&first), "POST", &path, Some(&artifact)).await);

    let refused = report_to(&other, &first, "failed", None).await;
    assert_eq!(refused.status, 409, "a late failure does not count: {}", refused.body);
    let returned = json!({"result": {"rows": 12}});
    let told = async {
        let items = ended_items(&rig, &two, 20).await;
        (items, Instant::now())
    };
    let reported = async {
        // The inbox waits before the report.
        tokio::time::sleep(Duration::from_millis(200)).await;
        let answer = report_to(&other, &first, "completed", Some(&returned)).await;
        (ok(answer)["status"].clone(), Instant::now())
    };
    let ((items, seen), (status, sent)) = tokio::join!(told, reported);
    assert_eq!(reasons(&status), RECORDED);
    let [item] = items.as_slice() else { panic!("one item: {items:?}") };
    assert_eq!((&item["runId"], &item["reasonResolved"]), (&json!(1), &json!("superseded")), "{item}");
    assert_eq!(item.get("resultCounts"), None, "{item}");
    assert!(seen.saturating_duration_since(sent) < TOLD_WITHIN, "{:?}", seen.saturating_duration_since(sent));
    let runs = status["runs"].as_array().unwrap();
    assert_eq!((&runs[2]["workerId"], &runs[2]["started"]), (&runs[0]["workerId"], &runs[0]["started"]));
    assert_eq!(runs[2]["reasonCreated"], "exception");

    let superseded = report_to(&rig.server, &second, "completed", None).await;
    assert_eq!(superseded.status, 409, "{}", superseded.body);
    assert_eq!(report_to(&rig.server, &second, "reclaim", None).await.status, 409);
    for (body, answer) in [(Some(&returned), 200), (None, 200), (Some(&json!({"result": 1})), 409)] {
        assert_eq!(report_to(&rig.server, &first, "completed", body).await.status, answer, "{body:?}");
    }
    let result = ok(rig.call("GET", &format!("{TENURE_API}/tasks/{task}/result"), None).await);
    assert_eq!((&result["runId"], &result["result"]), (&json!(2), &json!({"rows": 12})));
    for run in ["", "/runs/2"] {
        let listed = ok(rig.call("GET", &format!("/task/{task}{run}/artifacts"), None).await);
        assert_eq!(listed["artifacts"][0]["name"], "public/late", "{listed}");
        let found = rig.call("GET", &format!("/task/{task}{run}/artifacts/public/late"), None).await;
        assert_eq!(found.status, 303, "{}", found.body);
    }
    let why = ok(rig.call("GET", &format!("{TENURE_API}/tasks/{task}/why"), None).await);
    assert_eq!(why["reasons"][0]["endedBy"], "late-result", "{why}");
    assert_eq!(resolutions(&rig, task).await, ["task-exception", "task-exception", "task-completed"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t16_late_result_is_conflict_by_default() {
    let rig = Rig::start().await;
    let other = rig.another("other").await;
    rig.put_policy(QUEUE, &json!({"completeTime": 3})).await;
    let task = create(&rig, 1).await[0];
    let session = rig.start_session(QUEUE, "w1", json!({})).await;
    let first = claim_in_session(&rig, "w1", &session).await;
    until_taken(&rig, &first).await;
    for (server, what) in [(&rig.server, "completed"), (&other, "completed"), (&other, "failed")] {
        assert_eq!(report_to(server, &first, what, None).await.status, 409);
    }
    let item = eventually("its worker is told", async || ended_items(&rig, &session, 0).await.pop()).await;
    assert_eq!(item.get("resultCounts"), None, "{item}");
    assert_eq!(rig.status(task).await["state"], "pending");
}

/// In `/work`, only the worker that had the run may report it, and others' results are unaffected.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t16_work_reports_late_result() {
    let rig = Rig::start().await;
    rig.put_policy(QUEUE, &json!({"completeTime": 3, "lateResult": "first-wins"})).await;
    let task = create(&rig, 1).await[0];
    let first = claim_as(&rig, "w1", 1).await.remove(0);
    until_taken(&rig, &first).await;
    let report = async |worker: &str| {
        let body = json!({"taskQueueId": QUEUE, "workerGroup": "group", "workerId": worker, "claim": 0, "wait": 0,
            "results": [{"taskId": task, "runId": 0, "outcome": "completed", "result": 5}]});
        ok(rig.call("POST", &format!("{TENURE_API}/work"), Some(&body)).await)["results"][0].clone()
    };
    let foreign = report("w2").await;
    assert_eq!(foreign["error"]["code"], "InsufficientScopes", "{foreign}");
    for _ in 0..2 {
        let answer = report("w1").await;
        assert_eq!(reasons(&answer["status"]), RECORDED, "{answer}");
    }
}

/// The late result and the report of the open run, at two servers at once: one resolution each.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t16_one_of_late_result_and_report_wins() {
    let rig = Rig::manual().await;
    let other = another(&rig, "other").await;
    rig.put_policy(QUEUE, &first_wins()).await;
    let (mut late_wins, mut done) = (0, 0);
    while done < ROUNDS {
        let tasks = create(&rig, TOGETHER).await;
        let first = claim_all(&rig, "w1", TOGETHER).await;
        take(&rig, &first).await;
        let second = claim_all(&rig, "w2", TOGETHER).await;
        let of = |claims: &[Value], task: SlugId| {
            claims.iter().find(|claim| claim["status"]["taskId"] == json!(task)).unwrap().clone()
        };
        let rounds = tasks.iter().map(async |task| {
            let (late, own) = (of(&first, *task), of(&second, *task));
            let (late, own) = tokio::join!(
                report_to(&other, &late, "completed", None),
                report_to(&rig.server, &own, "completed", None)
            );
            let status = rig.status(*task).await;
            let winner = match (late.status, own.status) {
                (200, 409) => &RECORDED[..],
                (409, 200) => &[("exception", "claim-expired"), ("completed", "completed")],
                both => panic!("{both:?}: {status}"),
            };
            assert_eq!(reasons(&status), winner);
            usize::from(late.status == 200)
        });
        late_wins += join_all(rounds).await.into_iter().sum::<usize>();
        done += tasks.len();
    }
    assert!(late_wins > 0, "the late result never won");
}

/// A server that is killed leaves all of a late result or nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t16_killed_server_records_whole_late_result() {
    let rig = Rig::manual().await;
    rig.put_policy(QUEUE, &first_wins()).await;
    for round in 0..4 {
        let mut other = another(&rig, &format!("other-{round}")).await;
        create(&rig, KILLED).await;
        let first = claim_all(&rig, "w1", KILLED).await;
        take(&rig, &first).await;
        let before = number(&rig, "SELECT count(*) FROM runs WHERE late_of IS NOT NULL").await;
        let reports: Vec<_> = first
            .iter()
            .map(|claim| {
                let (mut client, path) = (client_of(&other), format!("/api/queue/v1{}/completed", run_of(claim)));
                let who = credentials_of(claim);
                tokio::spawn(async move {
                    let answer = client.call(&who, "POST", &path, Some(b"{\"result\": 1}".as_slice())).await;
                    answer.is_ok_and(|answer| answer.status == 200)
                })
            })
            .collect();
        let until = Instant::now() + Duration::from_secs(10);
        while number(&rig, "SELECT count(*) FROM runs WHERE late_of IS NOT NULL").await < before + round
            && Instant::now() < until
        {}
        other.kill().unwrap();
        let acknowledged: Vec<bool> = join_all(reports).await.into_iter().map(Result::unwrap).collect();
        let torn = "SELECT count(*) FROM runs r LEFT JOIN results x ON x.seq = r.seq AND x.run = r.run
                    LEFT JOIN tasks t ON t.seq = r.seq
                    WHERE r.late_of IS NOT NULL AND (x.seq IS NULL OR t.state <> 3 OR t.run <> r.run)";
        assert_eq!(number(&rig, torn).await, 0, "round {round}");
        for (claim, acknowledged) in first.iter().zip(acknowledged) {
            let task: SlugId = claim["status"]["taskId"].as_str().unwrap().parse().unwrap();
            let status = rig.status(task).await;
            assert!(!acknowledged || reasons(&status) == RECORDED, "acknowledged: {status}");
            let body = json!({"result": 1});
            let repeated = report_to(&rig.server, claim, "completed", Some(&body)).await;
            assert_eq!(reasons(&ok(repeated)["status"]), RECORDED);
        }
    }
}

/// A claim of a replaced scheduler, and a run that is assigned to another session.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t16_late_result_after_replaced_scheduler_counts() {
    let rig = Rig::start_with(|launch| launch.flag("--claim-work-wait", "0s")).await;
    let other = rig.another("other").await;
    let policy = json!({"dispatch": "assign", "delivery": "at-least-once", "onSchedulerLoss": "reassign",
        "lateResult": "first-wins"});
    rig.put_policy(QUEUE, &policy).await;
    let one = rig.start_session(QUEUE, "w1", json!({"capacity": 1})).await;
    let task = create(&rig, 1).await[0];
    let accept = format!("/task/{task}/runs/0/claim");
    let body = json!({"workerGroup": "group", "workerId": "w1", "sessionId": one});
    let first = eventually("the run is assigned and accepted", async || {
        let answer = rig.call("POST", &accept, Some(&body)).await;
        (answer.status == 200).then_some(answer.body)
    })
    .await;
    rig.call("POST", &format!("{TENURE_API}/sessions/{one}/renew"), Some(&json!({"capacity": 0}))).await;
    rig.start_session(QUEUE, "w2", json!({"capacity": 1})).await;
    let path = format!("{TENURE_API}/queues/{}/scheduler/replace", QUEUE.replace('/', "%2F"));
    ok(rig.call("POST", &path, None).await);
    eventually("the run is assigned again", async || {
        let why = rig.call("GET", &format!("{TENURE_API}/tasks/{task}/why"), None).await;
        (why.body["reasons"][0]["code"] == "assigned").then_some(())
    })
    .await;
    let item = eventually("its worker is told", async || ended_items(&rig, &one, 0).await.pop()).await;
    assert_eq!((&item["endedBy"], &item["resultCounts"]), (&json!("scheduler-replaced"), &json!(true)), "{item}");
    let reported = report_to(&other, &first, "completed", None).await;
    assert_eq!(reasons(&ok(reported)["status"]), RECORDED);
}
