//! Why a task is not running, over HTTP; counts of queues by the state of their runs; events on
//! Tenure's own exchanges.

use serde_json::{Value, json};
use tenure_tests::http::{Answer, TENURE_API};

use crate::rig::{Raw, Rig, call, definition, eventually, new_task, ok, worker};

const QUEUE: &str = "why/linux";

async fn why(rig: &Rig, task: impl std::fmt::Display) -> Answer {
    rig.call("GET", &format!("{TENURE_API}/tasks/{task}/why"), None).await
}

fn codes(answer: &Answer) -> Vec<&str> {
    assert_eq!(answer.status, 200, "{}", answer.body);
    let reasons = answer.body["reasons"].as_array().unwrap();
    reasons.iter().map(|reason| reason["code"].as_str().unwrap()).collect()
}

async fn of_queue(rig: &Rig) -> Value {
    let answer = ok(rig.call("GET", &format!("{TENURE_API}/queues/why%2Flinux"), None).await);
    let elsewhere = rig.call("GET", &format!("{TENURE_API}/queues/why/linux"), None).await;
    assert_eq!(elsewhere.body, answer, "in two segments");
    answer
}

async fn post(rig: &Rig, rest: &str, body: &Value) -> Answer {
    let answer = rig.call("POST", &format!("{TENURE_API}/queues/why%2Flinux/{rest}"), Some(body)).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    answer
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn limited_queue_that_was_polled_says_that_polls_find_nothing() {
    let rig = Rig::start().await;
    let urls = rig.call("GET", &format!("/poll-task-url/{QUEUE}"), None).await.body;
    let lowest = urls["queues"][6]["signedPollUrl"].as_str().unwrap();
    assert_eq!(rig.send(&Raw::new("GET", lowest.strip_prefix(rig.server.root_url()).unwrap())).await.status, 200);
    let policy = json!({"concurrency": {"total": 1}});
    ok(rig.call("PUT", &format!("{TENURE_API}/queues/why%2Flinux/policy"), Some(&policy)).await);
    let (first, second) = (new_task(), new_task());
    rig.create(first, &definition(QUEUE)).await;
    eventually("the run may start", async || {
        (codes(&why(&rig, first).await) == ["no-worker", "poll-limited"]).then_some(())
    })
    .await;
    assert_eq!(rig.claim(QUEUE, 1).await.len(), 1);
    rig.create(second, &definition(QUEUE)).await;
    assert_eq!(codes(&why(&rig, second).await), ["waiting"], "a worker has asked for work");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_has_just_asked_is_known_at_once() {
    let rig = Rig::start_with(|launch| launch.flag("--claim-work-wait", "0s")).await;
    assert!(rig.claim(QUEUE, 1).await.is_empty());
    let task = new_task();
    let mut delayed = definition(QUEUE);
    delayed["extra"] = json!({"tenure": {"delay": 30}});
    assert_eq!(rig.create(task, &delayed).await.status, 200);
    assert_eq!(codes(&why(&rig, task).await), ["delay"]);
    let page = rig.send(&Raw::new("GET", &format!("/task/{task}"))).await.text();
    assert!(page.contains("It is delayed until") && !page.contains("No eligible worker"), "{page}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_worker_is_none_that_may_have_a_task() {
    let rig = Rig::start_with(|launch| launch.flag("--claim-work-wait", "0s")).await;
    let session = rig.start_session(QUEUE, "worker", json!({})).await;
    let renewal = format!("{TENURE_API}/sessions/{session}/renew");
    let freeze = async |frozen: bool| {
        assert_eq!(rig.call("POST", &renewal, Some(&json!({"frozen": frozen}))).await.status, 200);
    };
    assert!(rig.claim(QUEUE, 1).await.is_empty());
    let task = new_task();
    rig.create(task, &definition(QUEUE)).await;
    freeze(true).await;
    let answer = why(&rig, task).await.body;
    let reason = &answer["reasons"][0];
    assert_eq!(
        (&reason["code"], &reason["quarantined"], &reason["frozen"]),
        (&json!("no-worker"), &json!(0), &json!(1))
    );
    assert!(reason["lastAsked"].is_string());
    assert_eq!(answer["claimableBy"], json!([]));
    freeze(false).await;
    let answer = why(&rig, task).await;
    assert!(codes(&answer).is_empty(), "{}", answer.body);
    assert_eq!(answer.body["claimableBy"], json!([{"workerGroup": "group", "workerId": "worker"}]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn why_needs_the_scope_of_status_and_names_need_another() {
    let rig = Rig::start().await;
    let (task, waits) = (new_task(), new_task());
    rig.create(task, &definition(QUEUE)).await;
    let mut body = definition(QUEUE);
    body["dependencies"] = json!([task]);
    rig.create(waits, &body).await;
    let path = |task| format!("{TENURE_API}/tasks/{task}/why");
    let anonymous = async |task| rig.send(&Raw::new("GET", &path(task))).await.json();
    assert_eq!(anonymous(waits).await["reasons"], json!([{"code": "dependencies", "unsatisfied": 1}]));
    assert!(anonymous(task).await.get("claimableBy").is_none());
    let mut clients = Vec::new();
    for (scope, named) in [("tenure:get-queue:other/linux", false), ("tenure:get-queue:why/linux", true)] {
        let who = rig.make_client(&format!("client-{named}"), &["queue:status:*", scope]).await;
        let answer = call(&mut rig.client(), &who, "GET", &path(waits), None).await;
        assert_eq!(answer.body["reasons"][0].get("tasks").is_some(), named, "{}", answer.body);
        let answer = call(&mut rig.client(), &who, "GET", &path(task), None).await;
        assert_eq!(answer.body.get("claimableBy").is_some(), named, "{}", answer.body);
        clients.push((who, named));
    }
    assert_eq!(rig.claim(QUEUE, 1).await.len(), 1);
    for (who, named) in &clients {
        let answer = call(&mut rig.client(), who, "GET", &path(task), None).await.body;
        let reason = &answer["reasons"][0];
        assert_eq!((&reason["code"], reason.get("workerId").is_some()), (&json!("running"), *named), "{reason}");
    }
    let closed = rig.make_client("closed", &[]).await;
    rig.call("POST", "/api/auth/v1/roles/anonymous", Some(&json!({"scopes": [], "description": ""}))).await;
    eventually("reading is closed", async || {
        let answer = call(&mut rig.client(), &closed, "GET", &path(task), None).await;
        (answer.status == 403).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn queue_shows_counts_pause_and_policy_from_the_start() {
    let rig = Rig::start().await;
    let zeros = json!({"taskQueueId": QUEUE, "pending": 0, "claimed": 0, "delayed": 0, "waiting": 0, "assigned": 0,
        "ready": 0, "runnable": 0, "deadLetters": 0});
    assert_eq!(of_queue(&rig).await, zeros);
    for _ in 0..2 {
        rig.create(new_task(), &definition(QUEUE)).await;
    }
    assert_eq!(rig.claim(QUEUE, 1).await.len(), 1);
    let mut counted = json!({"taskQueueId": QUEUE, "pending": 1, "claimed": 1, "delayed": 0, "waiting": 0, "assigned": 0,
        "ready": 1, "runnable": 1, "deadLetters": 0});
    assert_eq!(of_queue(&rig).await, counted);
    let policy = format!("{TENURE_API}/queues/why%2Flinux/policy");
    assert_eq!(rig.call("PUT", &policy, Some(&json!({"completeTime": 600}))).await.status, 200);
    let paused = post(&rig, "pause", &json!({"reason": "disk"})).await.body;
    counted["runnable"] = json!(0);
    counted["policyVersion"] = json!(1);
    counted["pause"] = json!({"since": paused["since"], "by": rig.root.client_id, "reason": "disk"});
    assert_eq!(of_queue(&rig).await, counted);
    let listed = rig.call("GET", &format!("{TENURE_API}/queues"), None).await;
    let expected = json!({"taskQueueId": QUEUE, "pendingTasks": 1, "claimedTasks": 1, "delayedTasks": 0, "waitingTasks": 0,
        "runnableTasks": 0, "paused": paused["since"]});
    assert_eq!(listed.body["queues"], json!([expected]));
    let metrics = eventually("the pause is measured", async || {
        let text = rig.send(&Raw::new("GET", "/metrics")).await.text();
        let line = text.lines().find(|line| line.starts_with("tenure_queue_paused_seconds{"))?.to_owned();
        let seconds: f64 = line.rsplit(' ').next()?.parse().ok()?;
        (seconds > 0.0).then_some(text)
    })
    .await;
    for line in [
        "tenure_queue_delayed_tasks{task_queue=\"why/linux\"} 0",
        "tenure_queue_runnable_tasks{task_queue=\"why/linux\"} 0",
        "tenure_endings_total{ended_by=\"complete-time\"} 0",
    ] {
        assert!(metrics.lines().any(|found| found == line), "{line} is not in\n{metrics}");
    }
    let who = rig.make_client("nothing", &["tenure:get-queue:other/linux"]).await;
    let path = format!("{TENURE_API}/queues/why%2Flinux");
    assert_eq!(call(&mut rig.client(), &who, "GET", &path, None).await.status, 403);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_that_its_worker_lost_is_counted_by_what_ended_it() {
    let rig = Rig::start_with(|launch| launch.flag("--clock", "manual")).await;
    rig.create(new_task(), &definition(QUEUE)).await;
    assert_eq!(rig.claim(QUEUE, 1).await.len(), 1);
    rig.advance(1_300).await;
    let ended = async |line: &'static str| {
        eventually(line, async || {
            let text = rig.send(&Raw::new("GET", "/metrics")).await.text();
            text.lines().any(|found| found == line).then_some(())
        })
        .await;
    };
    ended("tenure_endings_total{ended_by=\"lease\"} 1").await;
    let answer = rig.call("POST", "/claim-work/why%2Flinux", Some(&worker(1))).await;
    assert_eq!(answer.body["tasks"].as_array().unwrap().len(), 1);
    let removed = format!("{TENURE_API}/workers/why%2Flinux/group/worker/removed");
    assert_eq!(rig.call("POST", &removed, None).await.status, 200);
    ended("tenure_endings_total{ended_by=\"worker-removed\"} 1").await;
}
