//! Request and response bodies. Field names, defaults and limits are those of the Taskcluster Queue API.

use serde::{Deserialize, Serialize, Serializer};
use serde_json::value::RawValue;
use std::collections::BTreeMap;
use utoipa::openapi::RefOr;
use utoipa::openapi::schema::Schema;
use utoipa::{PartialSchema, ToSchema};

use crate::credentials::Credentials;
use crate::dates::Timestamp;
use crate::ids::{
    ProjectId, ProvisionerId, RunId, SchedulerId, SessionId, SlugId, TaskGroupId, TaskId, TaskQueueId, WorkerGroup,
    WorkerId, WorkerType,
};
use crate::policy::present_seconds;
use crate::schema::{Route, Scope, TagValue};
use crate::states::{ExceptionReason, Priority, ReasonCreated, ReasonResolved, Requires, RunState, TaskState};
use crate::structure::{object, present};
use crate::whole::{one, present_whole, whole};

/// The body of createTask, as it was sent. `payload` and `extra` stay the bytes that they are.
#[derive(Deserialize, Debug, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CreateTaskRequest<'a> {
    /// With `workerType`, one way to name the queue.
    #[serde(default, deserialize_with = "present")]
    pub provisioner_id: Option<ProvisionerId>,
    /// See `provisionerId`.
    #[serde(default, deserialize_with = "present")]
    pub worker_type: Option<WorkerType>,
    /// The other way to name the queue; when both are given they must agree.
    #[serde(default, deserialize_with = "present")]
    pub task_queue_id: Option<TaskQueueId>,
    /// Default `-`.
    #[serde(default, deserialize_with = "present")]
    pub scheduler_id: Option<SchedulerId>,
    /// Default `none`.
    #[serde(default, deserialize_with = "present")]
    pub project_id: Option<ProjectId>,
    /// Default: the task's own id.
    #[serde(default, deserialize_with = "present")]
    pub task_group_id: Option<TaskGroupId>,
    /// Tasks that must be resolved first.
    #[serde(default)]
    #[schema(max_items = 10_000, value_type = HashSet<SlugId>)]
    pub dependencies: Vec<SlugId>,
    /// How the dependencies must be resolved.
    #[serde(default, deserialize_with = "present")]
    pub requires: Option<Requires>,
    /// Extra routing keys of the task's events.
    #[serde(default)]
    #[schema(max_items = 64, value_type = HashSet<Route>)]
    pub routes: Vec<String>,
    /// Default `lowest`.
    #[serde(default, deserialize_with = "present")]
    pub priority: Option<Priority>,
    /// Default 5.
    #[serde(default, deserialize_with = "present_whole")]
    #[schema(maximum = 49, default = 5)]
    pub retries: Option<u16>,
    /// When the submitter made the task; within 15 minutes of now.
    pub created: Timestamp,
    /// When the task ends as an exception if it is not resolved.
    pub deadline: Timestamp,
    /// When the task is purged. Default: a year after the deadline.
    #[serde(default, deserialize_with = "present")]
    pub expires: Option<Timestamp>,
    /// What the task's own credentials may do.
    #[serde(default)]
    #[schema(value_type = Vec<Scope>)]
    pub scopes: Vec<String>,
    /// For the worker; any JSON object.
    #[serde(borrow)]
    #[schema(value_type = Object)]
    pub payload: &'a RawValue,
    /// For people.
    #[serde(deserialize_with = "object")]
    pub metadata: Metadata,
    /// For searching.
    #[serde(default)]
    #[schema(value_type = BTreeMap<String, TagValue>)]
    pub tags: BTreeMap<String, String>,
    /// Anything else; any JSON object, in which `tenure` has the options of the task. Default `{}`.
    #[serde(borrow, default, deserialize_with = "present")]
    #[schema(value_type = Option<Object>)]
    pub extra: Option<&'a RawValue>,
}

/// What people want to know of a task.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq, Eq, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Metadata {
    /// Up to 255 characters.
    #[schema(max_length = 255)]
    pub name: String,
    /// Up to 32,768 characters.
    #[schema(max_length = 32_768)]
    pub description: String,
    /// Up to 255 characters.
    #[schema(max_length = 255)]
    pub owner: String,
    /// A URL of up to 4,096 characters.
    #[schema(max_length = 4_096, pattern = "^(https?://|ssh://|git@)")]
    pub source: String,
}

