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
    #[must_use]
    pub fn task_ready(task_queue_id: TaskQueueId, runs: Vec<ReadyRun>) -> Self {
        Self::TaskReady(TaskReady { version: VERSION, task_queue_id, runs })
    }

    /// A queue was paused.
    #[must_use]
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
    #[must_use]
    pub fn queue_resumed(task_queue_id: TaskQueueId, client_id: Option<String>) -> Self {
        Self::QueueResumed(QueueResumed { version: VERSION, task_queue_id, client_id })
    }

    /// The policy of a queue was changed, or removed.
    #[must_use]
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
    #[must_use]
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
    #[must_use]
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
    #[must_use]
    pub fn scheduler_active(task_queue_id: TaskQueueId, server_id: ServerId, term: i64) -> Self {
        Self::SchedulerActive(SchedulerActive { version: VERSION, task_queue_id, server_id, term })
    }

    /// The term of a server as the scheduler of a queue is over.
    #[must_use]
    pub fn scheduler_inactive(
        task_queue_id: TaskQueueId,
        server_id: ServerId,
        term: i64,
        ended_by: SchedulerEnd,
    ) -> Self {
        Self::SchedulerInactive(SchedulerInactive { version: VERSION, task_queue_id, server_id, term, ended_by })
    }

    /// The exchange's full name.
    #[must_use]
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
    #[must_use]
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
    #[must_use]
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
#[must_use]
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
mod tests {
    use super::*;
    use crate::events::Kind;
    use crate::policy::pause::Paused;
    use serde_json::json;

    fn session_of(queue: &TaskQueueId) -> Identity {
        Identity {
            id: "b4cf1f7d-1b1c-4a8b-9d3f-5f0f4d6f2a10".parse().unwrap(),
            epoch: 7,
            queue: queue.clone(),
            worker_group: "rack-1".parse().unwrap(),
            worker_id: "worker-1".parse().unwrap(),
            ttl: 120,
            started: DateTime::UNIX_EPOCH,
        }
    }

    fn notes() -> Vec<(Note, serde_json::Value)> {
        let queue: TaskQueueId = "acme/linux".parse().unwrap();
        let paused = Paused {
            since: DateTime::UNIX_EPOCH,
            by: "ann".into(),
            reason: Some("disk\u{0}".into()),
            until: DateTime::from_timestamp(60, 0),
        };
        let run = ReadyRun {
            task_id: "9HrBC1jMQ3KlZw4CssPUeQ".parse().unwrap(),
            run_id: RunId::FIRST,
            priority: Priority::High,
        };
        let policy = QueuePolicy { delay: Some(30), ..QueuePolicy::default() };
        let session = session_of(&queue);
        let of_session = |mut fields: serde_json::Value| {
            fields["version"] = 1.into();
            fields["taskQueueId"] = "acme/linux".into();
            fields["workerGroup"] = "rack-1".into();
            fields["workerId"] = "worker-1".into();
            fields["sessionId"] = "b4cf1f7d-1b1c-4a8b-9d3f-5f0f4d6f2a10".into();
            fields["epoch"] = 7.into();
            fields
        };
        let server: ServerId = "3f0c6a52-9c1e-4b57-8a43-2d1f6e9b7c05".parse().unwrap();
        let (zero, minute) = ("1970-01-01T00:00:00.000Z", "1970-01-01T00:01:00.000Z");
        vec![
            (
                Note::task_ready(queue.clone(), vec![run]),
                json!({"version": 1, "taskQueueId": "acme/linux",
                    "runs": [{"taskId": "9HrBC1jMQ3KlZw4CssPUeQ", "runId": 0, "priority": "high"}]}),
            ),
            (
                Note::queue_paused(queue.clone(), &paused),
                json!({"version": 1, "taskQueueId": "acme/linux", "clientId": "ann", "since": zero, "reason": "disk\u{0}",
                    "until": minute}),
            ),
            (Note::queue_resumed(queue.clone(), None), json!({"version": 1, "taskQueueId": "acme/linux"})),
            (
                Note::queue_resumed(queue.clone(), Some("ann".into())),
                json!({"version": 1, "taskQueueId": "acme/linux", "clientId": "ann"}),
            ),
            (
                Note::queue_policy_changed(queue.clone(), "ann".into(), 7, Some(policy)),
                json!({"version": 1, "taskQueueId": "acme/linux", "clientId": "ann", "policyVersion": 7,
                    "policy": {"delay": 30}}),
            ),
            (
                Note::scheduler_active(queue.clone(), server, 4),
                json!({"version": 1, "taskQueueId": "acme/linux", "serverId": server, "term": 4}),
            ),
            (
                Note::scheduler_inactive(queue.clone(), server, 3, SchedulerEnd::Lost),
                json!({"version": 1, "taskQueueId": "acme/linux", "serverId": server, "term": 3, "endedBy": "lost"}),
            ),
            (
                Note::queue_policy_changed(queue, "ann".into(), 8, None),
                json!({"version": 1, "taskQueueId": "acme/linux", "clientId": "ann", "policyVersion": 8}),
            ),
            (Note::session_started(&session, "ann".into()), of_session(json!({"clientId": "ann"}))),
            (
                Note::session_ended(&session, SessionEnd::Takeover, 3),
                of_session(json!({"endedBy": "takeover", "returned": 3})),
            ),
        ]
    }

