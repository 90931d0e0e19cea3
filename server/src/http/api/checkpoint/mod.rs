//! How far tasks have come, and commands for them. The worker that holds a task does its part with the credentials of its claim.

pub mod get_checkpoint;
pub mod get_task_command;
pub mod put_checkpoint;
pub mod put_task_command;

use tenure_domain::task::Task;

use crate::http::scopes::Values;

/// The queue of a task, and its last run: the worker that holds that one has credentials that name it. A task without a run has no worker, and
/// no credentials name a run that is not a number.
fn values(task: &Task) -> Values<'_> {
    let run = task.status().runs.last().map_or_else(|| "-".to_owned(), |run| run.run_id.to_string());
    Values::of_path().text("taskQueueId", task.queue.as_str()).text("runId", run)
}
