//! Reads of a purged, unvacuumed log.

use tenure_engine::background;
use tenure_store::events::{self, Stretch};

use super::{behind_an_old_snapshot, reads};
use crate::support::*;

/// Purged rows of one event each.
const PURGED: i64 = 50_000;
const NEWEST: i64 = 50_300;
/// Maximum blocks per access. The purged rows take more than 300.
const BLOCKS_MAX: i64 = 100;
const RETENTION: Duration = Duration::from_secs(3600);

const LOG: &str = "
    INSERT INTO outbox_new (at, events, kinds, seqs, runs, retries_left)
        SELECT now(), 1, '{3}', ARRAY[n::bigint], '{0}', '{5}' FROM generate_series(1, 50300) n";
const PURGE: &str = "
    UPDATE log_readers SET position = 50300;
    DELETE FROM outbox_order WHERE first <= 50000;
    DELETE FROM outbox WHERE id NOT IN (SELECT outbox_id FROM outbox_order)";

async fn blocks(conn: &mut PgConnection, queue: &Queue) -> i64 {
    reads(conn, queue).await.get("outbox_order").map_or(0, |(blocks, _)| *blocks)
}

#[tokio::test]
async fn purged_log_rows_are_not_rescanned() {
    let (database, mut conn, _old) = behind_an_old_snapshot().await;
    sqlx::raw_sql(LOG).execute(&mut conn).await.unwrap();
    events::sequence(&mut conn, Sequenced::default()).await.unwrap();
    sqlx::raw_sql(PURGE).execute(&mut conn).await.unwrap();
    let queue = Queue::start(database.options());
    // The first read finds the beginning of the log.
    background::events::purge(&queue.engine).await.unwrap();
    let begins = queue.engine.sequencer.begins();
    assert_eq!(begins, PURGED + 1);
    let mut seen = vec![blocks(&mut conn, &queue).await];
    background::events::purge(&queue.engine).await.unwrap();
    seen.push(blocks(&mut conn, &queue).await);
    let ends = events::get_ends(&mut conn, Sequenced::default(), begins).await.unwrap();
    assert_eq!((ends.oldest, ends.newest), (PURGED, NEWEST));
    seen.push(blocks(&mut conn, &queue).await);
    let read = events::read_on(&mut conn, NEWEST - 10, 10).await.unwrap();
    assert!(matches!(read, Stretch::Events(_, NEWEST)), "{read:?}");
    seen.push(blocks(&mut conn, &queue).await);
    let read: Vec<i64> = seen.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(read.iter().all(|blocks| *blocks <= BLOCKS_MAX), "the pass, the ends and a page have read {read:?} blocks");
    // An old reader learns where the log begins.
    let gone = events::read_on(&mut conn, PURGED - 10, 10).await.unwrap();
    assert!(matches!(gone, Stretch::Gone(PURGED)), "{gone:?}");
    sqlx::raw_sql("UPDATE outbox SET at = at - interval '2 hours'").execute(&mut conn).await.unwrap();
    let purged = events::purge(&mut conn, begins, RETENTION, 200).await.unwrap();
    assert_eq!((purged.rows, purged.begins), (200, PURGED + 201));
    finish(database, queue).await;
}
