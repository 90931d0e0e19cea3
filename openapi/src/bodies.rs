//! Request and response bodies. Field names, defaults and limits follow the Taskcluster Queue API.

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
use crate::partitions::PartitionClaim;
use crate::policy::{Failure, present_seconds};
use crate::schema::{Route, Scope, TagValue};
use crate::states::{ExceptionReason, Priority, ReasonCreated, ReasonResolved, Requires, RunState, TaskState};
use crate::structure::{object, present, present_object};
use crate::whole::{one, present_whole, whole};

/// The body of createTask as sent. `payload` and `extra` keep their bytes.
#[derive(Deserialize, Debug, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CreateTaskRequest<'a> {
    /// Names the queue together with `workerType`.
    #[serde(default, deserialize_with = "present")]
    pub provisioner_id: Option<ProvisionerId>,
    /// See `provisionerId`.
    #[serde(default, deserialize_with = "present")]
    pub worker_type: Option<WorkerType>,
    /// Names the queue; must agree with `provisionerId` and `workerType` if both are given.
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
    /// Creation time set by the submitter; within 15 minutes of now.
    pub created: Timestamp,
    /// Time at which an unresolved task ends as an exception.
    pub deadline: Timestamp,
    /// Purge time. Default: a year after the deadline.
    #[serde(default, deserialize_with = "present")]
    pub expires: Option<Timestamp>,
    /// Scopes of the task's own credentials.
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
    /// Any JSON object; its field `tenure` has the options of the task. Default `{}`.
    #[serde(borrow, default, deserialize_with = "present")]
    #[schema(value_type = Option<Object>)]
    pub extra: Option<&'a RawValue>,
}

/// Information about a task for people.
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

/// A task's definition as stored and returned: with defaults filled in, never changed afterwards.
#[derive(Serialize, Debug, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct TaskDefinition<'a> {
    /// The first half of the queue's id.
    pub provisioner_id: &'a str,
    /// The second half of the queue's id.
    pub worker_type: &'a str,
    pub task_queue_id: &'a TaskQueueId,
    /// The owner of the group.
    pub scheduler_id: &'a SchedulerId,
    /// The project that the task is accounted to.
    pub project_id: &'a ProjectId,
    pub task_group_id: TaskGroupId,
    /// Tasks that must be resolved first.
    pub dependencies: &'a [SlugId],
    /// How the dependencies must be resolved.
    pub requires: Requires,
    /// Extra routing keys of the task's events.
    pub routes: &'a [String],
    /// The current priority.
    pub priority: Priority,
    /// Retries that the task starts with.
    pub retries: u16,
    /// Creation time set by the submitter.
    pub created: Timestamp,
    /// Time at which an unresolved task ends as an exception.
    pub deadline: Timestamp,
    /// Purge time.
    pub expires: Timestamp,
    /// Scopes of the task's own credentials.
    pub scopes: &'a [String],
    /// For the worker.
    #[schema(value_type = Object)]
    pub payload: &'a RawValue,
    /// For people.
    pub metadata: &'a Metadata,
    /// For searching.
    pub tags: &'a BTreeMap<String, String>,
    /// Any further data.
    #[schema(value_type = Object)]
    pub extra: &'a RawValue,
}

#[derive(Serialize, Deserialize, Debug, Clone, PartialEq, Eq, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Run {
    pub run_id: RunId,
    pub state: RunState,
    pub reason_created: ReasonCreated,
    /// Absent until it has ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason_resolved: Option<ReasonResolved>,
    /// The worker that claimed it; absent before the claim.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub worker_group: Option<String>,
    /// See `workerGroup`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub worker_id: Option<String>,
    /// Expiry of the claim unless renewed; kept after the run has ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub taken_until: Option<Timestamp>,
    /// Time at which the run became pending.
    pub scheduled: Timestamp,
    /// Time of the claim.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub started: Option<Timestamp>,
    /// Time of the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resolved: Option<Timestamp>,
}

#[derive(Deserialize, Debug, Clone, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    pub task_id: TaskId,
    pub task_queue_id: TaskQueueId,
    pub scheduler_id: String,
    pub project_id: String,
    pub task_group_id: TaskGroupId,
    pub priority: Priority,
    pub deadline: Timestamp,
    pub expires: Timestamp,
    pub retries_left: u16,
    pub state: TaskState,
    pub runs: Vec<Run>,
}

