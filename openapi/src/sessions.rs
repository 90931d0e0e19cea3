//! Bodies about sessions of workers.
//!
//! Ranges are not checked here: an out-of-range number is parsed, so that the rule that refuses it
//! can name the number and the range.

use serde::{Deserialize, Serialize};
use utoipa::openapi::RefOr;
use utoipa::openapi::schema::{KnownFormat, Object, Schema, SchemaFormat, Type};
use utoipa::{PartialSchema, ToSchema};

use crate::dates::Timestamp;
use crate::ids::{QueueName, RunId, SessionId, TaskId, TaskQueueId, WorkerGroup, WorkerId, queue_name};
use crate::policy::present_seconds;
use crate::schema;
use crate::states::{EndedBy, Priority, ReasonResolved, RunState, SessionEnd, TaskCommand, WorkerCommand};
use crate::structure::present;

/// A new session of a worker.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq, Eq, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct StartSessionRequest {
    /// The queue whose tasks it takes.
    #[serde(deserialize_with = "queue_name")]
    #[schema(value_type = QueueName)]
    pub task_queue_id: TaskQueueId,
    pub worker_group: WorkerGroup,
    pub worker_id: WorkerId,
    /// Lifetime after a renewal, in seconds. Default 120.
    #[serde(default, deserialize_with = "present_seconds", skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 15, maximum = 3600)]
    pub ttl: Option<i64>,
    /// Of several free workers, the one with the greatest weight is assigned tasks first. Default
    /// 1.
    #[serde(default, deserialize_with = "present_seconds", skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 0, maximum = 65_535)]
    pub weight: Option<i64>,
    /// Maximum number of tasks at a time. Default 1.
    #[serde(default, deserialize_with = "present_seconds", skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 0, maximum = 1000)]
    pub capacity: Option<i64>,
    /// True to end a live session of the same worker. By default the new session is refused.
    #[serde(default)]
    pub takeover: bool,
    /// The policy version that the worker was written for. With any other version the session is
    /// refused.
    #[serde(default, deserialize_with = "present_seconds", skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 0)]
    pub policy_version: Option<i64>,
}

#[derive(Serialize, Deserialize, Debug, Clone, PartialEq, Eq, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct SessionStarted {
    pub session_id: SessionId,
    /// Greater than that of every earlier session.
    pub epoch: i64,
    pub started: Timestamp,
    /// Expiry unless renewed.
    pub expires: Timestamp,
    pub server_time: Timestamp,
    /// The version of the queue's policy; 0 if it never had one.
    pub policy_version: i64,
}

/// A renewal with changes of the worker.
#[derive(Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq, Default, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RenewSessionRequest {
    /// As at the start.
    #[serde(default, deserialize_with = "present_seconds", skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 0, maximum = 65_535)]
    pub weight: Option<i64>,
    /// As at the start.
    #[serde(default, deserialize_with = "present_seconds", skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 0, maximum = 1000)]
    pub capacity: Option<i64>,
    /// True while the worker takes no more tasks.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub frozen: Option<bool>,
}

#[derive(Serialize, Deserialize, Debug, Clone, PartialEq, Eq, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct SessionRenewed {
    /// Expiry unless renewed again.
    pub expires: Timestamp,
    pub server_time: Timestamp,
}

#[derive(Serialize, Deserialize, Debug, Clone, PartialEq, Eq, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Inbox {
    /// Expiry of the session unless renewed again: reading the inbox renews it.
    pub expires: Timestamp,
    pub server_time: Timestamp,
    /// The version of the queue's policy; 0 if it never had one.
    pub policy_version: i64,
    /// Oldest first, 1,000 at most. Each is repeated until a request acknowledges it by `after`.
    pub items: Vec<InboxItem>,
}

#[derive(Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
pub struct InboxItem {
    /// Grows within the session.
    pub id: i64,
    #[serde(flatten)]
    pub what: InboxEvent,
}

