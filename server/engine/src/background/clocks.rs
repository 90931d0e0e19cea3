//! Compares this machine's clock with the database's.
//!
//! Claims, deadlines and task dates use the database's clock. Task credentials and signed URLs are
//! dated by the database and checked with the skew added. Only timestamps of signed requests are
//! compared with this machine's clock: a wrong clock refuses clients with correct ones.

use std::time::{Duration, Instant};

use chrono::TimeDelta;

use super::PassReport;
use crate::clock;
use crate::engine::Engine;
use tenure_store::clock as database;

/// Operators are warned of a larger skew: one of the clocks is wrong.
pub const SKEW_MAX: TimeDelta = TimeDelta::seconds(5);
/// A slower measurement is too imprecise.
const MEASURED_WITHIN: Duration = Duration::from_secs(1);

/// Publishes the skew, and warns if it is large.
pub async fn pass(engine: &Engine) -> Result<PassReport, sqlx::Error> {
    let mut conn = engine.background_pool.acquire().await?;
    let (started, sent) = (Instant::now(), clock::real_now());
    let there = database::get_real_now(&mut conn).await?;
    let took = started.elapsed();
    if took > MEASURED_WITHIN {
        return Ok(PassReport { found: 1, ..PassReport::default() });
    }
    // The database read its clock between request and response.
    let ahead = there - sent - TimeDelta::from_std(took / 2).unwrap_or_default();
    engine.skew.set(ahead);
    let seconds = ahead.as_seconds_f64();
    metrics::gauge!("tenure_clock_skew_seconds").set(seconds);
    if ahead.abs() > SKEW_MAX {
        tracing::warn!(
            database.ahead.seconds = seconds,
            "the clocks of this machine and of the database differ; if they differ too much, clients' requests are \
             refused: synchronise both with NTP"
        );
    }
    Ok(PassReport { found: 1, done: 1, ..PassReport::default() })
}
