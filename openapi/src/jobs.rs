//! Bodies of jobs, which change many tasks.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::dates::Timestamp;
use crate::errors::ErrorCode;
use crate::ids::{JobId, TaskId};
use crate::states::{JobAction, JobState, Priority};
use crate::structure::{present, present_object};
use crate::tasks::TaskFilter;

/// A job to start, with either `filter` or `taskIds`.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq, Eq, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct StartJobRequest {
    pub action: JobAction,
    /// The new priority, for the action `priority` only.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub priority: Option<Priority>,
    /// Takes the tasks that match when the job begins. It has at least one condition, and for a rerun
    /// the state `completed`, `failed` or `exception`.
    #[serde(default, deserialize_with = "present_object", skip_serializing_if = "Option::is_none")]
    pub filter: Option<TaskFilter>,
    /// Takes these tasks, 1 to 1,000.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    #[schema(min_items = 1, max_items = 1_000)]
    pub task_ids: Option<Vec<TaskId>>,
    /// A new id. A repeat with the same id starts no second job.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub job_id: Option<JobId>,
    /// True: only counts the tasks. Default false.
    #[serde(default)]
    pub dry_run: bool,
}

impl StartJobRequest {
    /// Returns a request for the tasks that match a filter.
    #[must_use]
    pub fn new(action: JobAction, filter: TaskFilter) -> Self {
        Self { action, priority: None, filter: Some(filter), task_ids: None, job_id: None, dry_run: false }
    }
}

/// A job that was started, or the number of its tasks.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq, Eq, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct StartedJob {
    /// Absent for a dry run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job_id: Option<JobId>,
    /// Number of tasks.
    pub found: u32,
    /// True if counting took too long, and there may be more tasks than `found`.
    pub more: bool,
}

/// A job and its progress.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq, Eq, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Job {
    pub job_id: JobId,
    pub state: JobState,
    /// Absent if the server cannot read it, because a newer release wrote it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub action: Option<JobAction>,
    /// The new priority, for the action `priority` only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<Priority>,
    /// Absent if the request listed its tasks, or the server cannot read it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub filter: Option<TaskFilter>,
    /// Client that started the job, and whose scopes are checked for each task.
    pub client_id: String,
    pub started: Timestamp,
    /// Absent while the job runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<Timestamp>,
    /// Client that stopped the job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stopped_by: Option<String>,
    /// Why the job ended before all tasks were tried.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Number of tasks when the job was started.
    pub found: u32,
    /// True if counting took too long, and there may be more tasks than `found`.
    pub more: bool,
    /// Changed tasks.
    pub done: u32,
    /// Tasks that needed no change, such as resolved ones in a job that cancels.
    pub unchanged: u32,
    /// Number of refused tasks.
    pub refused_count: u32,
    /// The first 100 refused tasks.
    pub refused: Vec<RefusedTask>,
}

/// A task that a job could not change.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq, Eq, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct RefusedTask {
    pub task_id: TaskId,
    /// As in an error of the task's own request.
    pub code: ErrorCode,
    /// The reason, for people.
    pub message: String,
}

/// A page of jobs.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq, Eq, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Jobs {
    /// Newest first.
    pub jobs: Vec<Job>,
    /// Token of the next page; absent on the last page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub continuation_token: Option<String>,
}
