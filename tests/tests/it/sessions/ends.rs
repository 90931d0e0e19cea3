//! What comes after the end of a session, whatever ended it.

use serde_json::{Value, json};
use tenure_api::ids::SlugId;
use tenure_tests::http::{Answer, TENURE_API};

use super::{
    QUEUE, UNKNOWN, advance, ask, claim, command, create, date, end, id, inbox, path, refused, renew, report, start,
    start_by_hand, try_to_start, workers,
};
use crate::rig::{Rig, new_task, run_of};

/// A claimTask of this worker for its session.
async fn claim_one(rig: &Rig, task: SlugId, worker: &str, session: &str) -> Answer {
    let body = json!({"workerGroup": "group", "workerId": worker, "sessionId": session});
    rig.call("POST", &format!("/task/{task}/runs/0/claim"), Some(&body)).await
}

async fn work(rig: &Rig, worker: &str, session: &str) -> Answer {
    let body = json!({"taskQueueId": QUEUE, "workerGroup": "group", "workerId": worker, "claim": 1, "wait": 0,
        "sessionId": session});
    rig.call("POST", &format!("{TENURE_API}/work"), Some(&body)).await
}

/// Each call that needs a live session is refused, and the session is shown with its end.
async fn is_over(rig: &Rig, worker: &str, session: &str, by: &str) {
    let task = create(rig, 1).await[0];
    for answer in [
        inbox(rig, session, "wait=0").await,
        inbox(rig, session, "wait=30").await,
        renew(rig, session, json!({})).await,
        ask(rig, worker, Some(session), 1).await,
        claim_one(rig, task, worker, session).await,
        work(rig, worker, session).await,
    ] {
        let why = refused(&answer, 410, "SessionEnded");
        assert!(why.contains(by), "{why}");
    }
    assert_eq!(rig.status(task).await["state"], "pending");
    refused(&command(rig, session, json!({"command": "freeze"})).await, 404, "ResourceNotFound");
    let shown = rig.call("GET", &path(session, ""), None).await;
    assert_eq!(
        (shown.status, &shown.body["endedBy"], &shown.body["running"]),
        (200, &json!(by), &json!(0)),
        "{}",
        shown.body
    );
    assert!(date(&shown.body["ended"]) >= date(&shown.body["started"]));
    assert!(workers(rig).await.iter().all(|worker| id(worker) != session));
    // The worker goes on without one.
    let claims = claim(rig, worker, None, 1).await;
    assert_eq!(claims.len(), 1);
    assert_eq!(report(rig, &claims[0], "completed").await.status, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_end_of_a_session_releases_what_it_holds_and_a_repeat_says_the_same() {
    let rig = start_by_hand().await;
    let tasks = create(&rig, 3).await;
    let session = start(&rig, "w1", json!({})).await;
    let session = id(&session);
    let held = claim(&rig, "w1", Some(session), 2).await;
    let one = claim_one(&rig, tasks[2], "w1", session).await;
    assert_eq!((held.len(), one.status), (2, 200), "{}", one.body);
    for _ in 0..3 {
        let ended = end(&rig, session).await;
        assert_eq!((ended.status, ended.body), (200, json!({"returned": 3})));
    }
    for &task in &tasks {
        let status = rig.status(task).await;
        assert_eq!((&status["state"], &status["retriesLeft"]), (&json!("pending"), &json!(5)), "{status}");
        assert_eq!(status["runs"][0]["reasonResolved"], "worker-shutdown");
    }
    for claim in &held {
        assert_eq!(report(&rig, claim, "completed").await.code(), "RequestConflict");
    }
    let next = claim(&rig, "w2", None, 3).await;
    assert_eq!(next.len(), 3);
    for claim in &next {
        assert_eq!((report(&rig, claim, "completed").await.status, &claim["runId"]), (200, &json!(1)));
    }
    is_over(&rig, "w1", session, "closed").await;
    rig.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_that_is_not_renewed_ends_with_all_its_claims_and_not_earlier() {
    let rig = start_by_hand().await;
    let tasks = create(&rig, 3).await;
    let session = start(&rig, "w1", json!({"ttl": 60})).await;
    let session = id(&session);
    assert_eq!(claim(&rig, "w1", Some(session), 3).await.len(), 3);
    advance(&rig, 40.0).await;
    assert_eq!(workers(&rig).await[0]["running"], 3);
    assert_eq!(renew(&rig, session, json!({})).await.status, 200);
    advance(&rig, 40.0).await;
    assert_eq!(workers(&rig).await[0]["running"], 3);
    assert!(claim(&rig, "w2", None, 3).await.is_empty());
    advance(&rig, 20.0).await;
    let next = claim(&rig, "w2", None, 3).await;
    assert_eq!(next.len(), 3, "long before their leases end");
    for (task, claim) in tasks.iter().zip(&next) {
        let status = rig.status(*task).await;
        assert_eq!(status["retriesLeft"], 4, "it was a loss");
        assert_eq!(report(&rig, claim, "completed").await.status, 200);
    }
    is_over(&rig, "w1", session, "expired").await;
    let ended = end(&rig, session).await;
    assert_eq!((ended.status, ended.body), (200, json!({"returned": 3})), "what it would have released is gone");

    // It is shown for a day.
    advance(&rig, 23.0 * 3600.0).await;
    assert_eq!(rig.call("GET", &path(session, ""), None).await.status, 200);
    advance(&rig, 2.0 * 3600.0).await;
    for answer in [rig.call("GET", &path(session, ""), None).await, end(&rig, session).await] {
        refused(&answer, 404, "ResourceNotFound");
    }
    rig.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_that_is_over_first_ends_its_claim_and_leaves_the_session() {
    let rig = start_by_hand().await;
    let policy = json!({"claimTimeout": 10});
    let put = rig.call("PUT", &format!("{TENURE_API}/queues/sessions%2Flinux/policy"), Some(&policy)).await;
    assert_eq!(put.status, 200, "{}", put.body);
    create(&rig, 2).await;
    let session = start(&rig, "w1", json!({})).await;
    let session = id(&session);
    let held = claim(&rig, "w1", Some(session), 2).await;
    advance(&rig, 5.0).await;
    let renewed = report(&rig, &held[0], "reclaim").await;
    assert_eq!(renewed.status, 200, "{}", renewed.body);
    advance(&rig, 5.0).await;
    assert_eq!(workers(&rig).await[0]["running"], 1, "a renewed lease stays in the session");
    let items = super::items(&rig, session, 0).await;
    assert_eq!((items.len(), &items[0]["endedBy"]), (1, &json!("lease")), "{items:?}");
    assert_eq!(format!("/task/{}/runs/0", items[0]["taskId"].as_str().unwrap()), run_of(&held[1]));
    // The next run belongs to no session.
    let next = claim(&rig, "w2", None, 1).await;
    assert_eq!((next.len(), &next[0]["runId"]), (1, &json!(1)));
    assert_eq!(end(&rig, session).await.body, json!({"returned": 1}));
    assert_eq!(report(&rig, &next[0], "completed").await.status, 200);
    rig.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_of_another_worker_or_queue_or_of_none_is_refused_and_claims_nothing() {
    let rig = start_by_hand().await;
    let task = create(&rig, 1).await[0];
    let session = start(&rig, "w1", json!({})).await;
    let elsewhere = start(&rig, "w1", json!({"taskQueueId": "sessions/other"})).await;
    for (worker, session, status, code) in [
        ("w2", id(&session), 400, "InputError"),
        ("w1", id(&elsewhere), 400, "InputError"),
        ("w1", UNKNOWN, 404, "ResourceNotFound"),
    ] {
        for answer in [
            ask(&rig, worker, Some(session), 1).await,
            claim_one(&rig, task, worker, session).await,
            work(&rig, worker, session).await,
        ] {
            refused(&answer, status, code);
        }
    }
    for rest in ["/inbox?wait=0", ""] {
        refused(&rig.call("GET", &path(UNKNOWN, rest), None).await, 404, "ResourceNotFound");
    }
    refused(&renew(&rig, UNKNOWN, json!({})).await, 404, "ResourceNotFound");
    refused(&end(&rig, UNKNOWN).await, 404, "ResourceNotFound");
    refused(&command(&rig, UNKNOWN, json!({"command": "freeze"})).await, 404, "ResourceNotFound");
    assert_eq!(rig.status(task).await["state"], "pending");
    rig.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_that_is_no_start_of_a_session_is_refused_by_name() {
    let rig = Rig::start().await;
    let (schema, rule) = ("InputValidationError", "InputError");
    for (fields, code, named) in [
        (json!({"ttl": "60"}), schema, "ttl"),
        (json!({"weight": null}), schema, "weight"),
        (json!({"capacity": 1.5}), schema, "capacity"),
        (json!({"takeover": 1}), schema, "takeover"),
        (json!({"policyVersion": "1"}), schema, "policyVersion"),
        (json!({"workerId": "x".repeat(39)}), schema, "workerId"),
        (json!({"taskQueueId": "linux"}), schema, "taskQueueId"),
        (json!({"unheard": 1}), schema, "unheard"),
        (json!({"ttl": 14}), rule, "`ttl` must be from 15 to 3600 seconds"),
        (json!({"ttl": 1e300}), rule, "`ttl`"),
        (json!({"weight": 65_536}), rule, "`weight` must be from 0 to 65535"),
        (json!({"capacity": 1_001}), rule, "`capacity` must be from 0 to 1000"),
        (json!({"policyVersion": -1}), rule, "`policyVersion`"),
    ] {
        let why = refused(&try_to_start(&rig, "w1", fields.clone()).await, 400, code);
        assert!(why.contains(named), "{fields}: {why}");
    }
    let none = json!({"workerGroup": "group", "workerId": "w1", "sessionId": new_task().to_string()});
    let answer = rig.call("POST", &crate::rig::claim_path(QUEUE), Some(&none)).await;
    assert!(refused(&answer, 400, schema).contains("sessionId"), "a task's id is none of a session");
    assert!(workers(&rig).await.is_empty());
    assert_eq!(Value::Null, rig.call("GET", &path("short", ""), None).await.body["sessionId"]);
    rig.server.stop().await;
}
