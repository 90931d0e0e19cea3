//! Sessions and claims of removed workers that the removal itself did not end: they appeared while it was looking, another transaction
//! held them, or its server died half-way. Their runs end as worker-shutdown and the next ones are pending while retries
//! are left.
//!
//! The wait list of each server is notified of removals at other servers as soon as they are read here, so that no request
//! waits in the name of a removed worker. Until then, a run may still be claimed in that name. If the worker was
//! registered, that claim is ended too; otherwise it counts as the claim of a worker that came back.

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

/// A look that took longer confirms nothing.
const CONFIRMED_WITHIN: Duration = Duration::from_secs(5);

/// After so long no more sessions are ended in one pass: each may wait for locks, and the claims must have their turn.
const SESSIONS_MAX: Duration = Duration::from_secs(10);

/// Ends a slice of the sessions, and of the claims, of workers that are gone.
pub async fn pass(engine: &Engine) -> Result<PassReport, sqlx::Error> {
    // While anything may be claimed, more often than the facts are refreshed otherwise.
    if let Err(error) = engine.facts.look().await
        && engine.facts.removals.find_confirmed(CONFIRMED_WITHIN).is_none()
    {
        // Another fact that cannot be read does not matter here.
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

/// With all that they hold, before their claims are looked for one by one. If one cannot be ended, the others and the claims do not wait
/// for it: the error comes with the report.
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
        match end_whole(conn, &engine.notifiers, epoch, SessionEnd::WorkerRemoved).await {
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
