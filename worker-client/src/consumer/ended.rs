//! Runs that end without a report of their worker.

use std::fmt;

use tenure_api::ids::{RunId, TaskId};
use tenure_api::states::{EndedBy, ReasonResolved, RunState};

use super::handler::StopReason;

/// A run that ended without a report of its worker, as the inbox of the session says. Shown, it says how in words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EndedRun {
    /// The task.
    pub task_id: TaskId,
    /// The run.
    pub run_id: RunId,
    /// How it ended.
    pub state: RunState,
    /// Why.
    pub reason_resolved: ReasonResolved,
    /// What ended it, where the reason does not say it.
    pub ended_by: Option<EndedBy>,
}

impl EndedRun {
    /// What the handler is told.
    pub(super) fn stop_reason(&self) -> StopReason {
        match self.reason_resolved {
            ReasonResolved::Canceled => StopReason::Canceled,
            ReasonResolved::DeadlineExceeded => StopReason::DeadlineExceeded,
            _ => StopReason::Lost,
        }
    }
}

impl fmt::Display for EndedRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { state, reason_resolved, ended_by, .. } = self;
        match reason_resolved {
            ReasonResolved::Canceled => f.write_str("the task was cancelled"),
            ReasonResolved::DeadlineExceeded => f.write_str("the deadline of the task has passed"),
            reason => {
                write!(f, "the run has ended as {state}: {reason}")?;
                ended_by.map_or(Ok(()), |ended_by| write!(f, ", by {ended_by}"))
            }
        }
    }
}
