//! Sessions of workers. A session has expired when it was not renewed in time by `tenure_now()`; it ends with all that it holds. What is
//! committed in the name of a session after its end is found here and given back, and so is what was too much for one transaction.
//!
//! An absence of ours is no absence of theirs: while sessions are looked at, the real time is written each second. If it is older
//! than [`OUTAGE`](tenure_domain::session::OUTAGE), no server could renew any, and all of them go on as if they were renewed now.
//!
//! While there are no sessions, the pass does nothing but look whether there are some, and seldom.

use std::time::Instant;

use sqlx::PgConnection;
use tenure_api::states::SessionEnd;

use super::{PassReport, SLICE};
use crate::engine::Engine;
use crate::ops::sessions::{Attempt, Left, end, give_back_more};
use tenure_domain::session::CLOCK_EVERY;
use tenure_store::failure::{Class, classify};
use tenure_store::worker_sessions;

/// Ends a slice of the sessions that have expired, and gives back what sessions hold that have ended.
pub async fn pass(engine: &Engine) -> Result<PassReport, sqlx::Error> {
    let mut conn = engine.pool.acquire().await?;
    let any = worker_sessions::any_recent(&mut conn).await?;
    engine.sessions.activity.set(any);
    if !any {
        return Ok(PassReport::default());
    }
    let mut clock = Clock::tick(&mut conn).await?;
    let (mut report, mut failed) = (PassReport::default(), None);
    for epoch in worker_sessions::list_overdue(&mut conn, SLICE).await? {
        clock.go_on(&mut conn).await?;
        report.found += 1;
        match end(&mut conn, &engine.notifiers, epoch, SessionEnd::Expired).await {
            Ok(Attempt::Ended(left)) => {
                report.done += 1;
                count(&mut report, left);
            }
            Ok(Attempt::NotLive | Attempt::Held) => report.lost_race += 1,
            Err(error) if classify(&error) == Class::Unavailable => return Err(error),
            // The others do not wait until this one can be ended.
            Err(error) => failed = Some(error),
        }
    }
    for (epoch, by) in worker_sessions::list_strays(&mut conn).await? {
        clock.go_on(&mut conn).await?;
        let left = give_back_more(&mut conn, &engine.notifiers, epoch, by).await?;
        report.found += left.runs;
        report.done += left.runs;
        report.lost_race += usize::from(left.runs == 0);
        count(&mut report, left);
    }
    failed.map_or(Ok(report), Err)
}

fn count(report: &mut PassReport, left: Left) {
    report.retried += left.retried;
    report.exhausted += left.runs - left.retried;
}

/// The time at which sessions are looked at. It is written while many of them are ended too, which takes long.
struct Clock(Instant);

impl Clock {
    async fn tick(conn: &mut PgConnection) -> Result<Self, sqlx::Error> {
        let extended = worker_sessions::tick_clock(conn).await?;
        if extended > 0 {
            tracing::warn!(
                sessions = extended,
                "no server has looked at sessions for a while: all of them are extended"
            );
        }
        Ok(Self(Instant::now()))
    }

    async fn go_on(&mut self, conn: &mut PgConnection) -> Result<(), sqlx::Error> {
        if self.0.elapsed() >= CLOCK_EVERY.to_std().unwrap_or_default() {
            *self = Self::tick(conn).await?;
        }
        Ok(())
    }
}

/// Purges a slice of the sessions that ended a day ago, and counts those that are live, for the metric.
pub async fn purge(engine: &Engine) -> Result<PassReport, sqlx::Error> {
    let mut conn = engine.pool.acquire().await?;
    let purged = worker_sessions::purge(&mut conn, SLICE).await?;
    let live = if engine.sessions.activity.any() { worker_sessions::count_live(&mut conn).await? } else { 0 };
    metrics::gauge!("tenure_sessions").set(live as f64);
    let done = usize::try_from(purged).unwrap_or(usize::MAX);
    Ok(PassReport { found: done, done, ..PassReport::default() })
}
