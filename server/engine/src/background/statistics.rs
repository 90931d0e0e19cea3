//! Stores this server's numbers of queues over time, and folds old rows into longer steps.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use sqlx::{Connection, PgConnection};
use tenure_domain::statistics::{Numbers, Step};
use tenure_store::session::avoid_scans;
use tenure_store::statistics::{self as store, Row};

use super::PassReport;
use crate::engine::Engine;

/// Rows per transaction.
const ROWS_MAX: i64 = 1_000;

pub async fn write_down(engine: &Engine) -> Result<PassReport, sqlx::Error> {
    let done = engine.notifiers.statistics().write_down(&engine.background_pool).await?;
    Ok(PassReport { found: done, done, ..PassReport::default() })
}

/// Folds a slice of each step. Any number of servers may run it: a row is deleted in the transaction
/// that adds it to another one.
pub async fn fold(engine: &Engine) -> Result<PassReport, sqlx::Error> {
    let mut conn = engine.background_pool.acquire().await?;
    let now = tenure_store::clock::get_now(&mut conn).await?;
    let mut done = 0;
    for step in Step::ALL {
        done += fold_step(&mut conn, step, now).await?;
    }
    Ok(PassReport { found: done, done, ..PassReport::default() })
}

async fn fold_step(conn: &mut PgConnection, step: Step, now: DateTime<Utc>) -> Result<usize, sqlx::Error> {
    let mut transaction = conn.begin().await?;
    avoid_scans(&mut transaction).await?;
    let old = store::take(&mut transaction, step, step.folded_before(now), ROWS_MAX).await?;
    if let Some(next) = step.next()
        && !old.is_empty()
    {
        store::add(&mut transaction, next, &folded(&old, next)).await?;
    }
    transaction.commit().await?;
    Ok(old.len())
}

fn folded(old: &[Row], next: Step) -> Vec<Row> {
    let mut sums: BTreeMap<(i32, DateTime<Utc>), Numbers> = BTreeMap::new();
    for row in old {
        sums.entry((row.queue, next.floor(row.minute))).or_default().add(&row.numbers);
    }
    sums.into_iter().map(|((queue, minute), numbers)| Row { queue, minute, numbers }).collect()
}
