//! Outcomes and bounds of runs. [`policy::life`](crate::policy::life) has the effect of each event.

use tenure_api::states::{ExceptionReason, ReasonCreated, ReasonResolved, RunState};

/// Maximum requeues; the next undelivered claim is left to expire.
pub const REQUEUES_MAX: u16 = 5;
/// A task with this many runs cannot be rerun.
pub const RUNS_MAX: u16 = 50;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    Completed,
    Failed,
    /// Never [`ReasonResolved::Completed`] or [`ReasonResolved::Failed`].
    Exception(ReasonResolved),
}

impl Outcome {
    #[must_use]
    pub fn state(self) -> RunState {
        match self {
            Self::Completed => RunState::Completed,
            Self::Failed => RunState::Failed,
            Self::Exception(_) => RunState::Exception,
        }
    }

    #[must_use]
    pub fn reason(self) -> ReasonResolved {
        match self {
            Self::Completed => ReasonResolved::Completed,
            Self::Failed => ReasonResolved::Failed,
            Self::Exception(reason) => reason,
        }
    }
}

/// A worker's report.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Report {
    Completed,
    /// With `retryFailed`, another run follows while retries are left.
    Failed,
    /// With `retry: false`: no other run follows.
    FailedForGood,
    Exception(ExceptionReason),
}

impl Report {
    #[must_use]
    pub fn outcome(self) -> Outcome {
        match self {
            Self::Completed => Outcome::Completed,
            Self::Failed | Self::FailedForGood => Outcome::Failed,
            Self::Exception(reason) => Outcome::Exception(reason.into()),
        }
    }

    /// Returns the reason of the next run, if one may follow.
    #[must_use]
    pub fn retry(self) -> Option<ReasonCreated> {
        match self {
            Self::Exception(ExceptionReason::WorkerShutdown) => Some(ReasonCreated::Retry),
            Self::Failed | Self::Exception(ExceptionReason::IntermittentTask) => Some(ReasonCreated::TaskRetry),
            Self::Exception(
                ExceptionReason::MalformedPayload
                | ExceptionReason::ResourceUnavailable
                | ExceptionReason::InternalError,
            )
            | Self::Completed
            | Self::FailedForGood => None,
        }
    }
}
