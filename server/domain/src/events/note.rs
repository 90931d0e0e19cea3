//! Notes: events about queues, subscriptions and partition groups, on Tenure's own exchanges. The outbox stores them
//! as emitted, because no task or group has the state to render them from.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tenure_api::dates::Timestamp;
use tenure_api::ids::{RunId, ServerId, SessionId, TaskId, TaskQueueId, WorkerGroup, WorkerId};
use tenure_api::policy::{Backlog, QueuePolicy};
use tenure_api::states::{PartitionState, Priority, SchedulerEnd, SessionEnd, SuspendedBy};
use utoipa::ToSchema;

use super::{Event, Payload};
use crate::json::{self, Unserializable};
use crate::session::Identity;

/// The stored kind of notes.
pub const KIND: i16 = 14;
pub const RUNS_MAX: usize = 200;
/// Prefix of Tenure's own exchanges.
pub const PREFIX: &str = "exchange/tenure/v1/";
pub const EXCHANGES: [&str; 12] = [
    "task-ready",
    "queue-paused",
    "queue-resumed",
    "queue-policy-changed",
    "session-started",
    "session-ended",
    "scheduler-active",
    "scheduler-inactive",
    "schedule-failed",
    "backlog-limit-reached",
    "subscription-suspended",
    "partitions-changed",
];
const VERSION: u8 = 1;

/// The message of a note.
#[derive(Serialize, Debug, Clone, PartialEq, ToSchema)]
#[serde(untagged)]
#[schema(as = NoteEventPayload)]
pub enum Note {
    /// Delayed runs have become ready.
    TaskReady(TaskReady),
    /// A queue was paused, or its pause changed.
    QueuePaused(QueuePaused),
    /// A queue was resumed.
    QueueResumed(QueueResumed),
    /// The policy of a queue was changed or removed.
    QueuePolicyChanged(Box<QueuePolicyChanged>),
    /// A session of a worker has started.
    SessionStarted(SessionStarted),
    /// A session of a worker has ended.
    SessionEnded(SessionEnded),
    /// A server has become the scheduler of a queue.
    SchedulerActive(SchedulerActive),
    /// A server is no longer the scheduler of a queue.
    SchedulerInactive(SchedulerInactive),
    /// A schedule could not create its task.
    ScheduleFailed(ScheduleFailed),
    /// A task was refused because of its queue's backlog limit.
    BacklogLimitReached(BacklogLimitReached),
    /// A subscription was suspended: its receiver gets no more events.
    SubscriptionSuspended(SubscriptionSuspended),
    /// The map of a partition group changes.
    PartitionsChanged(PartitionsChanged),
}

/// Delayed runs of a queue have become ready to be claimed.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq, Eq, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TaskReady {
    /// Version of the message format.
    version: u8,
    /// The queue.
    pub task_queue_id: TaskQueueId,
    /// The runs, at most 200.
    pub runs: Vec<ReadyRun>,
}

/// A run that can be claimed.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq, Eq, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ReadyRun {
    /// The task.
    pub task_id: TaskId,
    /// The run.
    pub run_id: RunId,
    /// The priority.
    pub priority: Priority,
}

/// A queue was paused, or its pause changed.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq, Eq, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct QueuePaused {
    /// Version of the message format.
    version: u8,
    /// The queue.
    pub task_queue_id: TaskQueueId,
    /// The client that paused it.
    pub client_id: String,
    /// When the pause began.
    pub since: Timestamp,
    /// Reason of the pause.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// When the queue resumes automatically.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<Timestamp>,
}

/// A queue was resumed.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq, Eq, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct QueueResumed {
    /// Version of the message format.
    version: u8,
    /// The queue.
    pub task_queue_id: TaskQueueId,
    /// The client that resumed it; absent if the pause expired.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_id: Option<String>,
}

/// The policy of a queue was changed or removed.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct QueuePolicyChanged {
    /// Version of the message format.
    version: u8,
    /// The queue.
    pub task_queue_id: TaskQueueId,
    /// The client that changed it.
    pub client_id: String,
    /// The current version of the policy; if it was removed, the version it would have.
    pub policy_version: i64,
    /// The policy; absent if it was removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<QueuePolicy>,
}

