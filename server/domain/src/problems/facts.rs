//! Input of the rules. The engine reads it from the database and from its own memory.

use std::collections::BTreeMap;

use chrono::{DateTime, TimeDelta, Utc};
use tenure_api::ids::{TaskGroupId, TaskId, TaskQueueId};
use tenure_api::states::{ReasonResolved, SuspendedBy};

use crate::policy::pause::Paused;

#[derive(Debug, Clone, Default)]
pub struct Facts {
    /// The time of the tasks. All other times are on this clock.
    pub now: DateTime<Utc>,
    pub queues: Vec<QueueFacts>,
    pub ends: Vec<QueueEnds>,
    pub blocked: Vec<Blocked>,
    /// Queues to whose runs a changed policy is being applied, and the time of the change.
    pub refiling: Vec<(TaskQueueId, DateTime<Utc>)>,
    /// Servers that died or were cut off, and were not started again.
    pub silent_servers: Vec<SilentServer>,
    /// Queues that assign their runs and have no live scheduler, with the time since.
    pub without_scheduler: Vec<(TaskQueueId, DateTime<Utc>)>,
    pub failing_passes: Vec<FailingPass>,
    pub subscriptions: Vec<SubscriptionFacts>,
    pub database: DatabaseFacts,
}

/// A queue with pending runs, with a pause, or without usable workers.
#[derive(Debug, Clone)]
pub struct QueueFacts {
    pub queue: TaskQueueId,
    /// Runs that would start now, given enough workers.
    pub runnable: i64,
    /// Runs that wait for a limit or a session.
    pub held: i64,
    pub pending: i64,
    pub oldest_runnable: Option<DateTime<Utc>>,
    pub oldest_held: Option<DateTime<Utc>>,
    pub paused: Option<Paused>,
    /// True if a worker holds a run or has a live session.
    pub has_worker: bool,
    /// The last contact of a worker; none if none is known.
    pub last_contact: Option<DateTime<Utc>>,
    /// If no worker in contact may get runs.
    pub barred: Option<Barred>,
}

/// Workers of a queue in which all are quarantined or frozen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Barred {
    pub quarantined: i64,
    /// Frozen workers that are not quarantined.
    pub frozen: i64,
    pub since: DateTime<Utc>,
    /// End of the first quarantine.
    pub until: Option<DateTime<Utc>>,
    /// Group and id, if it is only one.
    pub only: Option<(String, String)>,
}

/// Resolved tasks, or lost runs, and the first minute with one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Count {
    pub number: i64,
    pub since: DateTime<Utc>,
}

/// Resolved tasks of a queue in some time.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ends {
    pub resolved: BTreeMap<ReasonResolved, Count>,
    /// Runs that were lost with their workers.
    pub lost: Option<Count>,
}

#[derive(Debug, Clone)]
pub struct QueueEnds {
    pub queue: TaskQueueId,
    /// The last 15 minutes.
    pub recent: Ends,
    /// The hour before.
    pub before: Ends,
    /// The latest failed runs, in groups. Only needed if the queue [`super::fails`].
    pub examples: Vec<Example>,
}

/// Failed runs that have this in common.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Example {
    pub reason: ReasonResolved,
    pub exit_code: Option<i32>,
    /// Group and id.
    pub worker: Option<(String, String)>,
    pub number: i64,
}

/// Tasks of a group that need a task which failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Blocked {
    pub group: TaskGroupId,
    /// The task that failed, and its queue.
    pub required: TaskId,
    pub queue: TaskQueueId,
    pub reason: ReasonResolved,
    pub failed: DateTime<Utc>,
    pub tasks: i64,
    /// True if there may be more.
    pub at_least: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SilentServer {
    pub name: String,
    /// Its last heartbeat.
    pub beat: DateTime<Utc>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FailingPass {
    pub pass: &'static str,
    /// The server that reports it.
    pub server: String,
    pub since: DateTime<Utc>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SubscriptionFacts {
    pub name: String,
    pub suspended: Option<(DateTime<Utc>, SuspendedBy)>,
    /// Age of the oldest undelivered event, as far as it counts.
    pub age: TimeDelta,
    /// The age that suspends the subscription.
    pub limit: TimeDelta,
    /// Why the last attempt failed.
    pub error: Option<String>,
}

/// Risks of the database and of what belongs to it. Those without a time of their own have the time
/// since which this server has seen them.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct DatabaseFacts {
    /// Age of the oldest transaction.
    pub oldest_transaction: TimeDelta,
    /// What makes a failover lose acknowledged tasks, with advice.
    pub replication: Vec<(String, DateTime<Utc>)>,
    /// Free part of the disk of the embedded database, from 0 to 1, while it is small.
    pub disk_free: Option<(f64, DateTime<Utc>)>,
    /// How far the database's clock is ahead of this server's, while that is much.
    pub skew: Option<(TimeDelta, DateTime<Utc>)>,
    /// Used part of the space for live logs, from 0 to 1, while it is large.
    pub live_logs: Option<(f64, DateTime<Utc>)>,
    /// Since when the artifact store cannot be used.
    pub artifacts: Option<DateTime<Utc>>,
}
