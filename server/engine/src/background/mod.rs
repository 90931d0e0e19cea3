//! Passes: work that no request starts. Each is its own transaction script in a file of its own; any number of
//! servers may run each. [`PASSES`] is the one list of them: the driver, the manual clock, the metrics and the table in
//! docs/operating.md follow it.

pub mod accept;
pub mod admission;
mod admission_looks;
pub mod artifacts;
pub mod blobs;
pub mod claims;
pub mod clocks;
pub mod counters;
pub mod deadlines;
pub mod dependencies;
pub mod driver;
pub mod election;
pub mod events;
pub mod expiry;
pub mod facts;
pub mod failing;
pub mod groups;
pub mod holds;
pub mod idempotency;
pub mod idle_queues;
pub mod live_logs;
pub mod low_water_marks;
pub mod messages;
pub mod other_servers;
pub mod pauses;
pub mod purge_cache;
pub mod quarantines;
mod reassign;
pub mod refile;
pub mod registrations;
mod registry;
pub mod removals;
pub mod replication;
pub mod servers;
pub mod sessions;
pub mod slow;
pub mod task_commands;
pub mod workers;

use std::time::{Duration, Instant};

pub use self::registry::{Advance, PASSES, Pace, Pass};
use crate::engine::Engine;
use tenure_store::{deadlines as deadlines_store, holds as holds_store, messages as messages_store};

/// Rows of one pass; a pass that finds as many runs again at once.
pub const SLICE: i64 = 200;

/// A pass that works slice by slice returns to its driver after this time.
pub const PASS_MAX: Duration = Duration::from_secs(1);

/// What a pass did. Metrics and tests look at the same numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PassReport {
    /// Rows that were due.
    pub found: usize,
    /// Rows that were ended, folded, moved or purged.
    pub done: usize,
    /// Ended runs that are retried.
    pub retried: usize,
    /// Ended runs whose task had no retry left.
    pub exhausted: usize,
    /// Rows that another transaction had processed, or holds.
    pub lost_race: usize,
    /// When more will be due, if the pass knows of something.
    pub next_in: Option<Duration>,
    /// Parts of the pass that failed when they were tried last: it has not recovered.
    pub failing: usize,
}

impl PassReport {
    /// What a part of the pass did, besides.
    fn join(&mut self, part: Self) {
        self.found += part.found;
        self.done += part.done;
        self.retried += part.retried;
        self.exhausted += part.exhausted;
        self.lost_race += part.lost_race;
        self.next_in = [self.next_in, part.next_in].into_iter().flatten().min();
        self.failing += part.failing;
    }
}

/// How long [`run_all_due`] waits for rows that another transaction holds.
const HELD_WAIT: Duration = Duration::from_secs(3);
/// How often it looks again.
const HELD_LOOK_EVERY: Duration = Duration::from_millis(5);

/// Runs every pass that moving the clock waits for, until nothing is due; what another transaction holds is left after a
/// while.
pub async fn run_all_due(engine: &Engine) -> Result<(), sqlx::Error> {
    let mut progress = Instant::now();
    loop {
        let (mut found, mut done) = (false, false);
        for pass in PASSES.iter().filter(|pass| pass.advance == Advance::Waits) {
            let report = pass.run(engine).await?;
            found |= report.found + report.lost_race > 0;
            done |= report.done > 0;
        }
        // The passes skip rows that another transaction holds, which may be a pass of this very server that is about to
        // commit; and a pass that found another server at work has not seen whether that has finished.
        if !found && !is_anything_held(engine).await? {
            return Ok(());
        }
        if done {
            progress = Instant::now();
        } else if progress.elapsed() > HELD_WAIT {
            return Ok(());
        } else {
            tokio::time::sleep(HELD_LOOK_EVERY).await;
        }
    }
}

/// Whether something is due that the passes skipped.
async fn is_anything_held(engine: &Engine) -> Result<bool, sqlx::Error> {
    let mut conn = engine.background_pool.acquire().await?;
    Ok(deadlines_store::is_due(&mut conn).await?
        || holds_store::is_due(&mut conn).await?
        || messages_store::is_due(&mut conn).await?)
}
