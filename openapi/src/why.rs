//! The answer to why a task is in its state.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::dates::Timestamp;
use crate::ids::{RunId, SessionId, TaskId};
use crate::policy::Failure;
use crate::states::{DelayedBy, EndedBy, NoSession, PartitionState, ReasonResolved, RunState, TaskState};

/// Why a task is in its state.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq, Eq, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct WhyAnswer {
    pub task_id: TaskId,
    /// The state of its last run, or unscheduled.
    pub state: TaskState,
    /// Its last run, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_id: Option<RunId>,
    /// True if its last run is pending and only a pause of its queue may hold it back. In a queue
    /// with limits: if a claim made now would get this run, but for a pause.
    pub ready: bool,
    /// All reasons that keep it in its state; empty if a worker that asks now gets it.
    pub reasons: Vec<Reason>,
    /// Position of a ready run in its queue, from 1, up to 10,001.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub position: Option<u32>,
    /// Workers that asked for work within the last minute and may have it. Requires the scope that
    /// shows the queue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claimable_by: Option<Vec<WorkerName>>,
}

/// A reason that keeps a task in its state. Only the scope that shows the queue reveals keys, other
/// tasks, workers, sessions, clients and the texts of pauses.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq, Eq, ToSchema)]
#[serde(tag = "code", rename_all = "kebab-case")]
pub enum Reason {
    /// The task waits for other tasks.
    Dependencies {
        /// The number of these tasks.
        unsatisfied: u32,
        /// The first hundred.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        tasks: Option<Vec<AwaitedTask>>,
        /// True if a dependency ended so that this task can never run by itself.
        #[serde(default, skip_serializing_if = "is_false")]
        never: bool,
        /// Its unique name, if it waits for the tasks that have it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        name: Option<String>,
    },
    /// Its run is delayed.
    Delay { until: Timestamp, by: DelayedBy },
    /// Its run waits: a limit of its queue or of its key allows no start, other runs start before
    /// it, or no session is free.
    #[serde(rename_all = "camelCase")]
    Waiting {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        key: Option<String>,
        /// Limit of its key's assigned and claimed runs; absent if unlimited.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        limit: Option<u32>,
        /// Assigned and claimed runs of its key; absent without `limit`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        used: Option<u32>,
        /// Limit of the queue's assigned and claimed runs; absent if unlimited.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        total: Option<u32>,
        /// Assigned and claimed runs of the queue; absent without `total`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        total_used: Option<u32>,
        /// Up to ten runs that hold the slots, if all slots of the key or of the queue are taken.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        holders: Option<Vec<SlotHolder>>,
        /// When the rates of key and queue allow the next start, if they allow none now.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        next_start: Option<Timestamp>,
        /// How long it waits for the worker that its task prefers.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        preferred_until: Option<Timestamp>,
        /// The preferred worker.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        preferred: Option<WorkerName>,
        /// Its position among the runs of its key, from 1, up to 10,001.
        position: u32,
        /// Number of keys with a startable run that are served before it; up to 10,000.
        keys_before: u32,
        /// True while runs are being adapted to a changed policy.
        #[serde(default, skip_serializing_if = "is_false")]
        refiling: bool,
    },
    /// Its run is assigned to the session of a worker that has not accepted it yet.
    #[serde(rename_all = "camelCase")]
    Assigned {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        worker: Option<WorkerName>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        session_id: Option<SessionId>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        since: Option<Timestamp>,
        /// Deadline after which another worker gets it; absent while its queue is paused.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        accept_by: Option<Timestamp>,
    },
    /// Its queue assigns runs to sessions, and has no live scheduler now.
    NoScheduler {
        /// Live servers with a weight above 0, of which one is about to become the scheduler. If 0,
        /// the task waits until such a server starts.
        candidates: u32,
    },
    /// Its queue assigns runs to sessions, and none is free.
    NoSession {
        because: NoSession,
        /// Live sessions, up to 10,000.
        sessions: u32,
    },
    /// It was assigned to a session that did not accept it in time, and waits again.
    #[serde(rename_all = "camelCase")]
    NotAccepted {
        /// Worker of the last such session.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        worker: Option<WorkerName>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        session_id: Option<SessionId>,
    },
    /// Workers without a session ask for work, but its queue assigns runs to sessions only.
    AssignQueue,
    /// Its queue was polled for messages, but has limits: polls find nothing in it.
    PollLimited,
    /// Its queue is paused.
    Paused {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        by: Option<String>,
        since: Timestamp,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
        /// Time of automatic resumption.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        until: Option<Timestamp>,
    },
    /// A poller has received its message.
    Reserved {
        /// Deadline for claiming the run with the message.
        until: Timestamp,
    },
    /// No worker that may have the run has asked for work in the last minute.
    #[serde(rename_all = "camelCase")]
    NoWorker {
        /// Last known request for work.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        last_asked: Option<Timestamp>,
        /// Quarantined workers that asked in the last minute.
        quarantined: u32,
        /// Other workers that asked and whose sessions are frozen.
        #[serde(default, skip_serializing_if = "is_zero")]
        frozen: u32,
    },
    /// Its queue is divided by a partition group: members claim the tasks of their share.
    Partition {
        /// The slot of the task.
        slot: u32,
        /// The share that has the slot; absent while the group has no map.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        index: Option<u16>,
        /// The member with this share.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        member: Option<String>,
        /// The state of the group.
        state: PartitionState,
    },
    /// Other runs are claimed first.
    Behind {
        /// Number of these runs, up to 10,000.
        runs: u32,
    },
    /// A worker has claimed its run.
    #[serde(rename_all = "camelCase")]
    Running {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        worker_group: Option<String>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        worker_id: Option<String>,
        since: Timestamp,
        /// Expiry of the claim unless renewed.
        taken_until: Timestamp,
        /// Latest end of the run, if it has a `completeTime`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        complete_by: Option<Timestamp>,
        /// The claim's session: the claim ends with it at the latest.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        session_id: Option<SessionId>,
        /// Its log, if its worker sends it while the run goes on.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        live_log: Option<LiveLogSoFar>,
    },
    /// The task has ended.
    #[serde(rename_all = "camelCase")]
    Resolved {
        /// How its last run ended.
        outcome: RunState,
        reason_resolved: ReasonResolved,
        /// The cause, where `reasonResolved` does not tell it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        ended_by: Option<EndedBy>,
        /// Workers in a row that were lost with it.
        losses: u16,
        /// Number of further runs that could have ended without using up a retry.
        free_runs_left: u16,
        /// Worker of the last run, if one had claimed it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        worker_group: Option<String>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        worker_id: Option<String>,
        /// Time of that claim.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        started: Option<Timestamp>,
        /// End of a run that was claimed.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        resolved: Option<Timestamp>,
        /// Why the last run failed, if its worker reported it. Requires the scope
        /// `tenure:get-result:<taskQueueId>`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        failure: Option<Failure>,
    },
}

