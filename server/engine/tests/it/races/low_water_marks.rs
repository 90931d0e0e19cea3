//! Low-water marks never hide a claimable run.

use crate::support::*;

async fn advance(queue: &Queue) {
    // The first run may only note open transactions.
    for _ in 0..2 {
        queue.run_pass("low_water_marks").await.unwrap();
    }
}

#[tokio::test]
async fn run_requeued_below_low_water_mark_is_claimed_next() {
    let (database, queue) = start().await;
    let key = queue.key(QUEUE).await;
    let task = queue.create_one(QUEUE).await;
    let later = queue.create_one(QUEUE).await;
    let answer = queue.claim_work(QUEUE, "worker", 1, Duration::from_secs(5)).await.unwrap();
    advance(&queue).await;
    let mark = queue.engine.low_water_marks.get(key).marks[6];
    assert_eq!(mark, number(database.pool(), "SELECT min(ord) - 1 FROM pending").await);
    assert!(
        mark >= number(database.pool(), "SELECT ord FROM claims").await,
        "the low-water mark has passed the claimed run"
    );
    drop(answer);
    eventually("the claim is requeued", async || number(database.pool(), "SELECT count(*) FROM pending").await == 2)
        .await;
    assert_eq!(queue.claim_one(QUEUE).await.task.id, task);
    advance(&queue).await;
    assert_eq!(queue.claim_one(QUEUE).await.task.id, later);
    finish(database, queue).await;
}

#[tokio::test]
async fn low_water_mark_stops_at_uncommitted_run() {
    let (database, queue) = start().await;
    let mut slow = database.connect_hot().await;
    let task = new_task(QUEUE, &json!({}));
    let mut open = slow.begin().await.unwrap();
    create_on(&mut open, &queue, std::slice::from_ref(&task)).await;
    for _ in 0..3 {
        queue.create_one(QUEUE).await;
        queue.claim_one(QUEUE).await;
        advance(&queue).await;
    }
    open.commit().await.unwrap();
    assert_eq!(queue.claim_one(QUEUE).await.task.id, task.id);
    finish(database, queue).await;
}

#[tokio::test]
async fn urgent_task_is_claimed_first_after_marks_moved() {
    let (database, queue) = start().await;
    let key = queue.key(QUEUE).await;
    create_some(&queue, QUEUE, 2).await;
    queue.claim_one(QUEUE).await;
    advance(&queue).await;
    assert!(
        queue.engine.low_water_marks.get(key).marks[0] > 0,
        "the low-water mark of an empty priority has moved too"
    );
    let urgent = new_task(QUEUE, &json!({"priority": "highest"}));
    queue.create(&urgent).await.unwrap();
    assert_eq!(queue.claim_one(QUEUE).await.task.id, urgent.id);
    finish(database, queue).await;
}