    #[test]
    fn a_note_reads_as_it_was_emitted() {
        for (note, payload) in notes() {
            let details = note.details().unwrap();
            assert!(!details.contains('\0'), "a column of text cannot hold it");
            assert_eq!(Note::from_details(&details), Some(note.clone()));
            let event = render(DateTime::UNIX_EPOCH, &details, 5).unwrap();
            let expected = json!({"position": 5, "time": "1970-01-01T00:00:00.000Z", "exchange": note.exchange(),
                "routingKey": "primary.acme.linux._", "cc": [], "payload": payload});
            assert_eq!(serde_json::to_value(&event).unwrap(), expected);
        }
    }

    /// The document says that a payload is one of them, and a reader may tell them apart by their fields alone.
    #[test]
    fn no_message_has_the_form_of_another() {
        fn fits<T: serde::de::DeserializeOwned>(payload: &serde_json::Value) -> u32 {
            u32::from(serde_json::from_str::<T>(&payload.to_string()).is_ok())
        }
        for (_, payload) in notes() {
            let forms = fits::<TaskReady>(&payload)
                + fits::<QueuePaused>(&payload)
                + fits::<QueueResumed>(&payload)
                + fits::<QueuePolicyChanged>(&payload)
                + fits::<SessionStarted>(&payload)
                + fits::<SessionEnded>(&payload)
                + fits::<SchedulerActive>(&payload)
                + fits::<SchedulerInactive>(&payload);
            assert_eq!(forms, 1, "{payload}");
        }
    }

    #[test]
    fn every_exchange_has_a_note_and_none_is_one_of_tasks() {
        let emitted: std::collections::BTreeSet<&str> = notes().iter().map(|(note, _)| note.exchange()).collect();
        let listed = EXCHANGES.map(|name| format!("{PREFIX}{name}"));
        assert_eq!(emitted, listed.iter().map(String::as_str).collect());
        assert!(EXCHANGES.iter().all(|name| !crate::event_filter::EXCHANGES.contains(name)));
        assert!(Kind::from_code(KIND).is_none() && Kind::from_code(KIND - 1).is_some(), "the next number");
    }

    #[test]
    fn what_is_no_note_of_ours_is_left_out() {
        for details in [
            "",
            "{}",
            r#"{"exchange": "exchange/tenure/v1/later", "payload": {}}"#,
            r#"{"exchange": "exchange/taskcluster-queue/v1/task-ready", "payload": {}}"#,
            r#"{"exchange": "exchange/tenure/v1/queue-resumed", "payload": {"version": 1}}"#,
        ] {
            assert!(render(DateTime::UNIX_EPOCH, details, 1).is_none(), "{details}");
        }
    }
}
