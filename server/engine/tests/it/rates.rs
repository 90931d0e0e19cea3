//! Rates and preferences where time passes, and what a look leaves alone. `scripts/with-pg cargo test -p tenure-engine --test it -- rates`.

use std::time::Duration;

use serde_json::json;
use tenure_domain::lifecycle::Report;
use tenure_engine::background::admission;
use tenure_engine::testing::{QUEUE, Queue, new_task};
use tenure_store::schedulers;
use tenure_store::testing::{number, until_a_session_waits};

use crate::schedulers::{Ground, begin, put};
use crate::support::create_on;

/// A scheduler with one session, by a policy.
async fn assigning(policy: serde_json::Value) -> (Ground, Queue) {
    let mut ground = Ground::new().await;
    let server = ground.server();
    ground.beat(&server).await;
    put(&server, policy).await;
    ground.beat(&server).await;
    begin(&server, "here", 100).await;
    (ground, server)
}

async fn admit(server: &Queue) {
    while admission::pass(&server.engine).await.unwrap().done > 0 {}
}

async fn finish(ground: Ground, server: Queue) {
    let Ground { database, conn } = ground;
    drop(conn);
    server.stop().await;
    database.finish().await;
}

#[tokio::test]
async fn runs_that_sessions_have_not_accepted_keep_their_tokens() {
    let rate = json!({"total": {"count": 60, "seconds": 60, "burst": 1}});
    let (mut ground, server) = assigning(json!({"dispatch": "assign", "rate": rate})).await;
    for _ in 0..3 {
        server.create_one(QUEUE).await;
    }
    for _ in 0..3 {
        admit(&server).await;
        assert_eq!(ground.count("pending WHERE hold = 3").await, 1);
        // As if a minute had passed.
        sqlx::query("UPDATE admission_queues SET tat = tat - 60").execute(&mut ground.conn).await.unwrap();
    }
    finish(ground, server).await;
}

#[tokio::test]
async fn a_queue_at_its_rate_locks_no_run_that_waits() {
    let mut ground = Ground::new().await;
    let server = ground.server();
    put(&server, json!({"rate": {"total": {"count": 1, "seconds": 3_600}}})).await;
    let tasks: Vec<_> = (0..50).map(|_| new_task(QUEUE, &json!({}))).collect();
    create_on(&mut ground.conn, &server, &tasks).await;
    admit(&server).await;
    let waiting = "SELECT count(*) FROM pending WHERE hold = 2";
    assert_eq!(number(ground.database.pool(), waiting).await, 49);
    let locks = "SELECT COALESCE(sum(xmax::text::bigint), 0)::bigint FROM pending WHERE hold = 2";
    let before = number(ground.database.pool(), locks).await;
    for _ in 0..5 {
        admission::pass(&server.engine).await.unwrap();
    }
    assert_eq!(number(ground.database.pool(), locks).await, before);
    finish(ground, server).await;
}

#[tokio::test]
async fn a_run_prefers_its_worker_from_the_end_of_its_delay_on() {
    let (mut ground, server) = assigning(json!({"dispatch": "assign"})).await;
    let worker = json!({"workerGroup": "group", "workerId": "away", "wait": 60});
    let task = new_task(QUEUE, &json!({"extra": {"tenure": {"delay": 1_800, "worker": worker}}}));
    server.create(&task).await.unwrap();
    // As if half an hour had passed.
    let later = "UPDATE pending SET scheduled = scheduled - interval '30 minutes', held_until = held_until - interval '30 minutes'";
    sqlx::query(later).execute(&mut ground.conn).await.unwrap();
    let holds = tenure_engine::background::PASSES.iter().find(|pass| pass.name == "holds").unwrap();
    holds.run(&server.engine).await.unwrap();
    admit(&server).await;
    assert_eq!(ground.count("pending WHERE hold = 2").await, 1, "it waits for its worker");
    sqlx::query("UPDATE pending SET waits_since = waits_since - interval '2 minutes'")
        .execute(&mut ground.conn)
        .await
        .unwrap();
    sqlx::query("UPDATE admission_heads SET ready = true, at = NULL").execute(&mut ground.conn).await.unwrap();
    admit(&server).await;
    assert_eq!(ground.count("pending WHERE hold = 3").await, 1, "and goes to any after a minute");
    finish(ground, server).await;
}

/// The look of a scheduler goes on until it is replaced: what it gives out meanwhile is given out again too.
#[tokio::test]
async fn what_is_given_out_until_a_scheduler_is_replaced_is_given_out_again() {
    let policy = json!({"dispatch": "assign", "delivery": "at-least-once", "onSchedulerLoss": "reassign"});
    let (mut ground, server) = assigning(policy).await;
    let queue = server.key(QUEUE).await;
    let seen = schedulers::lock(&mut ground.conn, queue).await.unwrap().unwrap().active;
    let mut looking = ground.database.connect().await;
    let mut look = sqlx::Connection::begin(&mut looking).await.unwrap();
    sqlx::query("SELECT FROM admission_queues FOR UPDATE").execute(&mut *look).await.unwrap();
    let mut replacing = ground.database.connect().await;
    let replaced = tokio::spawn(async move {
        let why = tenure_api::states::SchedulerEnd::Lost;
        schedulers::change(&mut replacing, seen, None, why).await.unwrap()
    });
    until_a_session_waits(ground.database.pool()).await;
    let given: i64 = sqlx::query_scalar("SELECT nextval('pending_ord')").fetch_one(&mut *look).await.unwrap();
    look.commit().await.unwrap();
    let term = tokio::time::timeout(Duration::from_secs(10), replaced).await.unwrap().unwrap();
    assert_eq!(term, Some(seen.term + 1));
    let until = "SELECT reassign_ord FROM admission_queues";
    assert!(number(ground.database.pool(), until).await >= given);
    drop(looking);
    finish(ground, server).await;
}

/// Another limit does not have the turns of keys begin anew.
#[tokio::test]
async fn keys_keep_their_turns_when_a_policy_changes_that_is_fair_still() {
    let mut ground = Ground::new().await;
    let server = ground.server();
    put(&server, json!({"fair": true, "concurrency": {"total": 1}})).await;
    for key in ["a", "b"] {
        let task = || new_task(QUEUE, &json!({"extra": {"tenure": {"key": key}}}));
        let tasks: Vec<_> = (0..5).map(|_| task()).collect();
        create_on(&mut ground.conn, &server, &tasks).await;
    }
    for _ in 0..4 {
        admit(&server).await;
        let claimed = server.claim_one(QUEUE).await;
        server.report(claimed.task.id, claimed.run, Report::Completed).await.unwrap();
    }
    let turns = "SELECT count(*) FROM admission_heads WHERE vtime > 1";
    assert_eq!(number(ground.database.pool(), turns).await, 2);
    put(&server, json!({"fair": true, "concurrency": {"total": 1}, "claimTimeout": 90})).await;
    assert_eq!(number(ground.database.pool(), turns).await, 2);
    put(&server, json!({"concurrency": {"total": 1}})).await;
    assert_eq!(number(ground.database.pool(), turns).await, 0, "places are no turns");
    finish(ground, server).await;
}
