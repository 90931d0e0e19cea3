//! Keys of queues that the database has lost, or has given to another queue.

use crate::support::*;

/// What a server sees that goes on after a failover to a standby that had not received the queue.
async fn lose_queue(database: &TestDatabase) {
    sqlx::query("DELETE FROM task_queues WHERE name = $1").bind(QUEUE).execute(database.pool()).await.unwrap();
}

#[tokio::test]
async fn a_task_is_not_created_into_a_key_that_was_lost() {
    let (database, queue) = start().await;
    let lost = queue.key(QUEUE).await;
    lose_queue(&database).await;
    let task = queue.create_one(QUEUE).await;
    let key = queue.key(QUEUE).await;
    assert_ne!(key, lost);
    assert_eq!(number(database.pool(), "SELECT queue::bigint FROM pending").await, i64::from(key));
    assert_eq!(queue.claim_one(QUEUE).await.task.id, task);
    finish(database, queue).await;
}

#[tokio::test]
async fn a_key_that_belongs_to_another_queue_by_now_is_not_shared() {
    let (database, queue) = start().await;
    let lost = queue.key(QUEUE).await;
    lose_queue(&database).await;
    sqlx::query("INSERT INTO task_queues (id, name) OVERRIDING SYSTEM VALUE VALUES ($1, 'other/queue')")
        .bind(lost)
        .execute(database.pool())
        .await
        .unwrap();
    // Both in one batch, and the other queue is known by its right key.
    let (mine, other) = (new_task(QUEUE, &json!({})), new_task("other/queue", &json!({})));
    let (created, made) = tokio::join!(queue.create(&mine), queue.create(&other));
    assert_eq!((created.unwrap().queue.as_str(), made.unwrap().queue.as_str()), (QUEUE, "other/queue"));
    assert_eq!(queue.claim_one("other/queue").await.task.id, other.id);
    assert_eq!(queue.claim_one(QUEUE).await.task.id, mine.id);
    finish(database, queue).await;
}

#[tokio::test]
async fn a_claim_with_a_lost_key_takes_nothing_from_the_queue_that_has_it_now() {
    let (database, queue) = start().await;
    queue.key(QUEUE).await;
    sqlx::query("UPDATE task_queues SET name = 'other/queue'").execute(database.pool()).await.unwrap();
    let other = queue.create_one("other/queue").await;
    let claimed = queue.claim_work(QUEUE, "worker", 1, Duration::ZERO).await.unwrap();
    assert!(claimed.claims.is_empty());
    drop(claimed);
    assert_eq!(queue.claim_one("other/queue").await.task.id, other);
    finish(database, queue).await;
}

#[tokio::test]
async fn a_server_that_only_claims_finds_out_that_its_key_was_lost() {
    let database = TestDatabase::create().await;
    let (here, there) = (Queue::start(database.options()), Queue::start(database.options()));
    here.key(QUEUE).await;
    lose_queue(&database).await;
    let task = there.create_one(QUEUE).await;
    assert!(here.claim_work(QUEUE, "worker", 1, Duration::ZERO).await.unwrap().claims.is_empty());
    here.run_pass("stranded_runs").await.unwrap();
    assert_eq!(here.claim_one(QUEUE).await.task.id, task);
    there.stop().await;
    finish(database, here).await;
}
