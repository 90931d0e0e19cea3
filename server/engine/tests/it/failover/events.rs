//! Truncation of the event log: positions are reassigned.

use tenure_domain::event_filter::Filter;
use tenure_engine::events::page::{self, Page};
use tenure_engine::events::stream::{Step, Stream};
use tenure_engine::events::{Ahead, Start};
use tenure_store::continuity::Break;
use tokio::time::Instant;

use crate::support::*;

async fn stream(queue: &Queue) -> (Stream, i64) {
    let (pool, listener) = (queue.engine.pool.clone(), queue.engine.tail.listen().unwrap());
    let stream = Stream::begin(pool, &queue.engine.sequencer, listener, Start::Latest, Filter::default())
        .await
        .unwrap()
        .unwrap();
    let after = stream.after();
    (stream, after)
}

async fn ends(mut stream: Stream) -> bool {
    let until = Instant::now() + Duration::from_secs(10);
    while Instant::now() < until {
        if matches!(stream.next(until).await.unwrap(), Step::Ended) {
            return true;
        }
    }
    false
}

#[tokio::test]
async fn page_beyond_newest_position_is_refused() {
    let (database, queue) = start().await;
    queue.create_one(QUEUE).await;
    let read = async |after| {
        page::read(&queue.engine.pool, &queue.engine.sequencer, Start::After(after), &Filter::default(), 100)
            .await
            .unwrap()
    };
    let Page::Events(_, newest) = read(0).await else { panic!("events") };
    assert!(matches!(read(newest).await, Page::Events(events, _) if events.is_empty()));
    let position = newest + 1;
    assert!(matches!(read(position).await, Page::Ahead(ahead) if ahead == Ahead { position, newest }));
    finish(database, queue).await;
}

#[tokio::test]
async fn stream_ends_when_log_may_be_truncated() {
    let (database, queue) = start().await;
    queue.create_one(QUEUE).await;
    let (open, _) = stream(&queue).await;
    queue.engine.continuity.broken(Break::SessionLost);
    assert!(ends(open).await);
    let (after, _) = stream(&queue).await;
    assert!(tokio::time::timeout(Duration::from_millis(300), ends(after)).await.is_err(), "a new stream goes on");
    finish(database, queue).await;
}

#[tokio::test]
async fn stream_ends_when_log_is_shorter_than_its_position() {
    let (database, queue) = start().await;
    create_some(&queue, QUEUE, 3).await;
    let (open, _) = stream(&queue).await;
    // Until the server has cached some.
    tokio::time::sleep(Duration::from_millis(500)).await;
    let last = "WITH lost AS (
            DELETE FROM outbox_order WHERE first = (SELECT max(first) FROM outbox_order) RETURNING outbox_id
        ) DELETE FROM outbox x USING lost WHERE x.id = lost.outbox_id RETURNING x.seqs[1]";
    let seq: i64 = sqlx::query_scalar(last).fetch_one(database.pool()).await.unwrap();
    assert!(ends(open).await);
    // Inserted again, as by another transaction.
    let again = "INSERT INTO outbox_new (at, events, kinds, seqs, runs, retries_left)
        VALUES (now(), 2, '{1}', ARRAY[$1::bigint], '{0}', '{5}')";
    sqlx::query(again).bind(seq).execute(database.pool()).await.unwrap();
    finish(database, queue).await;
}
