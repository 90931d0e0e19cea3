//! Late results: reports of runs that were taken from their workers while these may still work on
//! them.
//!
//! Only a report as completed may count: a late failure must not end a run that may succeed. It
//! counts once, while the task is unresolved. Then the open run ends as superseded, and a run is
//! appended for the result, because the reported run has ended already.

use tenure_api::ids::RunId;
use tenure_api::states::{EndedBy, LateResult, ReasonCreated};

use super::ending::Ending;
use super::life::State;
use crate::lifecycle::Report;
use crate::task::{Last, Task};

/// A report of an ended run, with stored facts about its task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LateReport {
    pub ending: Ending,
    /// What ended the run.
    pub ended_by: Option<EndedBy>,
    /// As the queue's policy says now.
    pub policy: LateResult,
    /// The run that was made for an earlier late report of the same run.
    pub recorded: Option<RunId>,
    /// See [`was_rerun`].
    pub was_rerun: bool,
    pub state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The report resolves the task.
    Counts,
    /// It repeats the report for which this run was made.
    Repeats(RunId),
    Refused,
}

/// True if the result of a run that ended in this way may count.
#[must_use]
pub fn may_count(ended_by: EndedBy) -> bool {
    match ended_by {
        EndedBy::CompleteTime | EndedBy::SchedulerReplaced => true,
        EndedBy::Lease
        | EndedBy::Undelivered
        | EndedBy::Released
        | EndedBy::SessionEnded
        | EndedBy::WorkerRemoved
        | EndedBy::NotAccepted
        | EndedBy::LateResult => false,
    }
}

/// True if a report may count. All others are refused without further reads.
#[must_use]
pub fn is_late(ending: Ending, ended_by: Option<EndedBy>) -> bool {
    ending == Ending::Reported(Report::Completed) && ended_by.is_some_and(may_count)
}

/// True if the task was rerun after this run. A rerun revokes earlier results, also late ones.
#[must_use]
pub fn was_rerun(task: &Task, after: RunId) -> bool {
    let open = match &task.last {
        Last::Pending(open) | Last::Running(open, _) => Some(open),
        Last::Unscheduled | Last::Ended => None,
    };
    let mut runs = task.ended.iter().map(|ended| &ended.run).chain(open);
    runs.any(|known| known.run > after && known.reason == ReasonCreated::Rerun)
}

#[must_use]
pub fn judge(report: LateReport) -> Verdict {
    let LateReport { ending, ended_by, policy, recorded, was_rerun, state } = report;
    if !is_late(ending, ended_by) {
        return Verdict::Refused;
    }
    if let Some(run) = recorded {
        // A repeat is answered as long as the task ends with this run, whatever the policy says.
        let is_last = matches!(state, State::Resolved(last, _) if last == run);
        return if is_last { Verdict::Repeats(run) } else { Verdict::Refused };
    }
    if was_rerun || policy == LateResult::Reject {
        return Verdict::Refused;
    }
    match state {
        State::Pending(..) | State::Running(_) => Verdict::Counts,
        State::Unscheduled | State::Resolved(..) => Verdict::Refused,
    }
}

#[cfg(test)]
#[path = "late_tests.rs"]
mod tests;
