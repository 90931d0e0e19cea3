//! All SQL. [`transitions`] has every statement that moves a run; the rest has one file per family
//! of tables.
//!
//! In rows and parameters, `queue: i32` is `task_queues.id`, `seq: i64` is `tasks.seq`, and `now`
//! is the database's time of the read.

pub mod admission;
pub mod artifacts;
pub mod audit;
pub mod backup;
pub mod blobs;
pub mod bulk_jobs;
pub mod checkpoints;
pub mod claims;
pub mod clients;
pub mod clock;
pub mod cluster;
pub mod codes;
pub mod connector;
pub mod continuity;
pub mod counters;
pub mod dead_letters;
pub mod deadlines;
pub mod decode;
pub mod dependencies;
pub mod dependency_work;
mod due;
pub mod due_marks;
pub mod enqueued;
pub mod events;
pub mod facts;
pub mod failure;
pub mod failures;
pub mod groups;
pub mod guarded;
pub mod holds;
pub mod hosts;
pub mod hot;
pub mod notifications;

#[cfg(feature = "test-util")]
pub mod breakage;
pub mod cached;
pub mod idempotency;
pub mod in_use;
pub mod invariants;
pub mod libpq;
pub mod live_logs;
pub mod log_readers;
pub mod low_water_marks;
pub mod messages;
pub mod objects;
pub mod operator_hints;
pub mod outage;
pub mod page;
pub mod partitions;
pub mod policies;
pub mod problems;
pub mod purge_cache;
pub mod queue_counts;
pub mod queue_lists;
pub mod queue_views;
pub mod queues;
pub mod refile;
pub mod replication;
pub mod results;
pub mod roles;
pub mod schedulers;
pub mod schedules;
pub mod schema;
pub mod secrets;
pub mod servers;
pub mod session;
pub mod session_check;
pub mod settings;
pub mod statistics;
pub mod submission_defaults;
pub mod subscriptions;
pub mod task_commands;
pub mod tasks;
#[cfg(feature = "test-util")]
pub mod testing;
pub mod transitions;
pub mod why;
pub mod worker_manager;
pub mod worker_removals;
pub mod worker_sessions;
pub mod workers;

pub mod advisory {
    /// Serializes the assignment of event positions.
    pub const SEQUENCER: i64 = 0x7465_6e75_7265_0002;
    /// Serializes moves of the manual clock.
    pub const CLOCK: i64 = 0x7465_6e75_7265_0004;
    /// Serializes starts of jobs, whose number is limited.
    pub const JOBS: i64 = 0x7465_6e75_7265_0005;
    /// First half of a lock on a blob name; the second is the hash of the name.
    pub const BLOB_NAMES: i32 = 0x7465_6e75;
    /// First half of a lock on the purge-cache requests of a worker pool; the second is the hash of
    /// its id.
    pub const PURGE_REQUESTS: i32 = 0x7465_6e76;
    /// First half of a lock on the backlog of a queue; the second is its key.
    pub const BACKLOGS: i32 = 0x7465_6e78;
    /// First half of the lock of a partition group, held by claims of its shares, shared, and by
    /// changes of its active map; the second is its key. The function `lock_partition` has it, too.
    pub const PARTITIONS: i32 = 0x7465_6e79;
    /// First half of a lock on the item ids of a session; the second is the hash of its epoch.
    pub const INBOXES: i32 = 0x7465_6e77;
}
