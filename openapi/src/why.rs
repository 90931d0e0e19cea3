//! The answer to why a task is where it is.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::dates::Timestamp;
use crate::ids::{RunId, SessionId, TaskId};
use crate::states::{DelayedBy, EndedBy, NoSession, ReasonResolved, RunState, TaskState};

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
    /// True if its last run is pending and nothing holds it back but a pause of its queue. In a queue with limits: if a claim
    /// made now would get this run, but for a pause.
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
    /// Its run waits: a limit of its queue or of its key allows no start, other runs start before it, or no session is free.
    #[serde(rename_all = "camelCase")]
    Waiting {
        /// Its key, if it has one; only with the scope that shows the queue, as all names here.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        key: Option<String>,
        /// How many runs of its key may be assigned or claimed; absent if that is not limited.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        limit: Option<u32>,
        /// How many are; absent as `limit`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        used: Option<u32>,
        /// How many of the whole queue may be; absent if that is not limited.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        total: Option<u32>,
        /// How many are; absent as `total`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        total_used: Option<u32>,
        /// If all slots of the key, or of the queue, are taken: up to ten runs that have them.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        holders: Option<Vec<SlotHolder>>,
        /// When the rates of key and queue allow the next start, if they allow none now.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        next_start: Option<Timestamp>,
        /// Until when it waits for the worker that its task names.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        preferred_until: Option<Timestamp>,
        /// That worker.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        preferred: Option<WorkerName>,
        /// Its place among the runs of its key, from 1, up to 10,001.
        position: u32,
        /// How many keys have a run that may start, and are served before it; up to 10,000.
        keys_before: u32,
        /// Whether runs are being brought under a policy that was changed.
        #[serde(default, skip_serializing_if = "is_false")]
        refiling: bool,
    },
    /// Its run was given to the session of a worker, which has not accepted it yet.
    #[serde(rename_all = "camelCase")]
    Assigned {
        /// The worker; only with the scope that shows the queue.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        worker: Option<WorkerName>,
        /// Its session; likewise.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        session_id: Option<SessionId>,
        /// Since when.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        since: Option<Timestamp>,
        /// When another worker gets it; absent while its queue is paused.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        accept_by: Option<Timestamp>,
    },
    /// Its queue gives runs to sessions of workers, and no live server does that now.
    NoScheduler {
        /// How many servers could: live ones with a weight above 0, of which one is about to. Without any it waits until one is started.
        candidates: u32,
    },
    /// Its queue gives runs to sessions of workers, and none is free.
    NoSession {
        /// Why.
        because: NoSession,
        /// How many are live, up to 10,000.
        sessions: u32,
    },
    /// It was given to a session that did not accept it in time, and waits again.
    #[serde(rename_all = "camelCase")]
    NotAccepted {
        /// The last one's worker; only with the scope that shows the queue.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        worker: Option<WorkerName>,
        /// Its session; likewise.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        session_id: Option<SessionId>,
    },
    /// Workers without a session ask for work, which its queue gives to sessions only.
    AssignQueue,
    /// Its queue was polled for messages, and has limits: polls find nothing in it.
    PollLimited,
    /// Its queue is paused.
    Paused {
        /// By whom; only with the scope that shows the queue.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        by: Option<String>,
        /// Since when.
        since: Timestamp,
        /// Why, in the words of who did it; likewise.
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
        /// How many others asked, and have said since by their sessions that they take no more tasks.
        #[serde(default, skip_serializing_if = "is_zero")]
        frozen: u32,
    },
    /// Other runs are claimed first.
    Behind {
        /// How many, up to 10,000.
        runs: u32,
    },
    /// A worker holds its run.
    #[serde(rename_all = "camelCase")]
    Running {
        /// The worker's group; only with the scope that shows the queue.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        worker_group: Option<String>,
        /// The worker within it; likewise.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        worker_id: Option<String>,
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
        /// Its log, if its worker sends it while the run goes on.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        live_log: Option<LiveLogSoFar>,
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

/// The log of a run while it is written: getLiveLog reads it.
#[derive(Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq, ToSchema)]
pub struct LiveLogSoFar {
    /// How long it is now. Of a long log the end is kept.
    pub bytes: u64,
}

/// A run that has a slot of a limit.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq, Eq, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct SlotHolder {
    /// Its task.
    pub task_id: TaskId,
    /// The run.
    pub run_id: RunId,
    /// The worker that has claimed it; absent while none has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker: Option<WorkerName>,
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

fn is_zero(value: &u32) -> bool {
    *value == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const SESSION: &str = "b4cf1f7d-1b1c-4a8b-9d3f-5f0f4d6f2a10";

    #[test]
    fn a_reason_has_its_code_beside_its_fields() {
        let time: Timestamp = serde_json::from_value(json!("2026-01-31T12:00:00Z")).unwrap();
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
