//! Notes: events about queues, on exchanges of our own. The outbox keeps exchange and message of a note as they are emitted,
//! because there is no task or group whose state they could be made from.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tenure_api::dates::Timestamp;
use tenure_api::ids::{RunId, ServerId, SessionId, TaskId, TaskQueueId, WorkerGroup, WorkerId};
use tenure_api::policy::QueuePolicy;
use tenure_api::states::{Priority, SchedulerEnd, SessionEnd};
use utoipa::ToSchema;

use super::{Event, Payload};
use crate::json::{self, Unserializable};
use crate::session::Identity;

/// The number of the kind by which the outbox stores a note.
pub const KIND: i16 = 14;
/// Runs that one note names at most.
pub const RUNS_MAX: usize = 200;
/// Prefix of the names of these exchanges.
pub const PREFIX: &str = "exchange/tenure/v1/";
/// The short names of these exchanges.
pub const EXCHANGES: [&str; 8] = [
    "task-ready",
    "queue-paused",
    "queue-resumed",
    "queue-policy-changed",
    "session-started",
    "session-ended",
    "scheduler-active",
    "scheduler-inactive",
];
const VERSION: u8 = 1;

/// The message of a note.
#[derive(Serialize, Debug, Clone, PartialEq, ToSchema)]
#[serde(untagged)]
#[schema(as = NoteEventPayload)]
pub enum Note {
    /// Runs can be claimed whose delay has ended.
    TaskReady(TaskReady),
    /// A queue was paused, or its pause changed.
    QueuePaused(QueuePaused),
    /// A queue was resumed.
    QueueResumed(QueueResumed),
    /// The policy of a queue was changed or removed.
    QueuePolicyChanged(Box<QueuePolicyChanged>),
    /// A session of a worker has begun.
    SessionStarted(SessionStarted),
    /// A session of a worker has ended.
    SessionEnded(SessionEnded),
    /// A server gives out the runs of a queue from now on.
    SchedulerActive(SchedulerActive),
    /// A server does so no more.
    SchedulerInactive(SchedulerInactive),
}

/// Runs of a queue can be claimed whose delay has ended.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq, Eq, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TaskReady {
    /// Of the form of this message.
    version: u8,
    /// The queue.
    pub task_queue_id: TaskQueueId,
    /// The runs, 200 at most.
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
    /// How urgent it is.
    pub priority: Priority,
}

/// A queue was paused, or its pause changed.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq, Eq, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct QueuePaused {
    /// Of the form of this message.
    version: u8,
    /// The queue.
    pub task_queue_id: TaskQueueId,
    /// Who did it.
    pub client_id: String,
    /// Since when it is paused.
    pub since: Timestamp,
    /// Why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// When it resumes by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<Timestamp>,
}

/// A queue was resumed.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq, Eq, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct QueueResumed {
    /// Of the form of this message.
    version: u8,
    /// The queue.
    pub task_queue_id: TaskQueueId,
    /// Who did it; absent if the time of the pause was over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_id: Option<String>,
}

/// The policy of a queue was changed or removed.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct QueuePolicyChanged {
    /// Of the form of this message.
    version: u8,
    /// The queue.
    pub task_queue_id: TaskQueueId,
    /// Who did it.
    pub client_id: String,
    /// The version that the policy has now, or would have.
    pub policy_version: i64,
    /// The policy; absent if it was removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<QueuePolicy>,
}

/// A session of a worker has begun.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq, Eq, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schema(as = SessionStartedMessage)]
pub struct SessionStarted {
    /// Of the form of this message.
    version: u8,
    /// The queue.
    pub task_queue_id: TaskQueueId,
    /// The worker.
    pub worker_group: WorkerGroup,
    /// See `workerGroup`.
    pub worker_id: WorkerId,
    /// The session.
    pub session_id: SessionId,
    /// Greater than that of every earlier session.
    pub epoch: i64,
    /// Who started it.
    pub client_id: String,
}

