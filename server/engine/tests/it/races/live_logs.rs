//! Chunks of several logs, stored by two servers at once.

use sqlx::Connection;
use tenure_domain::task::Granted;
use tenure_engine::testing::{QUEUE, Queue};
use tenure_store::live_logs::{Chunk, append};
use tenure_store::session::plan_as_hot;
use tenure_store::testing::TestDatabase;

use crate::support::until_a_session_waits;

/// More than is stored here.
const KEPT: i64 = 1 << 20;

fn chunk(of: &Granted) -> Chunk {
    Chunk { task: of.task.id.uuid(), run: of.run.number().cast_signed(), offset: 0, bytes: b"text".to_vec() }
}

/// Neither log has a row yet that could be locked in order.
#[tokio::test]
async fn first_chunks_that_come_in_different_orders_deadlock_with_nothing() {
    let database = TestDatabase::create().await;
    let queue = Queue::start(database.options());
    for _ in 0..2 {
        queue.create_one(QUEUE).await;
    }
    let (older, younger) = (queue.claim_one(QUEUE).await, queue.claim_one(QUEUE).await);
    let (mut first, mut second) = (database.connect().await, database.connect().await);
    let mut one = first.begin().await.unwrap();
    append(&mut one, &[chunk(&older)], KEPT).await.unwrap();
    let mut two = second.begin().await.unwrap();
    // So that the chunks are read as they come.
    plan_as_hot(&mut two).await.unwrap();
    let both = [chunk(&younger), chunk(&older)];
    let (stored, ()) = tokio::join!(append(&mut two, &both, KEPT), async {
        until_a_session_waits(database.pool()).await;
        append(&mut one, &[chunk(&younger)], KEPT).await.unwrap();
        one.commit().await.unwrap();
    });
    assert_eq!(stored.unwrap().len(), 2);
    two.commit().await.unwrap();
    drop((first, second));
    queue.stop().await;
    database.finish().await;
}
