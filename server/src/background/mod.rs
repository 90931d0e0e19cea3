//! Passes: what has to happen without anybody asking. Each is its own transaction script in a file of its own; any
//! number of servers may run each.

pub mod artifacts;
pub mod blobs;
pub mod claims;
pub mod clocks;
pub mod counters;
pub mod deadlines;
pub mod dependencies;
pub mod driver;
pub mod elsewhere;
pub mod events;
pub mod expiry;
pub mod groups;
pub mod idempotency;
pub mod marks;
pub mod messages;
pub mod purge_cache;
pub mod registrations;
pub mod removals;
pub mod tail;
pub mod watched;
pub mod workers;

use std::time::{Duration, Instant};

use sqlx::PgPool;

use crate::blobs::Blobs;
use crate::clock::ClockSkew;
use crate::store::{deadlines as deadlines_store, messages as messages_store};
use crate::wakeup::Bells;
use crate::workers::Workers;

/// What every pass works with.
#[derive(Clone)]
pub struct Context {
    /// The database.
    pub pool: PgPool,
    /// Rung for what becomes claimable.
    pub bells: Bells,
    /// How long events are kept.
    pub event_retention: Duration,
    /// Where stored bytes are removed.
    pub blobs: Blobs,
    /// What the groups pass remembers.
    pub witnesses: groups::Memory,
    /// Which removals of workers the claim line of this server knows of.
    pub told: removals::Told,
    /// How far the database's clock is ahead of this machine's, as it was measured last.
    pub skew: ClockSkew,
    /// The workers that this server sees, and those that are quarantined.
    pub workers: Workers,
}

/// Members of one pass; a pass that finds as many runs again at once.
pub const SLICE: i64 = 200;

/// A pass that works slice by slice comes back to its driver after this time.
pub const PASS_MAX: Duration = Duration::from_secs(1);

/// What a pass did. Metrics and tests look at the same numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PassReport {
    /// What was due.
    pub found: usize,
    /// What was ended, folded, moved or forgotten.
    pub done: usize,
    /// Ended runs that are tried again.
    pub retried: usize,
    /// Ended runs whose task had no retry left.
    pub exhausted: usize,
    /// What somebody else had dealt with, or holds.
    pub lost_race: usize,
}

/// How long [`run_all_due`] waits for rows that somebody else holds.
const HELD_PATIENCE: Duration = Duration::from_secs(3);
/// How often it looks again.
const HELD_LOOK_EVERY: Duration = Duration::from_millis(5);

/// Runs everything that is due now, until nothing is; what a foreign transaction holds is left after a while.
pub async fn run_all_due(context: &Context) -> Result<(), sqlx::Error> {
    let mut progress = Instant::now();
    loop {
        let expired = claims::pass(context).await?;
        let overdue = deadlines::pass(context).await?;
        let shown = messages::pass(context).await?;
        let waiting = dependencies::pass(context).await?;
        let groups = groups::pass(context).await?;
        // Tasks are kept until their artifacts are gone.
        let artifacts = artifacts::pass(context).await?;
        let forgotten = expiry::pass(context).await?;
        let keys = idempotency::pass(context).await?;
        let purges = purge_cache::pass(context).await?;
        let unseen = workers::forget(context).await?;
        let gone = removals::pass(context).await?;
        let unknown = registrations::pass(context).await?;
        let bytes = blobs::pass(context).await?;
        let held = [expired, overdue, shown, waiting, groups];
        let forgotten = [artifacts, forgotten, keys, purges, unseen, gone, unknown, bytes];
        let reports = [&held[..], &forgotten[..]].concat();
        // The passes leave out what somebody holds, which may be a pass of this very server that is about to commit; and a
        // pass that found another server at work has not seen whether that is done.
        if reports.iter().all(|report| report.found + report.lost_race == 0) && !is_anything_held(context).await? {
            return Ok(());
        }
        if reports.iter().any(|report| report.done > 0) {
            progress = Instant::now();
        } else if progress.elapsed() > HELD_PATIENCE {
            return Ok(());
        } else {
            tokio::time::sleep(HELD_LOOK_EVERY).await;
        }
    }
}

/// Whether something is due all the same.
async fn is_anything_held(context: &Context) -> Result<bool, sqlx::Error> {
    let mut conn = context.pool.acquire().await?;
    Ok(deadlines_store::is_due(&mut conn).await? || messages_store::is_due(&mut conn).await?)
}
