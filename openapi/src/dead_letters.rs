//! Bodies about dead letters: failed tasks that wait to be run again.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::dates::Timestamp;
use crate::errors::ErrorCode;
use crate::ids::{RunId, TaskId};
use crate::policy::{present_seconds, seconds};
use crate::states::{EndedBy, ReasonResolved, RunState};
use crate::structure::{present, present_object};

/// A failed task that waits to be run again.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq, Eq, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct DeadLetter {
    pub task_id: TaskId,
    /// Its last run.
    pub run_id: RunId,
    /// `metadata.name` of the task. Absent if its definition is larger than 16 KiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// `failed` or `exception`.
    pub state: RunState,
    pub reason_resolved: ReasonResolved,
    /// Absent if the reason tells it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_by: Option<EndedBy>,
    /// When the task failed.
    pub resolved: Timestamp,
    /// Until then the task can be run again; afterwards only a copy can.
    pub deadline: Timestamp,
}

/// A page of dead letters.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq, Eq, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct DeadLetters {
    /// Oldest first.
    pub dead_letters: Vec<DeadLetter>,
    /// Token of the next page; absent on the last page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub continuation_token: Option<String>,
}

/// Which dead letters of a queue to run again. By default the oldest ones.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq, Eq, Default, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RedriveRequest {
    /// Only these tasks, 1 to 1,000. Not together with the other conditions.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    #[schema(min_items = 1, max_items = 1_000)]
    pub task_ids: Option<Vec<TaskId>>,
    /// Only tasks that ended for this reason.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub reason: Option<ReasonResolved>,
    /// Only tasks that failed before this time.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub before: Option<Timestamp>,
    /// Maximum number of tasks to try; refused ones count. Default 1,000. An answer may come after
    /// fewer tasks, and then has a token.
    #[serde(default, deserialize_with = "present_seconds", skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 10_000)]
    pub limit: Option<i64>,
    /// Token of the previous answer: continues behind the tasks that it tried.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub continuation_token: Option<String>,
    /// Copies tasks whose deadline has passed. Without it they are refused.
    #[serde(default, deserialize_with = "present_object", skip_serializing_if = "Option::is_none")]
    pub copy: Option<RedriveCopy>,
}

/// How to copy a task whose deadline has passed.
#[derive(Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RedriveCopy {
    /// Seconds from now to the deadline of the copy.
    #[serde(deserialize_with = "seconds")]
    #[schema(minimum = 60, maximum = 31_622_400)]
    pub deadline_after: i64,
}

/// What became of the dead letters that were tried.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq, Eq, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Redriven {
    /// Tasks that have a new run.
    pub redriven: u32,
    /// Tasks that were copied.
    pub copied: u32,
    /// Number of refused tasks, which are still dead letters.
    pub refused_count: u32,
    /// The first 100 refused tasks.
    pub refused: Vec<RefusedRedrive>,
    /// Token to continue with; absent if no dead letter is left behind those that were tried.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub continuation_token: Option<String>,
}

/// A task that could not be run again.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq, Eq, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct RefusedRedrive {
    pub task_id: TaskId,
    /// As in an error of the task's own request.
    pub code: ErrorCode,
    /// The reason, for people.
    pub message: String,
}
