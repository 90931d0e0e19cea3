//! The bodies about sessions of workers.
//!
//! Ranges are not checked here: a number that is out of its range is read, so that the rule that refuses it can name both.

use serde::{Deserialize, Serialize};
use utoipa::openapi::RefOr;
use utoipa::openapi::schema::{KnownFormat, Object, Schema, SchemaFormat, Type};
use utoipa::{PartialSchema, ToSchema};

use crate::dates::Timestamp;
use crate::ids::{RunId, SessionId, TaskId, TaskQueueId, WorkerGroup, WorkerId};
use crate::policy::present_seconds;
use crate::schema;
use crate::states::{EndedBy, Priority, ReasonResolved, RunState, SessionEnd, TaskCommand, WorkerCommand};
use crate::structure::present;

/// What a worker says of itself when it begins.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq, Eq, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct StartSessionRequest {
    /// The queue whose tasks it takes.
    pub task_queue_id: TaskQueueId,
    /// The worker.
    pub worker_group: WorkerGroup,
    /// See `workerGroup`.
    pub worker_id: WorkerId,
    /// For how many seconds the session goes on after a renewal. Default 120.
    #[serde(default, deserialize_with = "present_seconds", skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 15, maximum = 3600)]
    pub ttl: Option<i64>,
    /// Of several workers that are free, the one with the greatest weight is given tasks first. Default 1.
    #[serde(default, deserialize_with = "present_seconds", skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 0, maximum = 65_535)]
    pub weight: Option<i64>,
    /// How many tasks it may be given at a time. Default 1.
    #[serde(default, deserialize_with = "present_seconds", skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 0, maximum = 1000)]
    pub capacity: Option<i64>,
    /// Whether a session of the same worker that is live is ended by this one. Default: this one is refused.
    #[serde(default)]
    pub takeover: bool,
    /// The version of the queue's policy that the worker was written for. With another one the session is refused.
    #[serde(default, deserialize_with = "present_seconds", skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 0)]
    pub policy_version: Option<i64>,
}

/// A session has begun.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq, Eq, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct SessionStarted {
    /// Names the session in all later calls.
    pub session_id: SessionId,
    /// Greater than that of every earlier session.
    pub epoch: i64,
    /// Since when it is live.
    pub started: Timestamp,
    /// Until when, unless it is renewed.
    pub expires: Timestamp,
    /// The server's time.
    pub server_time: Timestamp,
    /// The version of the queue's policy; 0 if it never had one.
    pub policy_version: i64,
}

/// A renewal, with what has changed of the worker.
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
    /// Whether the worker takes no more tasks for now.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub frozen: Option<bool>,
}

/// A session was renewed.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq, Eq, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct SessionRenewed {
    /// Until when it is live, unless it is renewed again.
    pub expires: Timestamp,
    /// The server's time.
    pub server_time: Timestamp,
}

/// What a session is to know.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq, Eq, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Inbox {
    /// Until when the session is live, unless it is renewed again: reading the inbox renews it.
    pub expires: Timestamp,
    /// The server's time.
    pub server_time: Timestamp,
    /// The version of the queue's policy; 0 if it never had one.
    pub policy_version: i64,
    /// Oldest first, 1,000 at most. Each is answered until a request acknowledges it by `after`.
    pub items: Vec<InboxItem>,
}

/// One thing that a session is to know.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
pub struct InboxItem {
    /// Grows within the session.
    pub id: i64,
    /// What it is.
    #[serde(flatten)]
    pub what: InboxEvent,
}

