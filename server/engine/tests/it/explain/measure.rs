//! Rows and pages that statements read from full tables.

use std::collections::BTreeSet;

use super::{BIG, FULL, held, ids, run_cold};
use crate::support::*;

/// Enough executions for a session to switch to a generic plan.
const TIMES: usize = 7;
/// A slice of 200, several times. Big tables have at least ten thousand rows.
const ROWS_MAX: i64 = 3_000;

#[derive(Default)]
pub struct Measured {
    pub faults: BTreeSet<String>,
    pub pages: BTreeMap<&'static str, i64>,
}

/// Pages read so far by this session, and by others that have reported.
pub async fn pages(conn: &mut PgConnection, tables: &[&str]) -> i64 {
    let tables: Vec<String> = tables.iter().map(|&table| table.to_owned()).collect();
    // Otherwise a session reports a second later.
    sqlx::raw_sql("SELECT pg_stat_force_next_flush()").execute(&mut *conn).await.unwrap();
    let sum =
        "SELECT COALESCE(sum(heap_blks_read + heap_blks_hit + COALESCE(idx_blks_read + idx_blks_hit, 0)), 0)::bigint
               FROM pg_statio_user_tables WHERE relname = ANY($1)";
    sqlx::query_scalar(sum).bind(tables).fetch_one(conn).await.unwrap()
}

/// Measures statements in transactions that are rolled back.
pub async fn measure(
    database: &TestDatabase,
    filler: &mut PgConnection,
    statements: &[&'static str],
    statistics: &str,
) -> Measured {
    let pool = database.connector().pool();
    let (open, waiting) = (ids(filler, "claims", 200).await, ids(filler, "pending WHERE hold IS NULL", 5).await);
    let mut measured = Measured::default();
    let mut conn = pool.acquire().await.unwrap();
    for &statement in statements {
        let (mut took, mut least) = (Duration::MAX, i64::MAX);
        for _ in 0..TIMES {
            let pages_before = pages(&mut conn, &BIG).await;
            let mut transaction = conn.begin().await.unwrap();
            let before = reads(&mut transaction, &BIG).await;
            let started = Instant::now();
            run(&mut transaction, statement, &open, &waiting).await;
            took = took.min(started.elapsed());
            let mut read = reads(&mut transaction, &BIG).await;
            read.retain(|table, (scans, rows)| {
                let (scans_before, rows_before) = before.get(table).copied().unwrap_or_default();
                let most = if statement == "list_of_claimed" && table == "claims" { i64::from(FULL) } else { ROWS_MAX };
                *scans > scans_before || *rows > rows_before + most
            });
            if !read.is_empty() {
                measured.faults.insert(format!("{statement}, {statistics} statistics: {read:?}"));
            }
            transaction.rollback().await.unwrap();
            least = least.min(pages(&mut conn, &BIG).await - pages_before);
        }
        println!("{statement:24} {took:?}, {least} pages, {statistics} statistics");
        measured.pages.insert(statement, least);
    }
    drop(conn);
    pool.close().await;
    measured
}

async fn run(conn: &mut PgConnection, statement: &str, open: &[Uuid], waiting: &[Uuid]) {
    if held::STATEMENTS.contains(&statement) {
        held::run(conn, statement).await;
    } else {
        run_cold(conn, statement, open, waiting).await;
    }
}
