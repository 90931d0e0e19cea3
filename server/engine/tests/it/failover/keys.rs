//! Queue keys that the database has lost or assigned to another queue.

use crate::support::*;

/// As if a promoted standby had not received the queue.
async fn lose_queue(database: &TestDatabase) {
    sqlx::query("DELETE FROM task_queues WHERE name = $1").bind(QUEUE).execute(database.pool()).await.unwrap();
}

#[tokio::test]
async fn task_is_not_created_with_lost_key() {
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
async fn reassigned_key_is_not_shared() {
    let (database, queue) = start().await;
    let lost = queue.key(QUEUE).await;
    lose_queue(&database).await;
    sqlx::query("INSERT INTO task_queues (id, name) OVERRIDING SYSTEM VALUE VALUES ($1, 'other/queue')")
        .bind(lost)
        .execute(database.pool())
        .await
        .unwrap();
    // Both in one batch; the other queue has its right key.
    let (mine, other) = (new_task(QUEUE, &json!({})), new_task("other/queue", &json!({})));
    let (created, made) = tokio::join!(queue.create(&mine), queue.create(&other));
    assert_eq!((created.unwrap().queue.as_str(), made.unwrap().queue.as_str()), (QUEUE, "other/queue"));
    assert_eq!(queue.claim_one("other/queue").await.task.id, other.id);
    assert_eq!(queue.claim_one(QUEUE).await.task.id, mine.id);
    finish(database, queue).await;
}

#[tokio::test]
async fn claim_with_lost_key_takes_nothing_from_new_owner() {
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
async fn claiming_server_detects_lost_key() {
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