/// A task's definition as it is stored and given back: defaults filled in, never changed afterwards.
#[derive(Serialize, Debug, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct TaskDefinition<'a> {
    /// The first half of the queue's id.
    pub provisioner_id: &'a str,
    /// The second half of the queue's id.
    pub worker_type: &'a str,
    /// Where workers find the task.
    pub task_queue_id: &'a TaskQueueId,
    /// Who owns the group.
    pub scheduler_id: &'a SchedulerId,
    /// What the task is accounted to.
    pub project_id: &'a ProjectId,
    /// The group.
    pub task_group_id: TaskGroupId,
    /// Tasks that must be resolved first.
    pub dependencies: &'a [SlugId],
    /// How they must be resolved.
    pub requires: Requires,
    /// Extra routing keys of the task's events.
    pub routes: &'a [String],
    /// How urgent it is now.
    pub priority: Priority,
    /// How many retries the task starts with.
    pub retries: u16,
    /// When the submitter made it.
    pub created: Timestamp,
    /// When it ends as an exception if it is not resolved.
    pub deadline: Timestamp,
    /// When it is purged.
    pub expires: Timestamp,
    /// What the task's own credentials may do.
    pub scopes: &'a [String],
    /// For the worker.
    #[schema(value_type = Object)]
    pub payload: &'a RawValue,
    /// For people.
    pub metadata: &'a Metadata,
    /// For searching.
    pub tags: &'a BTreeMap<String, String>,
    /// Anything else.
    #[schema(value_type = Object)]
    pub extra: &'a RawValue,
}

/// What is known of one run.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq, Eq, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Run {
    /// Its number.
    pub run_id: RunId,
    /// Its state.
    pub state: RunState,
    /// Why it was created.
    pub reason_created: ReasonCreated,
    /// Why it ended; absent until it has.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason_resolved: Option<ReasonResolved>,
    /// The worker that claimed it; absent while it is not claimed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub worker_group: Option<String>,
    /// See `workerGroup`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub worker_id: Option<String>,
    /// When the claim ends unless it is renewed; kept after the run has ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub taken_until: Option<Timestamp>,
    /// When it became pending.
    pub scheduled: Timestamp,
    /// When it was claimed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub started: Option<Timestamp>,
    /// When it ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resolved: Option<Timestamp>,
}

/// The status of a task.
#[derive(Deserialize, Debug, Clone, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    /// The task.
    pub task_id: TaskId,
    /// Where workers find it.
    pub task_queue_id: TaskQueueId,
    /// Who owns the group.
    pub scheduler_id: String,
    /// What it is accounted to.
    pub project_id: String,
    /// The group.
    pub task_group_id: TaskGroupId,
    /// The priority now.
    pub priority: Priority,
    /// When it ends as an exception if it is not resolved.
    pub deadline: Timestamp,
    /// When it is purged.
    pub expires: Timestamp,
    /// How often it may still be tried again.
    pub retries_left: u16,
    /// The state of the last run, or unscheduled.
    pub state: TaskState,
    /// Every run; the index is the run's number.
    pub runs: Vec<Run>,
}

/// The status as it is written, with the two halves of the queue's id.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Status)]
struct StatusOnWire<'a> {
    /// The task.
    task_id: TaskId,
    /// The first half of the queue's id.
    provisioner_id: &'a str,
    /// The second half of the queue's id.
    worker_type: &'a str,
    /// Where workers find the task.
    task_queue_id: &'a TaskQueueId,
    /// Who owns the group.
    scheduler_id: &'a str,
    /// What it is accounted to.
    project_id: &'a str,
    /// The group.
    task_group_id: TaskGroupId,
    /// The priority now.
    priority: Priority,
    /// When it ends as an exception if it is not resolved.
    deadline: Timestamp,
    /// When it is purged.
    expires: Timestamp,
    /// How often it may still be tried again.
    retries_left: u16,
    /// The state of the last run, or unscheduled.
    state: TaskState,
    /// Every run; the index is the run's number.
    runs: &'a [Run],
}

