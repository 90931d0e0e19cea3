//! Copies failed runs from the event log, and deletes them after [`KEPT`].

use std::time::Duration;

use super::{PassReport, SLICE};
use crate::engine::Engine;
use crate::events::failures::FailureSink;
use crate::events::log_reader::{self, Read, Sink};
use tenure_store::{failures, log_readers};

pub const KEPT: Duration = Duration::from_secs(14 * 24 * 3_600);

/// Per run: a lagging pass retains events and tasks.
const PARTS_MAX: usize = 50;

/// Reads the sequenced part of the log; the pass `sequence` brings it up to date.
pub async fn pass(engine: &Engine) -> Result<PassReport, sqlx::Error> {
    let mut conn = engine.background_pool.acquire().await?;
    let mut report = PassReport::default();
    for _ in 0..PARTS_MAX {
        match log_reader::read_sequenced(&mut conn, &mut FailureSink).await? {
            Read::Busy => {
                report.lost_race += 1;
                // Busy, or without a row: it is deleted while only older servers run, which would
                // keep all events for it.
                log_readers::add(&mut conn, FailureSink::NAME).await?;
            }
            Read::End => {}
            Read::Rows(rows, _) => {
                report.found += rows;
                report.done += rows;
                if rows as i64 == FailureSink::ROWS_MAX {
                    continue;
                }
            }
        }
        break;
    }
    Ok(report)
}

pub async fn purge(engine: &Engine) -> Result<PassReport, sqlx::Error> {
    let mut conn = engine.background_pool.acquire().await?;
    let purged = failures::purge(&mut conn, KEPT, SLICE).await?;
    let done = usize::try_from(purged).unwrap_or(usize::MAX);
    Ok(PassReport { found: done, done, ..PassReport::default() })
}
