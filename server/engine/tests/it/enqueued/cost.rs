//! What a scan reads while old transactions keep dead rows.

use tenure_domain::enqueue::Mark;
use tenure_store::{enqueued, session};

use super::{Shop, enqueue};
use crate::passes::without_autovacuum;
use crate::support::*;

/// More with `TENURE_ENQUEUED_TASKS=100000`.
const TASKS: usize = 6_000;
/// Tasks per transaction, as in `BATCH`.
const BATCH_TASKS: usize = 2_000;
const BATCH: &str = "SELECT tenure_enqueue('proj/worker', '{}') FROM generate_series(1, 2000)";
/// Blocks of the table and its indexes that this session has read.
const BLOCKS: &str = "SELECT (heap_blks_read + heap_blks_hit + idx_blks_read + idx_blks_hit)::bigint
                      FROM pg_statio_user_tables WHERE relname = 'enqueued'";
/// Two index descents and a few pages.
const BLOCKS_MAX: i64 = 20;
const LIMIT: usize = 2_000;

async fn blocks(conn: &mut PgConnection) -> i64 {
    // Otherwise the session reports a second later.
    sqlx::raw_sql("SELECT pg_stat_force_next_flush()").execute(&mut *conn).await.unwrap();
    sqlx::query_scalar(BLOCKS).fetch_one(conn).await.unwrap()
}

async fn scan(conn: &mut PgConnection, mark: &mut Mark) -> Vec<i64> {
    let mut transaction = conn.begin().await.unwrap();
    session::plan_as_hot(&mut transaction).await.unwrap();
    let scan = enqueued::scan(&mut transaction, mark, LIMIT).await.unwrap();
    transaction.commit().await.unwrap();
    *mark = mark.advance(&scan);
    scan.rows.into_iter().map(|row| row.1).collect()
}

#[tokio::test]
async fn scan_stays_flat_while_old_transaction_is_open() {
    let amount = std::env::var("TENURE_ENQUEUED_TASKS").map_or(TASKS, |text| text.parse().unwrap());
    let shop = Shop::open().await;
    without_autovacuum(&mut shop.database.connect().await).await;
    // The snapshot keeps every dead row; the application's transaction has an old id.
    let snapshot = hold_snapshot(&shop.database).await;
    let (mut old, mut conn) = (shop.connect().await, shop.connect().await);
    run_sql(&mut old, "BEGIN").await;
    let late = enqueue(&mut old, &json!({}), &json!({})).await.unwrap();
    let (mut reader, mut mark, mut read) = (shop.database.connect().await, Mark::default(), Vec::new());
    for _ in 0..amount / BATCH_TASKS {
        run_sql(&mut conn, BATCH).await;
        shop.handle().await;
        assert_eq!(scan(&mut reader, &mut mark).await, [0_i64; 0], "all rows are handled");
        let before = blocks(&mut reader).await;
        assert_eq!(scan(&mut reader, &mut mark).await, [0_i64; 0]);
        read.push(blocks(&mut reader).await - before);
    }
    assert_eq!((shop.tasks().await, shop.waiting().await), (amount as i64, 0));
    assert!(read.iter().all(|&blocks| blocks <= BLOCKS_MAX), "{read:?}");
    run_sql(&mut old, "COMMIT").await;
    assert_eq!(scan(&mut reader, &mut mark).await.len(), 1);
    shop.handle().await;
    assert_eq!(shop.queue.status(late).await.id, late);
    drop((snapshot, old, conn, reader));
    shop.finish().await;
}

#[tokio::test]
async fn nothing_is_read_before_first_role_is_allowed() {
    let (database, queue) = start().await;
    queue.engine.facts.refresh().await.unwrap();
    // Any statement would fail.
    run_sql(database.pool(), "ALTER TABLE enqueued RENAME TO away").await;
    for pass in ["enqueued", "refused"] {
        assert_eq!(queue.run_pass(pass).await.unwrap(), tenure_engine::background::PassReport::default());
    }
    run_sql(database.pool(), "ALTER TABLE away RENAME TO enqueued").await;
    finish(database, queue).await;
}