/// A session of a worker has started.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq, Eq, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schema(as = SessionStartedMessage)]
pub struct SessionStarted {
    /// Version of the message format.
    version: u8,
    /// The queue.
    pub task_queue_id: TaskQueueId,
    /// The worker.
    pub worker_group: WorkerGroup,
    /// See `workerGroup`.
    pub worker_id: WorkerId,
    /// The session.
    pub session_id: SessionId,
    /// Greater than the epoch of every earlier session.
    pub epoch: i64,
    /// The client that started it.
    pub client_id: String,
}

/// A session of a worker has ended.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq, Eq, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schema(as = SessionEndedMessage)]
pub struct SessionEnded {
    /// Version of the message format.
    version: u8,
    /// The queue.
    pub task_queue_id: TaskQueueId,
    /// The worker.
    pub worker_group: WorkerGroup,
    /// See `workerGroup`.
    pub worker_id: WorkerId,
    /// The session.
    pub session_id: SessionId,
    /// Greater than the epoch of every earlier session.
    pub epoch: i64,
    /// Why it ended.
    pub ended_by: SessionEnd,
    /// Number of runs the session held; all of them leave it. Beyond 2,000 some are returned
    /// shortly afterwards.
    pub returned: i64,
}

/// A task was refused because of the limit of pending tasks in the policy of its queue. At most one
/// message in ten seconds.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq, Eq, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schema(as = BacklogLimitReachedMessage)]
pub struct BacklogLimitReached {
    /// Version of the message format.
    version: u8,
    /// The queue.
    pub task_queue_id: TaskQueueId,
    /// Number of pending tasks.
    pub tasks: i64,
    /// Bytes of their definitions. Absent without a limit of bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<i64>,
    /// The limit in the policy of the queue.
    pub limit: Backlog,
}

/// A server has become the scheduler of a queue.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq, Eq, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schema(as = SchedulerActiveMessage)]
pub struct SchedulerActive {
    /// Version of the message format.
    version: u8,
    /// The queue.
    pub task_queue_id: TaskQueueId,
    /// The server, as in the list of servers.
    pub server_id: ServerId,
    /// Its term, greater than every earlier term of the queue.
    pub term: i64,
}

/// A server is no longer the scheduler of a queue.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq, Eq, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schema(as = SchedulerInactiveMessage)]
pub struct SchedulerInactive {
    /// Version of the message format.
    version: u8,
    /// The queue.
    pub task_queue_id: TaskQueueId,
    /// The server, as in the list of servers.
    pub server_id: ServerId,
    /// Its term, which has ended.
    pub term: i64,
    /// Why the term ended.
    pub ended_by: SchedulerEnd,
}

/// A schedule could not create its task, and continues with its next time.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq, Eq, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schema(as = ScheduleFailedMessage)]
pub struct ScheduleFailed {
    /// Version of the message format.
    version: u8,
    /// The queue of the task.
    pub task_queue_id: TaskQueueId,
    /// Name of the schedule.
    pub name: String,
    /// The time of the schedule.
    pub at: Timestamp,
    /// Why the task was refused.
    pub error: String,
    /// The client that owns the schedule.
    pub client_id: String,
}

/// A subscription was suspended: its receiver gets no more events until it is resumed.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq, Eq, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schema(as = SubscriptionSuspendedMessage)]
pub struct SubscriptionSuspended {
    /// Version of the message format.
    version: u8,
    /// Name of the subscription.
    pub name: String,
    /// Why it was suspended.
    pub suspended_by: SuspendedBy,
    /// Events of the log after this position were not delivered.
    pub position: i64,
    /// Why the last attempt failed, if it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The client that owns the subscription.
    pub client_id: String,
}

/// The map of a partition group changes: another one is proposed, dropped or active.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq, Eq, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schema(as = PartitionsChangedMessage)]
pub struct PartitionsChanged {
    /// Version of the message format.
    version: u8,
    /// Name of the group.
    pub name: String,
    /// Number of the active map.
    pub epoch: i64,
    /// `draining` while members have to acknowledge the next map.
    pub state: PartitionState,
    /// Number of shares of the active map.
    pub replicas: u16,
}

