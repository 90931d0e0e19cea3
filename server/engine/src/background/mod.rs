//! Passes: work that no request starts. Each is its own transaction script in a file of its own; any number of
//! servers may run each. [`registry::PASSES`] is the one list of them: the driver, the manual clock, the metrics and the
//! table in docs/operating.md follow it.

pub mod accept;
pub mod admission;
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
pub mod registry;
pub mod removals;
pub mod replication;
pub mod servers;
pub mod sessions;
pub mod slow;
pub mod task_commands;
pub mod workers;

use std::time::Duration;

/// Rows of one pass; a pass that finds as many runs again at once.
pub const SLICE: i64 = 200;

/// A pass that works slice by slice returns to its driver after this time.
pub const PASS_MAX: Duration = Duration::from_secs(1);

/// The pause after a failure.
const AFTER_FAILURE: Duration = Duration::from_secs(1);

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
