//! Checks of the results in a work request.

use std::collections::HashSet;

use chrono::{DateTime, Utc};
use tenure_api::ids::{RunId, TaskId, TaskQueueId};
use tenure_api::policy::ReleaseRequest;
use tenure_api::states::ExceptionReason;
use tenure_api::work::{CLAIM_MAX, RESULTS_MAX, RunOutcome, RunResult, WAIT_MAX, WorkRequest};

use super::lifecycle::Report;
use super::policy::ending::Ending;
use super::policy::hold::Start;
use super::policy::report::{RunFailure, TaskResult, failed, release, retry_after};
use super::task::{Last, Task, Tenancy};
use super::unacceptable::Unacceptable;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    pub queue: TaskQueueId,
    pub group: String,
    pub id: String,
}

impl Holder {
    /// True if the task is in its queue, and no other worker has claimed the run. Without a claim,
    /// the rules of the run's state refuse the report.
    #[must_use]
    pub fn may_report(&self, task: &Task, run: RunId) -> bool {
        let is_mine = |tenancy: &Tenancy| tenancy.worker_group == self.group && tenancy.worker_id == self.id;
        self.queue == task.queue && claim_of(task, run).is_none_or(is_mine)
    }
}

/// Returns the current or past claim of a run.
fn claim_of(task: &Task, run: RunId) -> Option<&Tenancy> {
    match &task.last {
        Last::Running(open, tenancy) if open.run == run => Some(tenancy),
        Last::Running(..) | Last::Unscheduled | Last::Pending(_) | Last::Ended => {
            task.ended.iter().find(|ended| ended.run.run == run)?.tenancy.as_ref()
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reported {
    pub task: TaskId,
    pub run: RunId,
    pub ending: Ending,
    pub result: Option<TaskResult>,
    pub failure: Option<RunFailure>,
    pub start: Option<Start>,
}

/// A value beyond its limit does not affect other results.
pub type Judged = Result<Reported, Unacceptable>;

/// Returns the results of a request that arrives at `now`, in order.
///
/// # Errors
///
/// A limit is exceeded, a field is missing or does not fit its outcome, a run is named twice, or a
/// worker that shuts down requests more tasks.
pub fn results(request: &WorkRequest, now: DateTime<Utc>) -> Result<Vec<Judged>, Unacceptable> {
    check_limits(request).map_err(Unacceptable::Schema)?;
    let results: Vec<Judged> =
        request.results.iter().enumerate().map(|(n, result)| read(n, result)).collect::<Result<_, _>>()?;
    let mut named = HashSet::new();
    for (n, RunResult { task_id, run_id, .. }) in request.results.iter().enumerate() {
        // The order of two results for one run would be ambiguous.
        if !named.insert((*task_id, *run_id)) {
            return Err(Unacceptable::Rule(format!("`results[{n}]`: run {run_id} of task {task_id} is named twice")));
        }
    }
    if request.claim > 0 {
        check_claim(&results, now)?;
    }
    Ok(results)
}

/// The report of a worker that takes no more tasks.
pub const LEAVING: Ending = Ending::Reported(Report::Exception(ExceptionReason::WorkerShutdown));

/// Refuses claims that could return the worker's own task at once, which would cost a retry or free
/// run.
fn check_claim(results: &[Judged], now: DateTime<Utc>) -> Result<(), Unacceptable> {
    for (n, result) in results.iter().enumerate() {
        let Ok(Reported { ending, start, .. }) = result else { continue };
        if *ending == LEAVING {
            return Err(Unacceptable::Rule(format!(
                "`claim` must be 0 with `results[{n}].reason` `worker-shutdown`: a worker that shuts down takes no tasks"
            )));
        }
        if *ending == Ending::Released && start.is_none_or(|start| start.time(now) <= now) {
            return Err(Unacceptable::Rule(format!(
                "`claim` must be 0 with `results[{n}].outcome` `released` without a delay: the run keeps its place, and may be claimed \
                 again at once"
            )));
        }
    }
    Ok(())
}

fn check_limits(request: &WorkRequest) -> Result<(), String> {
    if request.claim > CLAIM_MAX {
        return Err(format!("`claim` must be from 0 to {CLAIM_MAX}"));
    }
    if request.wait > WAIT_MAX {
        return Err(format!("`wait` must be from 0 to {WAIT_MAX} seconds"));
    }
    if request.results.len() > RESULTS_MAX {
        return Err(format!("`results` must have at most {RESULTS_MAX} entries"));
    }
    Ok(())
}

fn read(n: usize, sent: &RunResult) -> Result<Judged, Unacceptable> {
    let wrong = |field: &str, rule: &str| Err(Unacceptable::Rule(format!("`results[{n}].{field}` must {rule}")));
    let report = match (sent.outcome, sent.reason) {
        (RunOutcome::Completed, None) => Ending::Reported(Report::Completed),
        (RunOutcome::Failed, None) => Ending::Reported(failed(sent.retry)),
        (RunOutcome::Released, None) => Ending::Released,
        (RunOutcome::Exception, Some(reason)) => Ending::Reported(Report::Exception(reason)),
        (RunOutcome::Completed | RunOutcome::Failed | RunOutcome::Released, Some(_)) => {
            return wrong("reason", "be absent: only the outcome `exception` has one");
        }
        (RunOutcome::Exception, None) => return wrong("reason", "be there with the outcome `exception`"),
    };
    let (has_result, has_failure, is_exception, is_release) = match sent.outcome {
        RunOutcome::Completed => (true, false, false, false),
        RunOutcome::Failed => (true, true, false, false),
        RunOutcome::Exception => (false, true, true, false),
        RunOutcome::Released => (false, false, false, true),
    };
    if sent.result.is_some() && !has_result {
        return wrong("result", "be absent: only the outcomes `completed` and `failed` have one");
    }
    if sent.failure.is_some() && !has_failure {
        return wrong("failure", "be absent: only the outcomes `failed` and `exception` have one");
    }
    if sent.retry.is_some() && sent.outcome != RunOutcome::Failed {
        return wrong("retry", "be absent: only the outcome `failed` has one");
    }
    if sent.retry_after.is_some() && !is_exception {
        return wrong("retryAfter", "be absent: only the outcome `exception` has one");
    }
    for (field, is_there) in [("delay", sent.delay.is_some()), ("notBefore", sent.not_before.is_some())] {
        if is_there && !is_release {
            return wrong(field, "be absent: only the outcome `released` has one");
        }
    }
    Ok(judge(sent, report).map_err(|refused| at(n, refused)))
}

fn judge(sent: &RunResult, ending: Ending) -> Judged {
    let result = sent.result.as_deref().map(TaskResult::from_request).transpose()?;
    let failure = sent.failure.as_ref().map(RunFailure::from_request).transpose()?;
    let start = match sent.reason {
        Some(reason) => retry_after(reason, sent.retry_after)?,
        None => release(&ReleaseRequest { delay: sent.delay, not_before: sent.not_before })?,
    };
    Ok(Reported { task: sent.task_id, run: sent.run_id, ending, result, failure, start })
}

fn at(n: usize, refused: Unacceptable) -> Unacceptable {
    match refused {
        Unacceptable::Schema(message) => Unacceptable::Schema(format!("`results[{n}]`: {message}")),
        Unacceptable::Rule(message) => Unacceptable::Rule(format!("`results[{n}]`: {message}")),
        Unacceptable::Unserializable(error) => Unacceptable::Unserializable(error),
    }
}

#[cfg(test)]
#[path = "work_tests.rs"]
mod tests;
