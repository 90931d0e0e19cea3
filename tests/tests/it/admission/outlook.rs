//! Reasons why runs wait, and how many of them workers could start.

use super::assign::{accept, assigned};
use super::*;

/// Codes of the reasons for a task's state, and the whole answer.
async fn why(rig: &Rig, task: impl std::fmt::Display) -> (Vec<String>, Value) {
    let answer = ok(rig.call("GET", &format!("{TENURE_API}/tasks/{task}/why"), None).await);
    let reasons = answer["reasons"].as_array().unwrap();
    (reasons.iter().map(|reason| reason["code"].as_str().unwrap().to_owned()).collect(), answer)
}

async fn queue_now(rig: &Rig) -> Value {
    rig.call("GET", &format!("{TENURE_API}/queues/limits%2Flinux"), None).await.body
}

async fn claim_by_name(rig: &Rig, task: SlugId) -> String {
    let body = json!({"workerGroup": "group", "workerId": "by-name"});
    let answer = rig.call("POST", &format!("/task/{task}/runs/0/claim"), Some(&body)).await;
    assert_eq!((answer.status, answer.code()), (409, "RequestConflict"), "{}", answer.body);
    answer.body["message"].as_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn run_of_full_key_shows_limit_holders_and_position() {
    let rig = Rig::manual().await;
    rig.put_policy(QUEUE, &json!({"concurrency": {"perKey": 1}})).await;
    let holder = create(&rig, Some("acme")).await;
    rig.advance(0.0).await;
    let claims = rig.claim(QUEUE, 10).await;
    assert_eq!(claims.len(), 1);
    let next = create(&rig, Some("acme")).await;
    let last = create(&rig, Some("acme")).await;
    rig.advance(0.0).await;
    let (codes, answer) = why(&rig, last).await;
    assert_eq!(codes[0], "waiting");
    assert_eq!((&answer["ready"], &answer["state"]), (&json!(false), &json!("pending")));
    assert_eq!(
        answer["reasons"][0],
        json!({"code": "waiting", "key": "acme", "limit": 1, "used": 1, "position": 2, "keysBefore": 0,
            "holders": [{"taskId": holder, "runId": 0, "worker": {"workerGroup": "group", "workerId": "worker"}}]})
    );
    let refusal = claim_by_name(&rig, last).await;
    assert!(
        refusal.contains("It waits for a slot of its key, which has 1. 1 run of its key is before it."),
        "{refusal}"
    );
    let reader = rig.make_client("reader", &["queue:status:*"]).await;
    let path = format!("{TENURE_API}/tasks/{last}/why");
    let hidden = call(&mut rig.client(), &reader, "GET", &path, None).await.body;
    assert_eq!(hidden["reasons"][0], json!({"code": "waiting", "limit": 1, "used": 1, "position": 2, "keysBefore": 0}));
    rig.report(&claims[0], "completed", None).await;
    rig.advance(0.0).await;
    let (codes, answer) = why(&rig, next).await;
    assert_eq!((&answer["ready"], &answer["state"]), (&json!(true), &json!("pending")), "{answer}");
    assert!(!codes.contains(&"waiting".to_owned()), "{answer}");
    let (codes, answer) = why(&rig, last).await;
    assert_eq!((codes[0].as_str(), &answer["reasons"][0]["position"]), ("waiting", &json!(2)));
    let body = json!({"workerGroup": "group", "workerId": "by-name"});
    ok(rig.call("POST", &format!("/task/{last}/runs/0/claim"), Some(&body)).await);
    assert!(claim_by_name(&rig, next).await.contains("It waits for a slot of its key, which has 1."));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn run_shows_next_start_of_rate_and_keys_before_it() {
    let rig = Rig::manual().await;
    rig.put_policy(QUEUE, &json!({"rate": {"total": {"count": 1, "seconds": 60}}})).await;
    for key in ["a", "b"] {
        create(&rig, Some(key)).await;
    }
    let last = create(&rig, Some("c")).await;
    rig.advance(0.0).await;
    assert_eq!(rig.claim(QUEUE, 10).await.len(), 1);
    let (_, answer) = why(&rig, last).await;
    let reason = &answer["reasons"][0];
    assert_eq!((&reason["position"], &reason["keysBefore"]), (&json!(1), &json!(1)));
    let next = chrono::DateTime::parse_from_rfc3339(reason["nextStart"].as_str().unwrap()).unwrap();
    let now = rig.call("GET", &format!("{TENURE_API}/clock"), None).await.body;
    let now = chrono::DateTime::parse_from_rfc3339(now["now"].as_str().unwrap()).unwrap();
    let wait = (next - now).num_milliseconds();
    assert!((55_000..=60_000).contains(&wait), "{wait}");
    assert_eq!(queue_now(&rig).await["runnable"], 0);
    rig.advance(61.0).await;
    assert_eq!(rig.claim(QUEUE, 10).await.len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn run_for_session_shows_missing_session_or_its_offer() {
    let rig = Rig::manual().await;
    rig.put_policy(QUEUE, &json!({"dispatch": "assign", "acceptTime": 60})).await;
    let task = create(&rig, None).await;
    rig.advance(0.0).await;
    let (codes, answer) = eventually("there is a scheduler", async || {
        let (codes, answer) = why(&rig, task).await;
        (codes.get(1).map(String::as_str) != Some("no-scheduler")).then_some((codes, answer))
    })
    .await;
    assert_eq!(codes, ["waiting", "no-session"]);
    assert_eq!(answer["reasons"][1], json!({"code": "no-session", "because": "none-live", "sessions": 0}));
    // A worker without a session claims nothing.
    assert!(rig.claim(QUEUE, 1).await.is_empty());
    eventually("the worker's request is recorded", async || {
        let (codes, _) = why(&rig, task).await;
        (codes == ["waiting", "no-session", "assign-queue"]).then_some(())
    })
    .await;

    let mine = rig.start_session(QUEUE, "w1", json!({})).await;
    rig.advance(0.0).await;
    assert_eq!(assigned(&rig, &mine).await, [json!(task)]);
    let (codes, answer) = why(&rig, task).await;
    assert_eq!(codes, ["assigned"]);
    let reason = &answer["reasons"][0];
    assert_eq!(
        (&reason["worker"], &reason["sessionId"], &answer["ready"]),
        (&json!({"workerGroup": "group", "workerId": "w1"}), &json!(mine), &json!(false))
    );
    assert!(reason["since"].is_string() && reason["acceptBy"].is_string(), "{reason}");
    let refusal = claim_by_name(&rig, task).await;
    assert!(refusal.contains("It was assigned to the session of a worker at"), "{refusal}");
    assert_eq!(queue_now(&rig).await["runnable"], 1);
    let other = create(&rig, None).await;
    rig.advance(0.0).await;
    let (codes, answer) = why(&rig, other).await;
    assert_eq!((codes[1].as_str(), &answer["reasons"][1]["because"]), ("no-session", &json!("none-free")));
    assert_eq!(accept(&rig, &mine, "w1", &json!(task), 0).await.status, 200);

    let second = rig.start_session(QUEUE, "w2", json!({})).await;
    rig.advance(0.0).await;
    assert_eq!(assigned(&rig, &second).await, [json!(other)]);
    // No other session is free, so the same one gets it again; a frozen session gets nothing.
    let frozen =
        rig.call("POST", &format!("{TENURE_API}/sessions/{second}/renew"), Some(&json!({"frozen": true}))).await;
    assert_eq!(frozen.status, 200, "{}", frozen.body);
    rig.advance(61.0).await;
    let (codes, answer) = why(&rig, other).await;
    assert_eq!(codes[..3], ["waiting", "no-session", "not-accepted"], "{answer}");
    assert_eq!(answer["reasons"][2]["worker"], json!({"workerGroup": "group", "workerId": "w2"}));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn runnable_count_equals_later_claims() {
    let rig = Rig::manual().await;
    for (policy, expected) in [
        (json!({"concurrency": {"total": 3}}), 3),
        (json!({"concurrency": {"perKey": 2}}), 5),
        (json!({"rate": {"total": {"count": 10, "seconds": 60, "burst": 4}}}), 4),
        (json!({"rate": {"perKey": {"count": 10, "seconds": 60, "burst": 3}}}), 7),
        (json!({"concurrency": {"total": 4, "perKey": 2}, "fair": true}), 4),
        (json!({"fair": true}), 11),
    ] {
        rig.put_policy(QUEUE, &policy).await;
        for (key, runs) in [("a", 5), ("b", 5), ("c", 1)] {
            for _ in 0..runs {
                create(&rig, Some(key)).await;
            }
        }
        rig.advance(0.0).await;
        let now = queue_now(&rig).await;
        assert_eq!(now["runnable"], expected, "{policy}: {now}");
        let claims = rig.claim(QUEUE, 20).await;
        assert_eq!(claims.len(), expected, "{policy}");
        let all = rig.call("GET", &format!("{TENURE_API}/queues"), None).await.body;
        assert_eq!(all["queues"][0]["runnableTasks"], queue_now(&rig).await["runnable"]);
        rig.put_policy(QUEUE, &json!({})).await;
        rig.advance(0.0).await;
        for claim in claims.iter().chain(&rig.claim(QUEUE, 20).await) {
            rig.report(claim, "completed", None).await;
        }
        rig.advance(60.0).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiting_runs_within_limits_are_runnable_unless_paused() {
    let rig = Rig::manual().await;
    rig.put_policy(QUEUE, &json!({"concurrency": {"perKey": 2}})).await;
    for number in 0..450 {
        create(&rig, Some(&format!("key-{}", number % 225))).await;
    }
    create(&rig, Some("key-0")).await;
    rig.advance(0.0).await;
    let now = queue_now(&rig).await;
    assert_eq!((&now["ready"], &now["waiting"], &now["runnable"]), (&json!(0), &json!(451), &json!(450)));
    let queue = format!("{TENURE_API}/queues/limits%2Flinux");
    assert_eq!(rig.call("POST", &format!("{queue}/pause"), Some(&json!({}))).await.status, 200);
    assert_eq!(queue_now(&rig).await["runnable"], 0);
}