impl Note {
    pub fn partitions_changed(name: String, epoch: i64, state: PartitionState, replicas: u16) -> Self {
        Self::PartitionsChanged(PartitionsChanged { version: VERSION, name, epoch, state, replicas })
    }

    pub fn subscription_suspended(
        name: String,
        suspended_by: SuspendedBy,
        position: i64,
        error: Option<String>,
        client_id: String,
    ) -> Self {
        let version = VERSION;
        Self::SubscriptionSuspended(SubscriptionSuspended { version, name, suspended_by, position, error, client_id })
    }

    pub fn schedule_failed(
        task_queue_id: TaskQueueId,
        name: String,
        at: DateTime<Utc>,
        error: String,
        client_id: String,
    ) -> Self {
        let (version, at) = (VERSION, Timestamp::new(at));
        Self::ScheduleFailed(ScheduleFailed { version, task_queue_id, name, at, error, client_id })
    }

    pub fn task_ready(task_queue_id: TaskQueueId, runs: Vec<ReadyRun>) -> Self {
        Self::TaskReady(TaskReady { version: VERSION, task_queue_id, runs })
    }

    pub fn queue_paused(task_queue_id: TaskQueueId, paused: &crate::policy::pause::Paused) -> Self {
        Self::QueuePaused(QueuePaused {
            version: VERSION,
            task_queue_id,
            client_id: paused.by.clone(),
            since: paused.since.into(),
            reason: paused.reason.clone(),
            until: paused.until.map(Timestamp::new),
        })
    }

    /// Without a client, the pause expired.
    pub fn queue_resumed(task_queue_id: TaskQueueId, client_id: Option<String>) -> Self {
        Self::QueueResumed(QueueResumed { version: VERSION, task_queue_id, client_id })
    }

    pub fn queue_policy_changed(
        task_queue_id: TaskQueueId,
        client_id: String,
        policy_version: i64,
        policy: Option<QueuePolicy>,
    ) -> Self {
        Self::QueuePolicyChanged(Box::new(QueuePolicyChanged {
            version: VERSION,
            task_queue_id,
            client_id,
            policy_version,
            policy,
        }))
    }

    pub fn session_started(session: &Identity, client_id: String) -> Self {
        let Identity { id, epoch, queue, worker_group, worker_id, .. } = session.clone();
        let (task_queue_id, session_id) = (queue, id);
        let version = VERSION;
        Self::SessionStarted(SessionStarted {
            version,
            task_queue_id,
            worker_group,
            worker_id,
            session_id,
            epoch,
            client_id,
        })
    }

    /// `returned` is the number of held runs.
    pub fn session_ended(session: &Identity, ended_by: SessionEnd, returned: i64) -> Self {
        let Identity { id, epoch, queue, worker_group, worker_id, .. } = session.clone();
        let (task_queue_id, session_id) = (queue, id);
        let version = VERSION;
        Self::SessionEnded(SessionEnded {
            version,
            task_queue_id,
            worker_group,
            worker_id,
            session_id,
            epoch,
            ended_by,
            returned,
        })
    }

    pub fn scheduler_active(task_queue_id: TaskQueueId, server_id: ServerId, term: i64) -> Self {
        Self::SchedulerActive(SchedulerActive { version: VERSION, task_queue_id, server_id, term })
    }

    pub fn scheduler_inactive(
        task_queue_id: TaskQueueId,
        server_id: ServerId,
        term: i64,
        ended_by: SchedulerEnd,
    ) -> Self {
        Self::SchedulerInactive(SchedulerInactive { version: VERSION, task_queue_id, server_id, term, ended_by })
    }

    pub fn backlog_limit_reached(task_queue_id: TaskQueueId, tasks: i64, bytes: i64, limit: Backlog) -> Self {
        let bytes = limit.bytes.map(|_| bytes);
        Self::BacklogLimitReached(BacklogLimitReached { version: VERSION, task_queue_id, tasks, bytes, limit })
    }

