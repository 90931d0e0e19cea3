//! Ends sessions and claims of removed workers that the removal itself left: they appeared
//! meanwhile, were locked, or the server died half-way. Runs end as worker-shutdown and are retried
//! while retries are left.
//!
//! As soon as this pass reads a removal by another server, the wait list cancels requests of that
//! worker. Until then it may claim a run. If the worker was registered, the claim is ended too;
//! otherwise the worker counts as returned.

use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
use sqlx::PgConnection;
use tenure_api::states::SessionEnd;

use super::claims::end_all;
use super::{PassReport, SLICE};
use crate::engine::Engine;
use crate::ops::sessions::{Attempt, end_whole};
use tenure_domain::policy::ending::Ending;
use tenure_store::failure::{Class, classify};
use tenure_store::{clock, worker_removals};

/// A slower refresh confirms nothing.
const CONFIRMED_WITHIN: Duration = Duration::from_secs(5);

/// Each session may wait for locks, and the claims must be processed too.
const SESSIONS_MAX: Duration = Duration::from_secs(10);

pub async fn pass(engine: &Engine) -> Result<PassReport, sqlx::Error> {
    // Refreshes the facts more often than their pass, while anything may be claimed.
    if let Err(error) = engine.facts.refresh().await
        && engine.facts.removals.find_confirmed(CONFIRMED_WITHIN).is_none()
    {
        // Errors of other facts do not matter here.
        return Err(error);
    }
    if engine.facts.removals.get().is_empty() {
        return Ok(PassReport::default());
    }
    let mut conn = engine.background_pool.acquire().await?;
    let due = clock::get_now(&mut conn).await?;
    worker_removals::bring_forward(&mut conn, due).await?;
    let (mut report, failed) = end_sessions(engine, &mut conn, due).await?;
    let found = worker_removals::list_claims(&mut conn, None, due, SLICE).await?;
    if !found.is_empty() {
        report.join(end_all(engine, &mut conn, &found, Ending::WorkerRemoved).await?);
    }
    if report.found == 0 {
        worker_removals::settle(&mut conn, due).await?;
    }
    failed.map_or(Ok(report), Err)
}

/// Ends sessions before their claims are listed one by one. A failure does not stop the rest; its
/// error is returned beside the report.
async fn end_sessions(
    engine: &Engine,
    conn: &mut PgConnection,
    due: DateTime<Utc>,
) -> Result<(PassReport, Option<sqlx::Error>), sqlx::Error> {
    let (mut report, mut failed, began) = (PassReport::default(), None, Instant::now());
    for epoch in worker_removals::list_sessions(conn, due, SLICE).await? {
        report.found += 1;
        if began.elapsed() > SESSIONS_MAX {
            continue;
        }
        match end_whole(conn, &engine.notifiers, None, epoch, SessionEnd::WorkerRemoved).await {
            Ok(Attempt::Ended(left)) => {
                report.done += 1;
                report.retried += left.retried;
                report.exhausted += left.runs - left.retried;
            }
            Ok(Attempt::NotLive | Attempt::Held) => report.lost_race += 1,
            Err(error) if classify(&error) == Class::Unavailable => return Err(error),
            Err(error) => failed = Some(error),
        }
    }
    Ok((report, failed))
}
