//! Measures the database for the metrics: its size, the event log, the last backup, and how long a
//! request waits for a connection.

use std::time::Instant;

use super::PassReport;
use crate::engine::Engine;
use tenure_store::{cluster, events, log_readers, settings};

/// Publishes the progress of the readers of the event log, the age of the log, and the time since
/// the last backup.
pub async fn log(engine: &Engine) -> Result<PassReport, sqlx::Error> {
    let mut conn = engine.background_pool.acquire().await?;
    let lags = log_readers::list_lags(&mut conn).await?;
    let found = lags.len();
    for lag in lags {
        metrics::gauge!("tenure_log_reader_lag_events", "reader" => lag.reader).set(lag.events as f64);
    }
    let oldest = events::get_oldest_age(&mut conn, engine.sequencer.begins()).await?;
    metrics::gauge!("tenure_events_oldest_seconds").set(oldest);
    // Without a backup, the last one is infinitely long ago.
    let backup = settings::find_backup_age(&mut *conn).await?.unwrap_or(f64::INFINITY);
    metrics::gauge!("tenure_backup_seconds").set(backup);
    Ok(PassReport { found, done: found, ..PassReport::default() })
}

pub async fn size(engine: &Engine) -> Result<PassReport, sqlx::Error> {
    let bytes = cluster::get_size(&mut *engine.background_pool.acquire().await?).await?;
    metrics::gauge!("tenure_database_bytes").set(bytes as f64);
    Ok(PassReport { found: 1, done: 1, ..PassReport::default() })
}

/// Takes a connection of the pool of requests, and returns it at once. A wait without success is
/// recorded, too.
pub async fn pool(engine: &Engine) -> Result<PassReport, sqlx::Error> {
    let began = Instant::now();
    let taken = engine.pool.acquire().await;
    metrics::histogram!("tenure_pool_wait_seconds").record(began.elapsed());
    Ok(PassReport { found: 1, done: usize::from(taken.is_ok()), ..PassReport::default() })
}
