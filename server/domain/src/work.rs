//! What a worker may report by its name: the limits of one request, and which runs are its own.

use std::collections::HashSet;

use tenure_api::ids::{RunId, TaskId, TaskQueueId};
use tenure_api::states::ExceptionReason;
use tenure_api::work::{CLAIM_MAX, RESULTS_MAX, RunOutcome, RunResult, WAIT_MAX, WorkRequest};

use super::create::Unacceptable;
use super::lifecycle::Report;
use super::task::{Last, Task, Tenancy};

/// A worker of a queue, as the one that holds a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// The queue.
    pub queue: TaskQueueId,
    /// workerGroup.
    pub group: String,
    /// workerId.
    pub id: String,
}

impl Holder {
    /// Whether it may report this run: the task is of its queue, and no other worker has claimed the run. A run without a
    /// claim is left to the rules of its state, which refuse it.
    #[must_use]
    pub fn may_report(&self, task: &Task, run: RunId) -> bool {
        let is_mine = |tenancy: &Tenancy| tenancy.worker_group == self.group && tenancy.worker_id == self.id;
        self.queue == task.queue && claim_of(task, run).is_none_or(is_mine)
    }
}

/// The claim that a run has, or had when it ended.
fn claim_of(task: &Task, run: RunId) -> Option<&Tenancy> {
    match &task.last {
        Last::Running(open, tenancy) if open.run == run => Some(tenancy),
        Last::Running(..) | Last::Unscheduled | Last::Pending(_) | Last::Ended => {
            task.ended.iter().find(|ended| ended.run.run == run)?.tenancy.as_ref()
        }
    }
}

/// A result that was checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reported {
    /// The task.
    pub task: TaskId,
    /// The run.
    pub run: RunId,
    /// How it ended.
    pub report: Report,
}

/// The results of a request, in their order, if all of it is acceptable.
///
/// # Errors
/// Something is too much, a reason is missing or too many, a run is named twice, or a worker that shuts down asks for more.
pub fn results(request: &WorkRequest) -> Result<Vec<Reported>, Unacceptable> {
    check_limits(request).map_err(Unacceptable::Schema)?;
    let results: Vec<Reported> =
        request.results.iter().enumerate().map(|(n, result)| read(n, result)).collect::<Result<_, _>>()?;
    let mut named = HashSet::new();
    for (n, Reported { task, run, .. }) in results.iter().enumerate() {
        // Of two results of one run, which one is first would not be certain.
        if !named.insert((*task, *run)) {
            return Err(Unacceptable::Rule(format!("`results[{n}]`: run {run} of task {task} is named twice")));
        }
    }
    let leaving = Report::Exception(ExceptionReason::WorkerShutdown);
    match results.iter().position(|result| result.report == leaving) {
        // It would be given its own task again at once, and lose another retry.
        Some(n) if request.claim > 0 => Err(Unacceptable::Rule(format!(
            "`claim` must be 0 with `results[{n}].reason` `worker-shutdown`: a worker that shuts down takes no tasks"
        ))),
        Some(_) | None => Ok(results),
    }
}

fn check_limits(request: &WorkRequest) -> Result<(), String> {
    if request.claim > CLAIM_MAX {
        return Err(format!("`claim` must be from 0 to {CLAIM_MAX}"));
    }
    if request.wait > WAIT_MAX {
        return Err(format!("`wait` must be from 0 to {WAIT_MAX}"));
    }
    if request.results.len() > RESULTS_MAX {
        return Err(format!("`results` must have at most {RESULTS_MAX} entries"));
    }
    Ok(())
}

fn read(n: usize, result: &RunResult) -> Result<Reported, Unacceptable> {
    let wrong = |rule: &str| Err(Unacceptable::Rule(format!("`results[{n}].reason` must {rule}")));
    let report = match (result.outcome, result.reason) {
        (RunOutcome::Completed, None) => Report::Completed,
        (RunOutcome::Failed, None) => Report::Failed,
        (RunOutcome::Exception, Some(reason)) => Report::Exception(reason),
        (RunOutcome::Completed | RunOutcome::Failed, Some(_)) => {
            return wrong("be absent: only the outcome `exception` has one");
        }
        (RunOutcome::Exception, None) => return wrong("be there with the outcome `exception`"),
    };
    Ok(Reported { task: result.task_id, run: result.run_id, report })
}

#[cfg(test)]
#[path = "work_tests.rs"]
mod tests;
