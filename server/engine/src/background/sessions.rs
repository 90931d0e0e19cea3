//! Ends worker sessions that were not renewed in time by `tenure_now()`, with everything they hold.
//! Also gives back runs committed to a session after its end, and runs that did not fit into the
//! transaction that ended it.
//!
//! Server outages must not expire sessions: each second, the pass stores the real time. If the
//! stored time is older than [`OUTAGE`](tenure_domain::session::OUTAGE), no server could renew
//! sessions, and all are extended as if renewed now.
//!
//! Without sessions, the pass rarely checks for new ones. With sessions, it reads the live ones
//! only when one may have expired ([`Outlook`]).

use std::time::Instant;

use chrono::{DateTime, TimeDelta, Utc};
use sqlx::PgConnection;
use tenure_api::states::SessionEnd;

use super::{PassReport, SLICE};
use crate::engine::Engine;
use crate::ops::sessions::{Attempt, Left, end, give_back_more};
use crate::sessions::{Outlook, Sessions};
use tenure_domain::session::{STRAYS_EXPECTED, STRAYS_LOOKED_FOR, TTL_LEAST};
use tenure_store::cached::Epoch;
use tenure_store::failure::{Class, classify};
use tenure_store::worker_sessions::{self, Expiring, Glance};

pub async fn pass(engine: &Engine) -> Result<PassReport, sqlx::Error> {
    let sessions = &engine.sessions;
    let (since, at) = (sessions.outlook.epoch(), Instant::now());
    let mut conn = engine.background_pool.acquire().await?;
    if !sessions.activity.any() && !look_for_any(sessions, &mut conn).await? {
        return Ok(PassReport::default());
    }
    let Glance { now, ended_recently } = worker_sessions::glance(&mut conn).await?;
    let is_due = sessions.outlook.is_due(now, at);
    if is_due && !look_for_any(sessions, &mut conn).await? {
        return Ok(PassReport::default());
    }
    let clock = Clock { outlook: &sessions.outlook, since };
    let mut report = PassReport::default();
    if !is_due {
        clock.go_on(&mut conn).await?;
        if ended_recently {
            give_back_strays(engine, &mut conn, &clock, STRAYS_EXPECTED, &mut report).await?;
        }
        return Ok(report);
    }
    // Before any session ends.
    clock.tick(&mut conn).await?;
    let ended = end_expired(engine, &mut conn, &clock, (now, at), &mut report).await;
    if ended.as_ref().is_err_and(|error| classify(error) == Class::Unavailable) {
        return ended.map(|()| report);
    }
    let given_back = give_back_strays(engine, &mut conn, &clock, STRAYS_LOOKED_FOR, &mut report).await;
    ended.and(given_back).map(|()| report)
}

async fn look_for_any(sessions: &Sessions, conn: &mut PgConnection) -> Result<bool, sqlx::Error> {
    let any = worker_sessions::any_recent(conn).await?;
    sessions.activity.set(any);
    Ok(any)
}

/// Ends a slice of expired sessions. If none is left, sets the next check to the next possible
/// expiry.
async fn end_expired(
    engine: &Engine,
    conn: &mut PgConnection,
    clock: &Clock<'_>,
    (now, at): (DateTime<Utc>, Instant),
    report: &mut PassReport,
) -> Result<(), sqlx::Error> {
    let listed = worker_sessions::list_expiring(conn, now + TTL_LEAST, SLICE).await?;
    let overdue = listed.partition_point(|session| session.until <= now);
    let mut failed = None;
    for Expiring { epoch, .. } in &listed[..overdue] {
        clock.go_on(conn).await?;
        report.found += 1;
        match end(conn, &engine.notifiers, None, *epoch, SessionEnd::Expired).await {
            Ok(Attempt::Ended(left)) => {
                report.done += 1;
                count(report, left);
            }
            Ok(Attempt::NotLive | Attempt::Held) => report.lost_race += 1,
            Err(error) if classify(&error) == Class::Unavailable => return Err(error),
            Err(error) => failed = Some(error),
        }
    }
    if report.done == overdue && (overdue as i64) < SLICE {
        clock.outlook.note(clock.since, (now, at), listed.get(overdue).map(|session| session.until));
    }
    failed.map_or(Ok(()), Err)
}

/// A failure does not stop the others; the first such error is returned at the end.
async fn give_back_strays(
    engine: &Engine,
    conn: &mut PgConnection,
    clock: &Clock<'_>,
    within: TimeDelta,
    report: &mut PassReport,
) -> Result<(), sqlx::Error> {
    let mut failed = None;
    for (epoch, by) in worker_sessions::list_strays(conn, within).await? {
        clock.go_on(conn).await?;
        let left = match give_back_more(conn, &engine.notifiers, epoch, by).await {
            Ok(left) => left,
            Err(error) if classify(&error) == Class::Unavailable => return Err(error),
            Err(error) => {
                clock.outlook.expect(clock.since);
                failed.get_or_insert(error);
                continue;
            }
        };
        report.found += left.runs;
        report.done += left.runs;
        report.lost_race += usize::from(left.runs == 0);
        count(report, left);
        if left.more || left.runs == 0 {
            // Search at once, however long ago the session ended.
            clock.outlook.expect(clock.since);
        }
    }
    failed.map_or(Ok(()), Err)
}

fn count(report: &mut PassReport, left: Left) {
    report.retried += left.retried;
    report.exhausted += left.runs - left.retried;
}

/// Stores the time of the check, also during many endings.
struct Clock<'a> {
    outlook: &'a Outlook,
    since: Epoch,
}

impl Clock<'_> {
    async fn tick(&self, conn: &mut PgConnection) -> Result<(), sqlx::Error> {
        let at = Instant::now();
        let extended = worker_sessions::tick_clock(conn).await?;
        self.outlook.note_tick(self.since, at);
        if extended > 0 {
            tracing::warn!(sessions = extended, "no server checked sessions for a while; all sessions were extended");
        }
        Ok(())
    }

    async fn go_on(&self, conn: &mut PgConnection) -> Result<(), sqlx::Error> {
        if self.outlook.is_tick_due(Instant::now()) {
            self.tick(conn).await?;
        }
        Ok(())
    }
}

/// Purges a slice of sessions that ended a day ago, and publishes the number of live ones.
pub async fn purge(engine: &Engine) -> Result<PassReport, sqlx::Error> {
    let mut conn = engine.background_pool.acquire().await?;
    let purged = worker_sessions::purge(&mut conn, SLICE).await?;
    let live = if engine.sessions.activity.any() { worker_sessions::count_live(&mut conn).await? } else { 0 };
    metrics::gauge!("tenure_sessions").set(live as f64);
    let done = usize::try_from(purged).unwrap_or(usize::MAX);
    Ok(PassReport { found: done, done, ..PassReport::default() })
}
