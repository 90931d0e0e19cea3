//! What the server answers about its tasks and queues when nothing is in flight.

use std::collections::{HashMap, HashSet};

use serde::Deserialize;
use tenure_api::dates::Timestamp;
use tenure_api::ids::SlugId;

use super::sessions::ShownSessions;

/// The state of everything at one quiet time.
#[derive(Debug, Clone, Default)]
pub struct Snapshot {
    /// The status of every task that exists, of all that any client tried to create.
    pub tasks: HashMap<SlugId, Status>,
    /// Those of the pending ones whose run is delayed.
    pub delayed: HashSet<SlugId>,
    /// The counts of each queue, by number.
    pub counts: Vec<Counts>,
    /// What was said of sessions before the tasks were read.
    pub sessions: ShownSessions,
}

impl Snapshot {
    /// What the counts of a queue should be.
    #[must_use]
    pub fn recount(&self, queue: &str) -> Counts {
        let mut counts = Counts::default();
        for (task, status) in self.tasks.iter().filter(|(_, status)| status.task_queue_id == queue) {
            match status.state.as_str() {
                "pending" if self.delayed.contains(task) => counts.delayed += 1,
                "pending" => counts.pending_tasks += 1,
                "running" => counts.claimed_tasks += 1,
                _ => {}
            }
        }
        counts
    }
}

/// As much of a status structure as the checker reads.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    /// The queue's id.
    pub task_queue_id: String,
    /// The priority by name.
    pub priority: String,
    /// How many retries the task still has.
    pub retries_left: u32,
    /// The task's state.
    pub state: String,
    /// Its runs.
    pub runs: Vec<Run>,
}

impl Status {
    /// Whether it has no run yet.
    #[must_use]
    pub fn is_unscheduled(&self) -> bool {
        self.state == "unscheduled"
    }

    /// Whether nothing will happen to it any more.
    #[must_use]
    pub fn is_resolved(&self) -> bool {
        matches!(self.state.as_str(), "completed" | "failed" | "exception")
    }
}

/// As much of a run as the checker reads.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Run {
    /// Its number, which is also its place.
    pub run_id: u16,
    /// The run's state.
    pub state: String,
    /// Why it was made.
    #[serde(default)]
    pub reason_created: String,
    /// Why it is resolved.
    #[serde(default)]
    pub reason_resolved: Option<String>,
    /// Who claimed it.
    #[serde(default)]
    pub worker_id: Option<String>,
    /// When it became pending.
    #[serde(default)]
    pub scheduled: Option<Timestamp>,
    /// When it was claimed.
    #[serde(default)]
    pub started: Option<Timestamp>,
    /// When it ended.
    #[serde(default)]
    pub resolved: Option<Timestamp>,
    /// Until when the last claim of it was good.
    #[serde(default)]
    pub taken_until: Option<Timestamp>,
}

/// The answer of taskQueueCounts, and one number of getQueue.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Counts {
    /// Runs that wait and are not delayed.
    pub pending_tasks: u64,
    /// Runs that a worker holds.
    pub claimed_tasks: u64,
    /// Runs that are delayed, as getQueue counts them.
    #[serde(default)]
    pub delayed: u64,
}
