//! Reads of the event log during an open transaction.

use tenure_store::events::{Page, read, sequence};

use crate::support::*;

async fn positions(conn: &mut sqlx::PgConnection, after: i64) -> Vec<i64> {
    sequence(conn, Sequenced::default()).await.unwrap();
    match read(conn, after, 100).await.unwrap() {
        Page::Events(events, _) => events.iter().map(|event| event.position).collect(),
        Page::Gone(oldest) => panic!("events up to {oldest} are gone"),
    }
}

#[tokio::test]
async fn open_transaction_neither_stalls_log_nor_loses_events() {
    let (database, queue) = start().await;
    let mut reader = database.connect().await;
    let mut slow = database.connect_hot().await;
    queue.create_one(QUEUE).await;
    let mut open = slow.begin().await.unwrap();
    create_on(&mut open, &queue, &[new_task("proj/slow", &json!({}))]).await;
    let claim = queue.claim_one(QUEUE).await;
    // The open transaction's lower id is no gap.
    assert_eq!(positions(&mut reader, 0).await, [1, 2, 3]);
    queue.report(claim.task.id, claim.run, Report::Completed).await.unwrap();
    assert_eq!(positions(&mut reader, 3).await, [4, 5]);
    assert_eq!(positions(&mut reader, 5).await, Vec::<i64>::new());
    open.commit().await.unwrap();
    assert_eq!(positions(&mut reader, 5).await, [6, 7]);
    queue.claim_one("proj/slow").await;
    assert_eq!(positions(&mut reader, 0).await, [1, 2, 3, 4, 5, 6, 7, 8]);
    // A page may begin and end inside an outbox row.
    assert_eq!(positions(&mut reader, 1).await, [2, 3, 4, 5, 6, 7, 8]);
    finish(database, queue).await;
}

#[tokio::test]
async fn concurrent_readers_assign_each_event_one_position() {
    let (database, queue) = start().await;
    for _ in 0..20 {
        queue.create_one(QUEUE).await;
        let (mut one, mut two) = (database.connect().await, database.connect().await);
        let (first, second) =
            tokio::join!(sequence(&mut one, Sequenced::default()), sequence(&mut two, Sequenced::default()));
        assert_eq!(first.unwrap() + second.unwrap(), 1);
    }
    finish(database, queue).await;
}