    pub fn exchange(&self) -> &'static str {
        match self {
            Self::TaskReady(_) => "exchange/tenure/v1/task-ready",
            Self::QueuePaused(_) => "exchange/tenure/v1/queue-paused",
            Self::QueueResumed(_) => "exchange/tenure/v1/queue-resumed",
            Self::QueuePolicyChanged(_) => "exchange/tenure/v1/queue-policy-changed",
            Self::SessionStarted(_) => "exchange/tenure/v1/session-started",
            Self::SessionEnded(_) => "exchange/tenure/v1/session-ended",
            Self::SchedulerActive(_) => "exchange/tenure/v1/scheduler-active",
            Self::SchedulerInactive(_) => "exchange/tenure/v1/scheduler-inactive",
            Self::ScheduleFailed(_) => "exchange/tenure/v1/schedule-failed",
            Self::BacklogLimitReached(_) => "exchange/tenure/v1/backlog-limit-reached",
            Self::SubscriptionSuspended(_) => "exchange/tenure/v1/subscription-suspended",
            Self::PartitionsChanged(_) => "exchange/tenure/v1/partitions-changed",
        }
    }

    /// The queue; none for a note about a subscription or a partition group.
    fn queue(&self) -> Option<&TaskQueueId> {
        match self {
            Self::TaskReady(note) => Some(&note.task_queue_id),
            Self::QueuePaused(note) => Some(&note.task_queue_id),
            Self::QueueResumed(note) => Some(&note.task_queue_id),
            Self::QueuePolicyChanged(note) => Some(&note.task_queue_id),
            Self::SessionStarted(note) => Some(&note.task_queue_id),
            Self::SessionEnded(note) => Some(&note.task_queue_id),
            Self::SchedulerActive(note) => Some(&note.task_queue_id),
            Self::SchedulerInactive(note) => Some(&note.task_queue_id),
            Self::ScheduleFailed(note) => Some(&note.task_queue_id),
            Self::BacklogLimitReached(note) => Some(&note.task_queue_id),
            Self::SubscriptionSuspended(_) | Self::PartitionsChanged(_) => None,
        }
    }

    /// Serializes for the outbox.
    pub fn details(&self) -> Result<String, Unserializable> {
        json::text(&Details { exchange: self.exchange(), payload: self })
    }

    /// Parses stored details. None for a note of a later release.
    pub fn from_details(details: &str) -> Option<Self> {
        let Details { exchange, payload }: Details<'_, &RawValue> = serde_json::from_str(details).ok()?;
        let text = payload.get();
        match exchange.strip_prefix(PREFIX)? {
            "task-ready" => serde_json::from_str(text).ok().map(Self::TaskReady),
            "queue-paused" => serde_json::from_str(text).ok().map(Self::QueuePaused),
            "queue-resumed" => serde_json::from_str(text).ok().map(Self::QueueResumed),
            "queue-policy-changed" => serde_json::from_str(text).ok().map(Self::QueuePolicyChanged),
            "session-started" => serde_json::from_str(text).ok().map(Self::SessionStarted),
            "session-ended" => serde_json::from_str(text).ok().map(Self::SessionEnded),
            "scheduler-active" => serde_json::from_str(text).ok().map(Self::SchedulerActive),
            "scheduler-inactive" => serde_json::from_str(text).ok().map(Self::SchedulerInactive),
            "schedule-failed" => serde_json::from_str(text).ok().map(Self::ScheduleFailed),
            "backlog-limit-reached" => serde_json::from_str(text).ok().map(Self::BacklogLimitReached),
            "subscription-suspended" => serde_json::from_str(text).ok().map(Self::SubscriptionSuspended),
            "partitions-changed" => serde_json::from_str(text).ok().map(Self::PartitionsChanged),
            _ => None,
        }
    }
}

#[derive(Serialize, Deserialize)]
struct Details<'a, T> {
    exchange: &'a str,
    payload: T,
}

pub fn render(at: DateTime<Utc>, details: &str, position: i64) -> Option<Event> {
    let note = Note::from_details(details)?;
    let routing_key = match note.queue() {
        Some(queue) => format!("primary.{}.{}._", queue.provisioner_id(), queue.worker_type()),
        None => "primary._".to_owned(),
    };
    Some(Event {
        position,
        time: Timestamp::new(at),
        exchange: note.exchange(),
        routing_key,
        cc: Vec::new(),
        unique: None,
        payload: Payload::Note(note),
    })
}

#[cfg(test)]
#[path = "note_tests.rs"]
mod tests;
