//! Chunks stored concurrently by two servers.

use tenure_domain::task::Granted;
use tenure_engine::ops::create_artifact::RunRef;
use tenure_store::live_logs::{Chunk, append};
use tenure_store::session::plan_as_hot;

use crate::support::*;

const KEPT: i64 = 1 << 20;

fn chunk(of: &Granted) -> Chunk {
    Chunk { task: of.task.id.uuid(), run: of.run.number().cast_signed(), offset: 0, bytes: b"text".to_vec() }
}

/// Neither log has a row to lock in order.
#[tokio::test]
async fn first_chunks_in_different_orders_do_not_deadlock() {
    let (database, queue) = start().await;
    create_some(&queue, QUEUE, 2).await;
    let (older, younger) = (queue.claim_one(QUEUE).await, queue.claim_one(QUEUE).await);
    let (mut first, mut second) = (database.connect().await, database.connect().await);
    let mut one = first.begin().await.unwrap();
    append(&mut one, &[chunk(&older)], KEPT).await.unwrap();
    let mut two = second.begin().await.unwrap();
    // Keeps the chunks in their order of arrival.
    plan_as_hot(&mut two).await.unwrap();
    let both = [chunk(&younger), chunk(&older)];
    let (stored, ()) = tokio::join!(append(&mut two, &both, KEPT), async {
        until_a_session_waits(database.pool()).await;
        append(&mut one, &[chunk(&younger)], KEPT).await.unwrap();
        one.commit().await.unwrap();
    });
    assert_eq!(stored.unwrap().len(), 2);
    two.commit().await.unwrap();
    finish(database, queue).await;
}

/// A worker without a response resends its first chunk, with newer bytes.
#[tokio::test]
async fn extended_first_chunk_is_stored_whole() {
    let (database, queue) = start().await;
    queue.create_one(QUEUE).await;
    let claim = queue.claim_one(QUEUE).await;
    let mut other = database.connect().await;
    let mut storing = other.begin().await.unwrap();
    append(&mut storing, &[chunk(&claim)], KEPT).await.unwrap();
    let of = RunRef { task: claim.task.id, run: claim.run };
    let (appended, ()) = tokio::join!(queue.engine.live_logs.append(of, 0, b"text and more".to_vec()), async {
        until_a_session_waits(database.pool()).await;
        storing.commit().await.unwrap();
    });
    assert_eq!(appended.unwrap().next, 13);
    let stored = "SELECT sum(octet_length(bytes))::bigint FROM live_log_chunks";
    assert_eq!(number(database.pool(), stored).await, 13, "nothing is missing");
    let uncounted = "SELECT (SELECT sum(octet_length(bytes) + 100) FROM live_log_chunks)::bigint - kept FROM live_logs";
    assert_eq!(number(database.pool(), uncounted).await, 0);
    finish(database, queue).await;
}