impl PartialSchema for InboxItem {
    /// Returns the event variants with an id in each. Code generators drop an `allOf` of id and
    /// variants.
    fn schema() -> RefOr<Schema> {
        let id = Object::builder()
            .schema_type(Type::Integer)
            .format(Some(SchemaFormat::KnownFormat(KnownFormat::Int64)))
            .description(Some("Grows within the session."));
        schema::with_field(InboxEvent::schema(), "One thing that a session is to know.", "id", &id.into())
    }
}

impl ToSchema for InboxItem {
    fn schemas(schemas: &mut Vec<(String, RefOr<Schema>)>) {
        InboxEvent::schemas(schemas);
    }
}

/// The content of an inbox item.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq, Eq, ToSchema)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum InboxEvent {
    /// A run of the session ended, not by a report of its worker: stop working on it.
    #[serde(rename_all = "camelCase")]
    RunEnded {
        task_id: TaskId,
        run_id: RunId,
        state: RunState,
        reason_resolved: ReasonResolved,
        /// The cause, where `reasonResolved` does not tell it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        ended_by: Option<EndedBy>,
        /// True if its result may still count: its worker may finish and report it as completed.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        result_counts: bool,
    },
    /// A command from an operator or a balancer.
    #[serde(rename_all = "camelCase")]
    Command {
        command: WorkerCommand,
        /// The task to stop.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        task_id: Option<TaskId>,
    },
    /// The last command for a task whose run the session holds. It stays until a checkpoint
    /// acknowledges it.
    #[serde(rename_all = "camelCase")]
    TaskCommand {
        task_id: TaskId,
        /// The run that the session holds.
        run_id: RunId,
        command_id: i64,
        command: TaskCommand,
        /// End of the sleep.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        until: Option<Timestamp>,
    },
    /// A run was assigned to the session: accept it with claimTask, naming the session.
    #[serde(rename_all = "camelCase")]
    Assigned {
        task_id: TaskId,
        run_id: RunId,
        priority: Priority,
        /// Deadline for its acceptance; absent without a limit.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        accept_by: Option<Timestamp>,
    },
}

#[derive(Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct SessionReturned {
    /// Number of runs that left it, including those that ended as exceptions.
    pub returned: i64,
}

#[derive(Serialize, Deserialize, Debug, Clone, PartialEq, Eq, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Session {
    pub session_id: SessionId,
    /// Greater than that of every earlier session.
    pub epoch: i64,
    /// The queue whose tasks its worker takes.
    pub task_queue_id: TaskQueueId,
    pub worker_group: WorkerGroup,
    pub worker_id: WorkerId,
    /// Lifetime after a renewal, in seconds.
    pub ttl: i64,
    /// The worker's last value.
    pub weight: i64,
    /// The worker's last value.
    pub capacity: i64,
    /// True while its worker takes no more tasks.
    pub frozen: bool,
    pub started: Timestamp,
    /// When it expires unless renewed; for an ended session, when it would have expired.
    pub expires: Timestamp,
    /// Claimed runs.
    pub running: i64,
    /// Runs assigned to it and not accepted yet.
    pub assigned: i64,
    /// Absent while it is live.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<Timestamp>,
    /// Absent while it is live.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_by: Option<SessionEnd>,
}

/// The live sessions of a queue, at one moment.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq, Eq, ToSchema)]
pub struct QueueWorkers {
    /// By worker group and worker, 10,000 at most.
    pub workers: Vec<QueueWorker>,
}

#[derive(Serialize, Deserialize, Debug, Clone, PartialEq, Eq, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct QueueWorker {
    pub worker_group: WorkerGroup,
    pub worker_id: WorkerId,
    pub session_id: SessionId,
    /// Claimed runs.
    pub running: i64,
    /// Runs assigned to it and not accepted yet.
    pub assigned: i64,
    /// Maximum number of tasks at a time.
    pub capacity: i64,
    pub weight: i64,
    /// True while it takes no more tasks.
    pub frozen: bool,
    pub started: Timestamp,
    /// Expiry unless renewed.
    pub expires: Timestamp,
}

/// A command for a worker.
#[derive(Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CommandRequest {
    pub command: WorkerCommand,
    /// The task to stop: with `stop-task`, and only with it.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub task_id: Option<TaskId>,
}

/// A command in the inbox of a session.
#[derive(Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq, ToSchema)]
pub struct CommandSent {
    pub id: i64,
}