/// The status of a task.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Status)]
struct StatusOnWire<'a> {
    task_id: TaskId,
    /// The first half of the queue's id.
    provisioner_id: &'a str,
    /// The second half of the queue's id.
    worker_type: &'a str,
    task_queue_id: &'a TaskQueueId,
    /// The owner of the group.
    scheduler_id: &'a str,
    /// The project that the task is accounted to.
    project_id: &'a str,
    task_group_id: TaskGroupId,
    /// The current priority.
    priority: Priority,
    /// Time at which an unresolved task ends as an exception.
    deadline: Timestamp,
    /// Purge time.
    expires: Timestamp,
    /// Remaining retries.
    retries_left: u16,
    /// The state of the last run, or unscheduled.
    state: TaskState,
    /// All runs; the index is the run's number.
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

#[derive(Serialize, Deserialize, Debug, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ClaimWorkRequest {
    pub worker_group: WorkerGroup,
    pub worker_id: WorkerId,
    /// Maximum number of tasks, 1 to 32.
    #[serde(default = "one", deserialize_with = "whole")]
    #[schema(minimum = 1, maximum = 32)]
    pub tasks: u16,
    /// The worker's session: the claims end with it at the latest. Tenure only.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub session_id: Option<SessionId>,
    /// Only tasks of this share of a partition group. Default: tasks of all shares. Tenure only.
    #[serde(default, deserialize_with = "present_object", skip_serializing_if = "Option::is_none")]
    pub partition: Option<PartitionClaim>,
}

#[derive(Serialize, Deserialize, Debug, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ClaimTaskRequest {
    pub worker_group: WorkerGroup,
    pub worker_id: WorkerId,
    /// The worker's session: the claims end with it at the latest. Tenure only.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub session_id: Option<SessionId>,
}

#[derive(Serialize, Deserialize, Debug, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ChangePriorityRequest {
    pub new_priority: Priority,
}

#[derive(Serialize, Deserialize, Debug, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ReportExceptionRequest {
    pub reason: ExceptionReason,
    /// Delay of the next run in seconds; only with `intermittent-task`. Default: the `retryDelay`
    /// of the task or its queue.
    #[serde(
        default,
        rename = "retryAfter",
        deserialize_with = "present_seconds",
        skip_serializing_if = "Option::is_none"
    )]
    #[schema(minimum = 0, maximum = 86_400)]
    pub retry_after: Option<i64>,
    /// Why the run failed.
    #[serde(default, deserialize_with = "present_object", skip_serializing_if = "Option::is_none")]
    pub failure: Option<Failure>,
}

/// A claim.
#[derive(Serialize, Debug, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Claim<'a> {
    pub status: &'a Status,
    /// The claimed run; with the task's id, the fencing token.
    pub run_id: RunId,
    pub worker_group: &'a str,
    pub worker_id: &'a str,
    /// Expiry of the claim unless renewed.
    pub taken_until: Timestamp,
    /// The definition; absent in answers of reclaimTask.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<TaskDefinition>)]
    pub task: Option<&'a RawValue>,
    /// Valid for this run only.
    pub credentials: Credentials,
    /// The span of this run, for the environment of its process as `TRACEPARENT`; absent if the
    /// server sends no traces.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub traceparent: Option<String>,
}

/// Values of `tasks` in claimWork.
pub const CLAIM_TASKS: std::ops::RangeInclusive<u16> = 1..=32;

/// Maximum number of queues per taskQueueCountsBatch.
pub const COUNTS_BATCH_MAX: usize = 1000;

#[derive(Serialize, Deserialize, Debug, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CountsBatchRequest {
    #[schema(max_items = 1_000)]
    pub task_queue_ids: Vec<TaskQueueId>,
}

/// Maximum number of ids per call of tasks or statuses. A call for the next page repeats the ids.
pub const TASK_IDS_MAX: usize = 20_000;

/// The body of tasks and statuses.
#[derive(Serialize, Deserialize, Debug, Default, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TaskIdsRequest {
    /// The tasks. Unknown and malformed ids are left out of the answer; they are no error.
    #[serde(default)]
    #[schema(max_items = 20_000)]
    pub task_ids: Vec<String>,
}
