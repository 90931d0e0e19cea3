//! Races, made deterministic by locks that the test holds.

use std::time::Duration;

use tenure_server::testing::queue::QUEUE;
use tenure_server::testing::{Queue, TestDatabase};

#[tokio::test]
async fn a_request_without_patience_is_tried_once() {
    let database = TestDatabase::create().await;
    let queue = Queue::start(database.options());
    let task = queue.create_one(QUEUE).await;
    let answer = queue.claim_work(QUEUE, "worker", 1, Duration::ZERO).await.unwrap();
    assert_eq!(answer.claims.iter().map(|claim| claim.task.id).collect::<Vec<_>>(), [task]);
    answer.delivery.delivered();
    let empty = queue.claim_work(QUEUE, "worker", 1, Duration::ZERO).await.unwrap();
    assert!(empty.claims.is_empty());
    drop(empty);
    queue.stop().await;
    database.finish().await;
}
