//! Tokens of runs that no worker has claimed in the end.

use tenure_api::states::SessionEnd;
use tenure_engine::background::accept;
use tenure_engine::ops::change_task::{self, Change};
use tenure_engine::ops::sessions;

use super::*;

/// The session that was given the run, if one was.
async fn given_to(ground: &mut Ground) -> Option<i64> {
    let given = "SELECT session FROM pending WHERE hold = 3";
    sqlx::query_scalar(given).fetch_optional(&mut ground.conn).await.unwrap()
}

/// The one that has it does not answer, and the next one is free. No window has more claims for that.
#[tokio::test]
async fn a_run_that_is_taken_back_goes_to_another_worker_at_once_although_the_rate_lets_one_start_an_hour() {
    for of in ["total", "perKey"] {
        for closes in [false, true] {
            let mut policy = json!({"dispatch": "assign", "acceptTime": 30, "rate": {}});
            policy["rate"][of] = json!({"count": 1, "seconds": 3_600});
            let (mut ground, server) = assigning(policy).await;
            begin(&server, "other", 100).await;
            server.create(&new_task(QUEUE, &json!({"extra": {"tenure": {"key": "k"}}}))).await.unwrap();
            admit(&server).await;
            let first = given_to(&mut ground).await.expect("a worker has it");
            if closes {
                let mut closing = server.engine.pool.acquire().await.unwrap();
                sessions::end(&mut closing, &server.engine.notifiers, first, SessionEnd::Closed).await.unwrap();
            } else {
                let later = "UPDATE clock SET clock_offset = clock_offset + interval '31 seconds'";
                sqlx::query(later).execute(&mut ground.conn).await.unwrap();
                assert_eq!(accept::pass(&server.engine).await.unwrap().done, 1);
            }
            assert_eq!(ground.count("pending WHERE hold = 2").await, 1);
            admit(&server).await;
            let second = given_to(&mut ground).await.expect("another worker has it");
            assert_ne!(second, first, "{of} {closes}");
            assert_eq!(ground.count("admission_claims").await, 0);
            // With the one that has it the hour has its start.
            server.create(&new_task(QUEUE, &json!({"extra": {"tenure": {"key": "k"}}}))).await.unwrap();
            admit(&server).await;
            assert_eq!(ground.count("pending WHERE hold = 2").await, 1);
            ground.finish([server]).await;
        }
    }
}

/// It was ready, and no worker has claimed it.
#[tokio::test]
async fn a_task_that_ends_before_its_run_is_claimed_leaves_the_token_to_the_next_one_and_not_after_that() {
    let mut ground = Ground::new().await;
    let server = ground.server();
    put(&server, json!({"rate": {"total": {"count": 1, "seconds": 3_600}}})).await;
    let (first, second) = (server.create_one(QUEUE).await, server.create_one(QUEUE).await);
    server.create_one(QUEUE).await;
    admit(&server).await;
    let (engine, ready) = (&server.engine, "pending WHERE hold IS NULL");
    assert_eq!((ground.count(ready).await, ground.count("pending").await), (1, 3));
    change_task::change(&engine.pool, &engine.notifiers, first, Change::Cancel).await.unwrap();
    admit(&server).await;
    assert_eq!((ground.count(ready).await, ground.count("pending").await), (1, 2));
    assert_eq!(server.claim_one(QUEUE).await.task.id, second);
    change_task::change(&engine.pool, &engine.notifiers, second, Change::Cancel).await.unwrap();
    admit(&server).await;
    assert_eq!((ground.count(ready).await, ground.count("pending").await), (0, 1));
    ground.finish([server]).await;
}

/// The ready one has the only token, which it spends when it makes way.
#[tokio::test]
async fn a_more_urgent_run_takes_the_slot_of_a_full_queue_when_the_rate_lets_it_start_and_not_before() {
    let (least, most) = ("pending WHERE hold IS NULL AND priority = 6", "pending WHERE hold IS NULL AND priority < 6");
    let mut ground = Ground::new().await;
    let server = ground.server();
    put(&server, json!({"concurrency": {"total": 1}, "rate": {"total": {"count": 1, "seconds": 3_600}}})).await;
    for priority in ["lowest", "high"] {
        server.create(&new_task(QUEUE, &json!({"priority": priority}))).await.unwrap();
        admit(&server).await;
    }
    assert_eq!((ground.count(least).await, ground.count(most).await), (1, 0));
    sqlx::raw_sql(AN_HOUR_LATER).execute(&mut ground.conn).await.unwrap();
    admit(&server).await;
    assert_eq!((ground.count(least).await, ground.count(most).await), (0, 1));
    ground.finish([server]).await;
}

/// They were ready before there was a rate, and keep their tokens: nothing could start in the place of one.
#[tokio::test]
async fn no_ready_run_makes_way_for_an_urgent_one_of_its_key_while_more_have_tokens_than_the_burst() {
    let (ready, most) = ("pending WHERE hold IS NULL", "pending WHERE hold IS NULL AND priority < 6");
    let fields = |priority: &str, key: &str| json!({"priority": priority, "extra": {"tenure": {"key": key}}});
    let mut ground = Ground::new().await;
    let server = ground.server();
    put(&server, json!({"concurrency": {"perKey": 1}})).await;
    for key in ["a", "b", "c"] {
        server.create(&new_task(QUEUE, &fields("lowest", key))).await.unwrap();
        admit(&server).await;
    }
    let rate = json!({"total": {"count": 1, "seconds": 3_600}});
    put(&server, json!({"concurrency": {"perKey": 1}, "rate": rate})).await;
    server.create(&new_task(QUEUE, &fields("high", "c"))).await.unwrap();
    admit(&server).await;
    assert_eq!((ground.count(ready).await, ground.count(most).await), (3, 0));
    for _ in 0..2 {
        server.claim_one(QUEUE).await;
    }
    admit(&server).await;
    assert_eq!((ground.count(ready).await, ground.count(most).await), (1, 0));
    sqlx::raw_sql(AN_HOUR_LATER).execute(&mut ground.conn).await.unwrap();
    admit(&server).await;
    assert_eq!((ground.count(ready).await, ground.count(most).await), (1, 1));
    ground.finish([server]).await;
}
