//! Idle background passes read as little of full tables as of small ones, even while an old
//! snapshot keeps dead rows.

mod fill;
mod log;
mod marks;

use sqlx::Postgres;
use sqlx::pool::PoolConnection;
use tenure_engine::background::registry::PASSES;
use tenure_store::session::{self, Pools};

use fill::{QUEUES, fill, update_again_and_again};

use crate::support::*;

const SIZE: &str = "TENURE_PASSES_TASKS";
/// Default; the suite `passes` uses a million.
const SIZE_DEFAULT: i32 = 20_000;
/// Tasks in the small tables, half of them resolved.
const SMALL: i32 = 4_000;

/// Per table: blocks read with its indexes, and full scans.
pub type Reads = BTreeMap<String, (i64, i64)>;

/// Otherwise a session publishes its reads a second later.
const FLUSH: &str = "SELECT pg_stat_force_next_flush()";

pub async fn reads(conn: &mut PgConnection, queue: &Queue) -> Reads {
    publish(queue).await;
    sqlx::raw_sql(FLUSH).execute(&mut *conn).await.unwrap();
    let rows: Vec<(String, i64, i64)> = sqlx::query_as(
        "SELECT relname::text,
                (heap_blks_read + heap_blks_hit + COALESCE(idx_blks_read + idx_blks_hit, 0)
                 + COALESCE(toast_blks_read + toast_blks_hit + tidx_blks_read + tidx_blks_hit, 0))::bigint,
                s.seq_scan::bigint
         FROM pg_statio_user_tables JOIN pg_stat_user_tables s USING (relid, relname)",
    )
    .fetch_all(conn)
    .await
    .unwrap();
    rows.into_iter().map(|(table, blocks, scans)| (table, (blocks, scans))).collect()
}

async fn publish(queue: &Queue) {
    let mut all = connections(queue).await.into_iter().flatten().collect::<Vec<_>>();
    for conn in &mut all {
        sqlx::raw_sql(FLUSH).execute(&mut **conn).await.unwrap();
    }
    let mut checked = queue.passes.low_water_marks.continuity_check.run_check().await.unwrap();
    checked.run(async |conn| sqlx::raw_sql(FLUSH).execute(conn).await).await.unwrap();
    let mut known = vec![checked.run(async |conn| session::get_backend(conn).await).await.unwrap().pid];
    for conn in &mut all {
        known.push(session::get_backend(&mut **conn).await.unwrap().pid);
    }
    // Reads of its own session would be missed here.
    let unknown: Vec<String> = sqlx::query_scalar(
        "SELECT query FROM pg_stat_activity
         WHERE datname = current_database() AND application_name LIKE 'tenure%' AND pid <> ALL($1)",
    )
    .bind(known)
    .fetch_all(&mut *all[0])
    .await
    .unwrap();
    assert_eq!(unknown, Vec::<String>::new(), "a session that is not known here");
}

pub fn difference(before: &Reads, after: &Reads) -> Reads {
    let mut read = Reads::new();
    for (table, &(blocks, scans)) in after {
        let (blocks_before, scans_before) = before.get(table).copied().unwrap_or_default();
        if blocks > blocks_before {
            read.insert(table.clone(), (blocks - blocks_before, scans - scans_before));
        }
    }
    read
}

/// Closes all but one session of each pool: the first execution of a statement on each reads the
/// ends of indexes.
async fn close_others(queue: &Queue) {
    for mut all in connections(queue).await {
        for conn in all.drain(1.min(all.len())..) {
            conn.close().await.unwrap();
        }
    }
}

/// Acquires all connections, including those just being returned.
async fn connections(queue: &Queue) -> [Vec<PoolConnection<Postgres>>; 3] {
    let Pools { requests, background, lookups } = &queue.pools;
    let mut all = [const { Vec::new() }; 3];
    for (pool, all) in [requests, background, lookups].into_iter().zip(&mut all) {
        while all.len() < pool.size() as usize {
            all.push(pool.acquire().await.unwrap());
        }
    }
    all
}

/// Measures each pass on a server that has run for a while.
async fn read_by_passes(conn: &mut PgConnection, queue: &Queue) -> BTreeMap<&'static str, Reads> {
    for name in QUEUES {
        // The pass `idle_queues` would drop them.
        let _ = queue.engine.low_water_marks.get(queue.key(name).await);
    }
    close_others(queue).await;
    for _ in 0..3 {
        for pass in PASSES {
            pass.run(&queue.passes).await.unwrap();
        }
    }
    let mut all = BTreeMap::new();
    for pass in PASSES {
        // The minimum of enough runs to use each session twice: planning reads the ends of indexes.
        let mut least: Option<Reads> = None;
        let mut runs = 0;
        let mut before = reads(conn, queue).await;
        while runs < 5 || runs < 2 * queue.engine.background_pool.size() + 1 {
            runs += 1;
            pass.run(&queue.passes).await.unwrap();
            let after = reads(conn, queue).await;
            let read = difference(&before, &after);
            before = after;
            if least.as_ref().is_none_or(|least| sum(&read) < sum(least)) {
                least = Some(read);
            }
        }
        all.insert(pass.name, least.unwrap());
    }
    all
}

