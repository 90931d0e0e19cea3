//! Background passes: work that no request starts. Each pass has its own file and transactions; any
//! number of servers may run it. The driver, the manual clock, the metrics and the table in
//! docs/metrics.md follow [`registry::PASSES`].

pub mod accept;
pub mod admission;
pub mod artifacts;
pub mod audit;
pub mod blobs;
pub mod bulk_jobs;
pub mod claims;
pub mod clocks;
pub mod counters;
pub mod dead_letters;
pub mod deadlines;
pub mod dependencies;
pub mod driver;
pub mod election;
pub mod enqueued;
pub mod events;
pub mod expiry;
pub mod facts;
pub mod failures;
pub mod groups;
pub mod holds;
pub mod idempotency;
pub mod idle_queues;
pub mod live_logs;
pub mod low_water_marks;
pub mod messages;
pub mod other_servers;
pub mod partitions;
pub mod pauses;
pub mod problems;
pub mod purge_cache;
pub mod quarantines;
mod reassign;
pub mod refile;
pub mod registrations;
pub mod registry;
pub mod removals;
pub mod replication;
pub mod schedules;
pub mod servers;
pub mod sessions;
pub mod slow;
pub mod statistics;
pub mod subscriptions;
pub mod task_commands;
pub mod vitals;
pub mod workers;

use std::time::Duration;

/// Maximum rows per pass; a full slice is followed by another at once.
pub const SLICE: i64 = 200;

/// Time limit of a pass that works in slices.
pub const PASS_MAX: Duration = Duration::from_secs(1);

const AFTER_FAILURE: Duration = Duration::from_secs(1);

/// Result of a pass, for metrics and tests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PassReport {
    pub found: usize,
    /// Rows that were ended, folded, moved or purged.
    pub done: usize,
    pub retried: usize,
    /// Ended runs without retries left.
    pub exhausted: usize,
    /// Rows that another transaction processed or has locked.
    pub lost_race: usize,
    /// Time until more work is due, if known.
    pub next_in: Option<Duration>,
    /// Parts of the pass whose last attempt failed.
    pub failing: usize,
}

impl PassReport {
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
