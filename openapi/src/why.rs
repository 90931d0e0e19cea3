//! The answer to why a task is where it is.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::dates::Timestamp;
use crate::ids::{RunId, SessionId, TaskId};
use crate::states::{DelayedBy, EndedBy, ReasonResolved, RunState, TaskState};

/// Why a task is where it is.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq, Eq, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct WhyAnswer {
    /// The task.
    pub task_id: TaskId,
    /// The state of its last run, or unscheduled.
    pub state: TaskState,
    /// Its last run, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_id: Option<RunId>,
    /// Whether its last run is pending and nothing holds it back but a pause of its queue.
    pub ready: bool,
    /// Everything that keeps it where it is; empty if a worker that asks now gets it.
    pub reasons: Vec<Reason>,
    /// The place of a ready run in its queue, from 1, up to 10,001.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub position: Option<u32>,
    /// Workers that asked for work within the last minute and may have it; only with the scope that shows the queue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claimable_by: Option<Vec<WorkerName>>,
}

/// One thing that keeps a task where it is.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq, Eq, ToSchema)]
#[serde(tag = "code", rename_all = "kebab-case")]
pub enum Reason {
    /// It waits for other tasks.
    Dependencies {
        /// How many.
        unsatisfied: u32,
        /// The first hundred of them; only with the scope that shows the queue.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        tasks: Option<Vec<AwaitedTask>>,
        /// Whether one of them has ended so that this task can never run by itself.
        #[serde(default, skip_serializing_if = "is_false")]
        never: bool,
    },
    /// Its run is delayed.
    Delay {
        /// Until when.
        until: Timestamp,
        /// Why.
        by: DelayedBy,
    },
    /// Its queue is paused.
    Paused {
        /// By whom.
        by: String,
        /// Since when.
        since: Timestamp,
        /// Why, in the words of who did it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
        /// Until when, unless it is resumed earlier.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        until: Option<Timestamp>,
    },
    /// A poller has received its message.
    Reserved {
        /// Until when it may claim the run by it.
        until: Timestamp,
    },
    /// No worker that may have the run has asked for work in the last minute.
    #[serde(rename_all = "camelCase")]
    NoWorker {
        /// When one asked for the last time, as far as is known.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        last_asked: Option<Timestamp>,
        /// How many asked in the last minute and are quarantined.
        quarantined: u32,
    },
    /// Other runs are claimed first.
    Behind {
        /// How many, up to 10,000.
        runs: u32,
    },
    /// A worker holds its run.
    #[serde(rename_all = "camelCase")]
    Running {
        /// Who.
        #[serde(flatten)]
        worker: WorkerName,
        /// Since when.
        since: Timestamp,
        /// Until when, unless it renews its claim.
        taken_until: Timestamp,
        /// When the run ends at the latest, if it has a `completeTime`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        complete_by: Option<Timestamp>,
        /// The session that the claim belongs to, and ends with at the latest; only with the scope that shows the queue.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        session_id: Option<SessionId>,
    },
    /// It has ended.
    #[serde(rename_all = "camelCase")]
    Resolved {
        /// How its last run ended.
        outcome: RunState,
        /// Why.
        reason_resolved: ReasonResolved,
        /// What ended the run, where `reasonResolved` does not say it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        ended_by: Option<EndedBy>,
        /// How many workers in a row were lost with it.
        losses: u16,
        /// How many runs more could have ended without using up a retry.
        free_runs_left: u16,
    },
}

/// A task that another one waits for.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq, Eq, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct AwaitedTask {
    /// The task.
    pub task_id: TaskId,
    /// Its state; none if it has expired.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<TaskState>,
}

/// A worker by its name.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq, Eq, PartialOrd, Ord, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct WorkerName {
    /// Its group.
    pub worker_group: String,
    /// The worker within it.
    pub worker_id: String,
}

fn is_false(value: &bool) -> bool {
    !value
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const SESSION: &str = "b4cf1f7d-1b1c-4a8b-9d3f-5f0f4d6f2a10";

    #[test]
    fn a_reason_has_its_code_beside_its_fields() {
        let time: Timestamp = serde_json::from_value(json!("2026-01-31T12:00:00Z")).unwrap();
        let worker = WorkerName { worker_group: "g".into(), worker_id: "w".into() };
        let date = "2026-01-31T12:00:00.000Z";
        for (reason, written) in [
            (
                Reason::Dependencies { unsatisfied: 3, tasks: None, never: false },
                json!({"code": "dependencies", "unsatisfied": 3}),
            ),
            (
                Reason::Delay { until: time, by: DelayedBy::RetryDelay },
                json!({"code": "delay", "until": date, "by": "retry-delay"}),
            ),
            (
                Reason::Running {
                    worker: worker.clone(),
                    since: time,
                    taken_until: time,
                    complete_by: Some(time),
                    session_id: None,
                },
                json!({"code": "running", "workerGroup": "g", "workerId": "w", "since": date, "takenUntil": date,
                    "completeBy": date}),
            ),
            (
                Reason::Running {
                    worker,
                    since: time,
                    taken_until: time,
                    complete_by: None,
                    session_id: Some(SESSION.parse().unwrap()),
                },
                json!({"code": "running", "workerGroup": "g", "workerId": "w", "since": date, "takenUntil": date,
                    "sessionId": SESSION}),
            ),
            (Reason::NoWorker { last_asked: None, quarantined: 2 }, json!({"code": "no-worker", "quarantined": 2})),
        ] {
            assert_eq!(serde_json::to_value(&reason).unwrap(), written);
            assert_eq!(serde_json::from_value::<Reason>(written).unwrap(), reason);
        }
    }
}