/// A session of a worker has ended.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq, Eq, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schema(as = SessionEndedMessage)]
pub struct SessionEnded {
    /// Of the form of this message.
    version: u8,
    /// The queue.
    pub task_queue_id: TaskQueueId,
    /// The worker.
    pub worker_group: WorkerGroup,
    /// See `workerGroup`.
    pub worker_id: WorkerId,
    /// The session.
    pub session_id: SessionId,
    /// Greater than that of every earlier session.
    pub epoch: i64,
    /// What ended it.
    pub ended_by: SessionEnd,
    /// How many runs it held when it ended: all of them leave it. Of more than 2,000 some are given back right afterwards.
    pub returned: i64,
}

/// A server gives out the runs of a queue from now on.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq, Eq, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schema(as = SchedulerActiveMessage)]
pub struct SchedulerActive {
    /// Of the form of this message.
    version: u8,
    /// The queue.
    pub task_queue_id: TaskQueueId,
    /// The server, as the list of servers has it.
    pub server_id: ServerId,
    /// Its term, greater than every earlier one of the queue.
    pub term: i64,
}

/// A server gives out the runs of a queue no more.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq, Eq, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schema(as = SchedulerInactiveMessage)]
pub struct SchedulerInactive {
    /// Of the form of this message.
    version: u8,
    /// The queue.
    pub task_queue_id: TaskQueueId,
    /// The server, as the list of servers has it.
    pub server_id: ServerId,
    /// Its term, which is over.
    pub term: i64,
    /// Why it is over.
    pub ended_by: SchedulerEnd,
}

impl Note {
    /// Runs of a queue are ready.
    pub fn task_ready(task_queue_id: TaskQueueId, runs: Vec<ReadyRun>) -> Self {
        Self::TaskReady(TaskReady { version: VERSION, task_queue_id, runs })
    }

    /// A queue was paused.
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

    /// A queue was resumed, by this client or by itself.
    pub fn queue_resumed(task_queue_id: TaskQueueId, client_id: Option<String>) -> Self {
        Self::QueueResumed(QueueResumed { version: VERSION, task_queue_id, client_id })
    }

    /// The policy of a queue was changed, or removed.
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

    /// A session has begun, by this client.
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

    /// A session has ended that held so many runs.
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

    /// A server is the scheduler of a queue in this term.
    pub fn scheduler_active(task_queue_id: TaskQueueId, server_id: ServerId, term: i64) -> Self {
        Self::SchedulerActive(SchedulerActive { version: VERSION, task_queue_id, server_id, term })
    }

    /// The term of a server as the scheduler of a queue is over.
    pub fn scheduler_inactive(
        task_queue_id: TaskQueueId,
        server_id: ServerId,
        term: i64,
        ended_by: SchedulerEnd,
    ) -> Self {
        Self::SchedulerInactive(SchedulerInactive { version: VERSION, task_queue_id, server_id, term, ended_by })
    }

    /// The exchange's full name.
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
        }
    }

    /// The queue that it is about.
    pub fn queue(&self) -> &TaskQueueId {
        match self {
            Self::TaskReady(note) => &note.task_queue_id,
            Self::QueuePaused(note) => &note.task_queue_id,
            Self::QueueResumed(note) => &note.task_queue_id,
            Self::QueuePolicyChanged(note) => &note.task_queue_id,
            Self::SessionStarted(note) => &note.task_queue_id,
            Self::SessionEnded(note) => &note.task_queue_id,
            Self::SchedulerActive(note) => &note.task_queue_id,
            Self::SchedulerInactive(note) => &note.task_queue_id,
        }
    }

    /// The details with which the outbox stores it.
    pub fn details(&self) -> Result<String, Unserializable> {
        json::text(&Details { exchange: self.exchange(), payload: self })
    }

    /// Reads details that were stored. None: a note of a release that knows more of them.
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
            _ => None,
        }
    }
}

#[derive(Serialize, Deserialize)]
struct Details<'a, T> {
    exchange: &'a str,
    payload: T,
}

/// Renders a note that was stored with these details.
pub fn render(at: DateTime<Utc>, details: &str, position: i64) -> Option<Event> {
    let note = Note::from_details(details)?;
    let queue = note.queue();
    Some(Event {
        position,
        time: Timestamp::new(at),
        exchange: note.exchange(),
        routing_key: format!("primary.{}.{}._", queue.provisioner_id(), queue.worker_type()),
        cc: Vec::new(),
        payload: Payload::Note(note),
    })
}

#[cfg(test)]
#[path = "note_tests.rs"]
mod tests;