/// The log of a run while it is written: getLiveLog reads it.
#[derive(Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq, ToSchema)]
pub struct LiveLogSoFar {
    /// Its length so far. Of a long log only the end is kept.
    pub bytes: u64,
}

/// A run that holds a slot of a limit.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq, Eq, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct SlotHolder {
    pub task_id: TaskId,
    pub run_id: RunId,
    /// Absent unless claimed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker: Option<WorkerName>,
}

/// A task that another one waits for.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq, Eq, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct AwaitedTask {
    pub task_id: TaskId,
    /// Absent if it has expired.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<TaskState>,
}

/// The name of a worker.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq, Eq, PartialOrd, Ord, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct WorkerName {
    pub worker_group: String,
    pub worker_id: String,
}

fn is_false(value: &bool) -> bool {
    !value
}

fn is_zero(value: &u32) -> bool {
    *value == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const SESSION: &str = "b4cf1f7d-1b1c-4a8b-9d3f-5f0f4d6f2a10";

    #[test]
    fn reason_has_code_beside_fields() {
        let time: Timestamp = serde_json::from_value(json!("2026-01-31T12:00:00Z")).unwrap();
        let date = "2026-01-31T12:00:00.000Z";
        for (reason, written) in [
            (
                Reason::Dependencies { unsatisfied: 3, tasks: None, never: false, name: None },
                json!({"code": "dependencies", "unsatisfied": 3}),
            ),
            (
                Reason::Delay { until: time, by: DelayedBy::RetryDelay },
                json!({"code": "delay", "until": date, "by": "retry-delay"}),
            ),
            (
                Reason::Running {
                    worker_group: None,
                    worker_id: None,
                    since: time,
                    taken_until: time,
                    complete_by: Some(time),
                    session_id: None,
                    live_log: None,
                },
                json!({"code": "running", "since": date, "takenUntil": date, "completeBy": date}),
            ),
            (
                Reason::Running {
                    worker_group: Some("g".into()),
                    worker_id: Some("w".into()),
                    since: time,
                    taken_until: time,
                    complete_by: None,
                    session_id: Some(SESSION.parse().unwrap()),
                    live_log: Some(LiveLogSoFar { bytes: 12 }),
                },
                json!({"code": "running", "workerGroup": "g", "workerId": "w", "since": date, "takenUntil": date,
                    "sessionId": SESSION, "liveLog": {"bytes": 12}}),
            ),
            (Reason::AssignQueue, json!({"code": "assign-queue"})),
            (Reason::PollLimited, json!({"code": "poll-limited"})),
            (Reason::NoScheduler { candidates: 0 }, json!({"code": "no-scheduler", "candidates": 0})),
            (
                Reason::NoSession { because: NoSession::AllExtended, sessions: 2 },
                json!({"code": "no-session", "because": "all-extended", "sessions": 2}),
            ),
            (Reason::NotAccepted { worker: None, session_id: None }, json!({"code": "not-accepted"})),
            (
                Reason::NoWorker { last_asked: None, quarantined: 2, frozen: 0 },
                json!({"code": "no-worker", "quarantined": 2}),
            ),
            (
                Reason::NoWorker { last_asked: None, quarantined: 0, frozen: 1 },
                json!({"code": "no-worker", "quarantined": 0, "frozen": 1}),
            ),
        ] {
            assert_eq!(serde_json::to_value(&reason).unwrap(), written);
            assert_eq!(serde_json::from_value::<Reason>(written).unwrap(), reason);
        }
    }
}
