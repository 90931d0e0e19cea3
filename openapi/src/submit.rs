//! Bodies of Tenure's own calls for submitters: definitions whose absent fields the server fills
//! in.

use serde::Deserialize;
use serde_json::value::RawValue;
use std::collections::BTreeMap;
use utoipa::ToSchema;

use crate::dates::Timestamp;
use crate::ids::{
    ProjectId, ProvisionerId, QueueName, SchedulerId, TaskGroupId, TaskId, TaskQueueId, WorkerType, present_queue_name,
};
use crate::policy::TaskOptions;
use crate::schema::{Route, Scope, TagValue};
use crate::states::{Priority, Requires};
use crate::structure::{object, objects, present};
use crate::whole::present_whole;

/// Tasks that are created together or not at all.
#[derive(Deserialize, Debug, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SubmitRequest<'a> {
    /// The group of all tasks. Default: a new one; for a single task, its own id.
    #[serde(default, deserialize_with = "present")]
    pub task_group_id: Option<TaskGroupId>,
    /// Up to 100,000 dependencies together.
    #[serde(borrow, deserialize_with = "objects")]
    #[schema(min_items = 1, max_items = 1_000)]
    pub tasks: Vec<SubmittedTask<'a>>,
}

/// A task as in createTask, but with optional ids, dates, payload and metadata.
#[derive(Deserialize, Debug, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SubmittedTask<'a> {
    /// Default: a new id.
    #[serde(default, deserialize_with = "present")]
    pub task_id: Option<TaskId>,
    /// Local name in the `dependencies` of the same submission, and in the `taskId` of `inputs` in
    /// its payloads: any text that is not a task's id.
    #[serde(default, deserialize_with = "present")]
    #[schema(min_length = 1, max_length = 255)]
    pub name: Option<String>,
    /// Names the queue together with `workerType`.
    #[serde(default, deserialize_with = "present")]
    pub provisioner_id: Option<ProvisionerId>,
    /// See `provisionerId`.
    #[serde(default, deserialize_with = "present")]
    pub worker_type: Option<WorkerType>,
    /// Names the queue; must agree with `provisionerId` and `workerType` if both are given.
    #[serde(default, deserialize_with = "present_queue_name")]
    #[schema(value_type = Option<QueueName>)]
    pub task_queue_id: Option<TaskQueueId>,
    /// Default `-`.
    #[serde(default, deserialize_with = "present")]
    pub scheduler_id: Option<SchedulerId>,
    /// Default `none`.
    #[serde(default, deserialize_with = "present")]
    pub project_id: Option<ProjectId>,
    /// Default: that of the submission.
    #[serde(default, deserialize_with = "present")]
    pub task_group_id: Option<TaskGroupId>,
    /// Ids of tasks, or local names of the same submission.
    #[serde(default)]
    #[schema(max_items = 10_000, value_type = HashSet<String>)]
    pub dependencies: Vec<String>,
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
    /// Default: now.
    #[serde(default, deserialize_with = "present")]
    pub created: Option<Timestamp>,
    /// Default: `deadlineAfter` of the queue's policy, or 366 days, after `created`; at
    /// the latest when the task or a dependency expires, if that is at least a day ahead.
    #[serde(default, deserialize_with = "present")]
    pub deadline: Option<Timestamp>,
    /// Default: a year after the deadline, but a task without it may be purged 7 days after it was
    /// completed, and 30 days after it failed.
    #[serde(default, deserialize_with = "present")]
    pub expires: Option<Timestamp>,
    /// Scopes of the task's own credentials.
    #[serde(default)]
    #[schema(value_type = Vec<Scope>)]
    pub scopes: Vec<String>,
    /// For the worker; any JSON object. Default `{}`.
    #[serde(borrow, default, deserialize_with = "present")]
    #[schema(value_type = Option<Object>)]
    pub payload: Option<&'a RawValue>,
    /// For people; absent fields are derived from the rest.
    #[serde(default, deserialize_with = "object")]
    pub metadata: SubmittedMetadata,
    /// For searching.
    #[serde(default)]
    #[schema(value_type = BTreeMap<String, TagValue>)]
    pub tags: BTreeMap<String, String>,
    /// Any JSON object. Default `{}`.
    #[serde(borrow, default, deserialize_with = "present")]
    #[schema(value_type = Option<Object>)]
    pub extra: Option<&'a RawValue>,
    /// Options of the task's runs; stored and shown as `tenure` in its `extra`, where they may be
    /// given instead.
    #[serde(borrow, default, deserialize_with = "present")]
    #[schema(value_type = Option<TaskOptions>)]
    pub options: Option<&'a RawValue>,
}

/// Metadata for people.
#[derive(Deserialize, Debug, Default, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SubmittedMetadata {
    /// Default: the task's local name, its first command, or its queue.
    #[serde(default, deserialize_with = "present")]
    #[schema(max_length = 255)]
    pub name: Option<String>,
    /// Default: a sentence that says that none was given.
    #[serde(default, deserialize_with = "present")]
    #[schema(max_length = 32_768)]
    pub description: Option<String>,
    /// Default: the submitting client.
    #[serde(default, deserialize_with = "present")]
    #[schema(max_length = 255)]
    pub owner: Option<String>,
    /// Default: the URL of the definition on the server.
    #[serde(default, deserialize_with = "present")]
    #[schema(max_length = 4_096, pattern = "^(https?://|ssh://|git@)")]
    pub source: Option<String>,
}
