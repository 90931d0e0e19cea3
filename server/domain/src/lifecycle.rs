//! How runs end, and how many a task may have. [`policy::life`](crate::policy::life) has what each event does in each state.

use tenure_api::states::{ExceptionReason, ReasonCreated, ReasonResolved, RunState};

/// How often an undelivered claim may be requeued before it is left to expire.
pub const REQUEUES_MAX: u16 = 5;
/// A task that has had this many runs cannot be rerun.
pub const RUNS_MAX: u16 = 50;

/// How a run ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    Completed,
    Failed,
    /// Ended for a reason outside the task. Never [`ReasonResolved::Completed`] or [`ReasonResolved::Failed`].
    Exception(ReasonResolved),
}

impl Outcome {
    /// The state of a run that ended so.
    #[must_use]
    pub fn state(self) -> RunState {
        match self {
            Self::Completed => RunState::Completed,
            Self::Failed => RunState::Failed,
            Self::Exception(_) => RunState::Exception,
        }
    }

    /// The reason that a run that ended so shows.
    #[must_use]
    pub fn reason(self) -> ReasonResolved {
        match self {
            Self::Completed => ReasonResolved::Completed,
            Self::Failed => ReasonResolved::Failed,
            Self::Exception(reason) => reason,
        }
    }
}

/// What a worker reports.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Report {
    Completed,
    Failed,
    /// Something outside the task went wrong.
    Exception(ExceptionReason),
}

impl Report {
    /// How a run that is reported so ends.
    #[must_use]
    pub fn outcome(self) -> Outcome {
        match self {
            Self::Completed => Outcome::Completed,
            Self::Failed => Outcome::Failed,
            Self::Exception(reason) => Outcome::Exception(reason.into()),
        }
    }

    /// Why the next run is made, for a report that asks for another try.
    #[must_use]
    pub fn retry(self) -> Option<ReasonCreated> {
        match self {
            Self::Exception(ExceptionReason::WorkerShutdown) => Some(ReasonCreated::Retry),
            Self::Exception(ExceptionReason::IntermittentTask) => Some(ReasonCreated::TaskRetry),
            Self::Exception(
                ExceptionReason::MalformedPayload
                | ExceptionReason::ResourceUnavailable
                | ExceptionReason::InternalError,
            )
            | Self::Completed
            | Self::Failed => None,
        }
    }
}