/// The reads of autovacuum would be counted.
pub async fn without_autovacuum(conn: &mut PgConnection) {
    let tables: Vec<String> =
        sqlx::query_scalar("SELECT relname::text FROM pg_stat_user_tables").fetch_all(&mut *conn).await.unwrap();
    for table in tables {
        let sql = format!("ALTER TABLE {table} SET (autovacuum_enabled = off)");
        run_sql(&mut *conn, &sql).await;
    }
}

/// By default the first five executions are planned for their values, which reads the dead ends of
/// indexes.
pub async fn plan_once(conn: &mut PgConnection) {
    let sql = "DO $$ BEGIN
        EXECUTE format('ALTER DATABASE %I SET plan_cache_mode = force_generic_plan', current_database());
    END $$";
    sqlx::raw_sql(sql).execute(conn).await.unwrap();
}

const BLOCKS_MAX: i64 = 1_500;
/// Allowed beyond twice the reads of small tables: larger indexes have more levels.
const BLOCKS_MORE: i64 = 40;
/// Larger tables must not be scanned in full.
const SCANNED_MAX: i32 = 500;
/// Walks over dead rows on purpose, 1 % of the time.
const TAKES_ITS_TIME: &str = "stranded_runs";

fn sum(reads: &Reads) -> i64 {
    reads.values().map(|(blocks, _)| blocks).sum()
}

fn faults(small: &Reads, full: &Reads, big: &[String]) -> Vec<String> {
    let mut faults = Vec::new();
    if sum(full) > BLOCKS_MAX || sum(full) > 2 * sum(small) + BLOCKS_MORE {
        faults.push(format!("{} blocks instead of {}: {full:?}, not {small:?}", sum(full), sum(small)));
    }
    for (table, _) in full.iter().filter(|(table, (_, scans))| *scans > 0 && big.contains(table)) {
        faults.push(format!("scans the table {table}"));
    }
    faults
}

/// Returns a database, a session with generic plans, and a session that holds an old snapshot.
async fn behind_an_old_snapshot() -> (TestDatabase, PgConnection, PgConnection) {
    let database = TestDatabase::create().await;
    let mut conn = database.connect().await;
    without_autovacuum(&mut conn).await;
    plan_once(&mut conn).await;
    let old = hold_snapshot(&database).await;
    (database, conn, old)
}

#[tokio::test]
async fn a_pass_without_work_reads_equally_little_of_full_tables() {
    let size: i32 = std::env::var(SIZE).map_or(SIZE_DEFAULT, |size| size.parse().unwrap());
    let (database, mut conn, _old) = behind_an_old_snapshot().await;
    let queue = Queue::start(database.options());
    let small = SMALL.min(size / 2);
    fill(&mut conn, 1, small).await;
    update_again_and_again(&mut conn).await;
    for name in QUEUES {
        let key = queue.key(name).await;
        // From now on the queue's low-water marks move.
        assert_eq!(queue.engine.low_water_marks.get(key).epoch, -1);
    }
    sqlx::raw_sql("VACUUM ANALYZE").execute(&mut conn).await.unwrap();
    let of_small = read_by_passes(&mut conn, &queue).await;
    fill(&mut conn, small + 1, 2 * size).await;
    sqlx::raw_sql("VACUUM ANALYZE").execute(&mut conn).await.unwrap();
    let of_full = read_by_passes(&mut conn, &queue).await;
    let big: Vec<String> =
        sqlx::query_scalar("SELECT relname::text FROM pg_class WHERE relkind = 'r' AND reltuples > $1")
            .bind(SCANNED_MAX)
            .fetch_all(&mut conn)
            .await
            .unwrap();
    let mut wrong = BTreeMap::new();
    for (pass, read) in of_full.iter().filter(|(pass, _)| **pass != TAKES_ITS_TIME) {
        println!("{pass:16} {:5} {read:?}", sum(read));
        let faults = faults(&of_small[pass], read, &big);
        if !faults.is_empty() {
            wrong.insert(*pass, faults);
        }
    }
    assert!(wrong.is_empty(), "reads too much: {wrong:#?}");
    finish(database, queue).await;
}
