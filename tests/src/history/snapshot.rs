//! State of tasks and queues, read while nothing is in flight.

use std::collections::{HashMap, HashSet};

use serde::Deserialize;
use tenure_api::dates::Timestamp;
use tenure_api::ids::SlugId;

use super::sessions::ShownSessions;

#[derive(Debug, Clone, Default)]
pub struct Snapshot {
    pub tasks: HashMap<SlugId, Status>,
    pub delayed: HashSet<SlugId>,
    /// Counts of each queue, by index.
    pub counts: Vec<Counts>,
    /// Sessions, read before the tasks.
    pub sessions: ShownSessions,
}

impl Snapshot {
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

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    pub task_queue_id: String,
    pub priority: String,
    pub retries_left: u32,
    pub state: String,
    pub runs: Vec<Run>,
}

impl Status {
    #[must_use]
    pub fn is_unscheduled(&self) -> bool {
        self.state == "unscheduled"
    }

    #[must_use]
    pub fn is_resolved(&self) -> bool {
        matches!(self.state.as_str(), "completed" | "failed" | "exception")
    }
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Run {
    pub run_id: u16,
    pub state: String,
    #[serde(default)]
    pub reason_created: String,
    #[serde(default)]
    pub reason_resolved: Option<String>,
    #[serde(default)]
    pub worker_id: Option<String>,
    /// When it became pending.
    #[serde(default)]
    pub scheduled: Option<Timestamp>,
    #[serde(default)]
    pub started: Option<Timestamp>,
    #[serde(default)]
    pub resolved: Option<Timestamp>,
    #[serde(default)]
    pub taken_until: Option<Timestamp>,
}

/// Answer of taskQueueCounts, and one number of getQueue.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Counts {
    /// Waiting runs that are not delayed.
    pub pending_tasks: u64,
    pub claimed_tasks: u64,
    #[serde(default)]
    pub delayed: u64,
}