impl PartialSchema for InboxItem {
    /// The kinds of event, each with an id. Code generators drop an `allOf` of the id and a choice.
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

/// What an item of an inbox says.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq, Eq, ToSchema)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum InboxEvent {
    /// A run of the session ended, and not by a report of its worker: stop working on it.
    #[serde(rename_all = "camelCase")]
    RunEnded {
        /// The task.
        task_id: TaskId,
        /// The run.
        run_id: RunId,
        /// How it ended.
        state: RunState,
        /// Why.
        reason_resolved: ReasonResolved,
        /// What ended it, where `reasonResolved` does not say it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        ended_by: Option<EndedBy>,
    },
    /// An operator, or a balancer, wants something of the worker.
    #[serde(rename_all = "camelCase")]
    Command {
        /// What.
        command: WorkerCommand,
        /// The task that is to be stopped.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        task_id: Option<TaskId>,
    },
    /// The last command for a task whose run the session holds. It is there until a checkpoint says that it was carried out.
    #[serde(rename_all = "camelCase")]
    TaskCommand {
        /// The task.
        task_id: TaskId,
        /// The run that the session holds.
        run_id: RunId,
        /// The id of the command.
        command_id: i64,
        /// What.
        command: TaskCommand,
        /// Until when the task is to sleep.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        until: Option<Timestamp>,
    },
    /// A run was given to the session: accept it with claimTask, naming the session.
    #[serde(rename_all = "camelCase")]
    Assigned {
        /// The task.
        task_id: TaskId,
        /// The run.
        run_id: RunId,
        /// The priority of the task.
        priority: Priority,
        /// Until when it may be accepted; absent without a limit.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        accept_by: Option<Timestamp>,
    },
}

/// A session was ended by its worker.
#[derive(Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct SessionReturned {
    /// How many runs left it, those that ended as exceptions among them.
    pub returned: i64,
}

/// A session.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq, Eq, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Session {
    /// Its name.
    pub session_id: SessionId,
    /// Greater than that of every earlier session.
    pub epoch: i64,
    /// The queue whose tasks its worker takes.
    pub task_queue_id: TaskQueueId,
    /// The worker.
    pub worker_group: WorkerGroup,
    /// See `workerGroup`.
    pub worker_id: WorkerId,
    /// For how many seconds it goes on after a renewal.
    pub ttl: i64,
    /// As the worker said last.
    pub weight: i64,
    /// As the worker said last.
    pub capacity: i64,
    /// Whether its worker takes no more tasks for now.
    pub frozen: bool,
    /// Since when it is live.
    pub started: Timestamp,
    /// Until when, unless it is renewed; of one that has ended, until when it would have been.
    pub expires: Timestamp,
    /// How many runs it holds.
    pub running: i64,
    /// How many runs are assigned to it and not accepted yet.
    pub assigned: i64,
    /// When it ended; absent while it is live.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<Timestamp>,
    /// What ended it; absent while it is live.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_by: Option<SessionEnd>,
}

/// The live sessions of a queue, at one moment in time.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq, Eq, ToSchema)]
pub struct QueueWorkers {
    /// By worker group and worker, 10,000 at most.
    pub workers: Vec<QueueWorker>,
}

/// A live session of a queue.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq, Eq, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct QueueWorker {
    /// The worker.
    pub worker_group: WorkerGroup,
    /// See `workerGroup`.
    pub worker_id: WorkerId,
    /// Its session.
    pub session_id: SessionId,
    /// How many runs it holds.
    pub running: i64,
    /// How many runs are assigned to it and not accepted yet.
    pub assigned: i64,
    /// How many it may be given at a time.
    pub capacity: i64,
    /// Its weight.
    pub weight: i64,
    /// Whether it takes no more tasks for now.
    pub frozen: bool,
    /// Since when it is live.
    pub started: Timestamp,
    /// Until when, unless it is renewed.
    pub expires: Timestamp,
}

/// What a worker is to do.
#[derive(Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CommandRequest {
    /// What.
    pub command: WorkerCommand,
    /// The task that is to be stopped: with `stop-task`, and only with it.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub task_id: Option<TaskId>,
}

/// A command was put into the inbox of a session.
#[derive(Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq, ToSchema)]
pub struct CommandSent {
    /// The item's id.
    pub id: i64,
}