impl Serialize for Status {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let on_wire = StatusOnWire {
            task_id: self.task_id,
            provisioner_id: self.task_queue_id.provisioner_id(),
            worker_type: self.task_queue_id.worker_type(),
            task_queue_id: &self.task_queue_id,
            scheduler_id: &self.scheduler_id,
            project_id: &self.project_id,
            task_group_id: self.task_group_id,
            priority: self.priority,
            deadline: self.deadline,
            expires: self.expires,
            retries_left: self.retries_left,
            state: self.state,
            runs: &self.runs,
        };
        on_wire.serialize(serializer)
    }
}

impl PartialSchema for Status {
    fn schema() -> RefOr<Schema> {
        StatusOnWire::schema()
    }
}

impl ToSchema for Status {
    fn schemas(schemas: &mut Vec<(String, RefOr<Schema>)>) {
        StatusOnWire::schemas(schemas);
    }
}

/// The body of claimWork.
#[derive(Serialize, Deserialize, Debug, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ClaimWorkRequest {
    /// Who asks.
    pub worker_group: WorkerGroup,
    /// See `workerGroup`.
    pub worker_id: WorkerId,
    /// How many tasks at most, 1 to 32.
    #[serde(default = "one", deserialize_with = "whole")]
    #[schema(minimum = 1, maximum = 32)]
    pub tasks: u16,
    /// The session that the claims belong to, if the worker has one: they end with it at the latest. Tenure only.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub session_id: Option<SessionId>,
}

/// The body of claimTask.
#[derive(Serialize, Deserialize, Debug, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ClaimTaskRequest {
    /// Who asks.
    pub worker_group: WorkerGroup,
    /// See `workerGroup`.
    pub worker_id: WorkerId,
    /// The session that the claims belong to, if the worker has one: they end with it at the latest. Tenure only.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub session_id: Option<SessionId>,
}

/// The body of changeTaskPriority and changeTaskGroupPriority.
#[derive(Serialize, Deserialize, Debug, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ChangePriorityRequest {
    /// What the priority is to be.
    pub new_priority: Priority,
}

/// The body of reportException.
#[derive(Serialize, Deserialize, Debug, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ReportExceptionRequest {
    /// Why the run ended.
    pub reason: ExceptionReason,
    /// How many seconds the next run waits; only with `intermittent-task`. Default: as `retryDelay` of the task or its queue says.
    #[serde(
        default,
        rename = "retryAfter",
        deserialize_with = "present_seconds",
        skip_serializing_if = "Option::is_none"
    )]
    #[schema(minimum = 0, maximum = 86_400)]
    pub retry_after: Option<i64>,
}

/// A claim, as claimWork, claimTask and reclaimTask answer it.
#[derive(Serialize, Debug, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Claim<'a> {
    /// The status of the task.
    pub status: &'a Status,
    /// The run that was claimed; with the task's id, the fencing token.
    pub run_id: RunId,
    /// Who claimed it.
    pub worker_group: &'a str,
    /// See `workerGroup`.
    pub worker_id: &'a str,
    /// When the claim ends unless it is renewed.
    pub taken_until: Timestamp,
    /// The definition; reclaimTask leaves it out.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<TaskDefinition>)]
    pub task: Option<&'a RawValue>,
    /// Good for this run only.
    pub credentials: Credentials,
}

/// How many tasks one claimWork may ask for.
pub const CLAIM_TASKS: std::ops::RangeInclusive<u16> = 1..=32;

/// How many queues taskQueueCountsBatch may ask for.
pub const COUNTS_BATCH_MAX: usize = 1000;

/// The body of taskQueueCountsBatch.
#[derive(Serialize, Deserialize, Debug, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CountsBatchRequest {
    /// The queues.
    #[schema(max_items = 1_000)]
    pub task_queue_ids: Vec<TaskQueueId>,
}

/// How many tasks one call of tasks or statuses may name; a continuation token asks about the same ones again.
pub const TASK_IDS_MAX: usize = 20_000;

/// The body of tasks and statuses.
#[derive(Serialize, Deserialize, Debug, Default, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TaskIdsRequest {
    /// The tasks. What is no task's id is the id of no task: it is left out of the answer, and no error.
    #[serde(default)]
    #[schema(max_items = 20_000)]
    pub task_ids: Vec<String>,
}
