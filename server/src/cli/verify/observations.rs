//! The observations of a case, as far as judging needs them.
//!
//! Durations are by this machine's clock since the beginning of the case: `sent` before the
//! request, `received` after the response. Timestamps are by the server's clock.

use std::time::Duration;

use tenure_api::bodies::{Run, Status};
use tenure_api::dates::Timestamp;
use tenure_api::ids::RunId;
use tenure_api::states::EndedBy;

/// A claim of a worker.
#[derive(Debug, Clone, Copy)]
pub struct Claimed {
    pub run: RunId,
    /// Unless renewed.
    pub taken_until: Timestamp,
    pub sent: Duration,
    pub received: Duration,
}

/// A session that a worker began.
#[derive(Debug, Clone, Copy)]
pub struct Began {
    /// Unless renewed.
    pub expires: Timestamp,
    pub sent: Duration,
}

/// A run that was assigned to a session and not accepted.
#[derive(Debug, Clone, Copy)]
pub struct Assigned {
    pub accept_by: Option<Timestamp>,
    /// Before the request to create the task.
    pub sent: Duration,
}

/// A replacement of the queue's scheduler.
#[derive(Debug, Clone, Copy)]
pub struct Replaced {
    /// Start of the new scheduler's term; none if no server took over.
    pub since: Option<Timestamp>,
    pub sent: Duration,
    pub received: Duration,
}

/// The end of a run in the event log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resolution {
    pub run: u64,
    pub exchange: String,
}

/// The observations of a played case.
#[derive(Debug, Clone)]
pub struct Observations {
    pub session: Option<Began>,
    /// The assignment that the first worker did not accept.
    pub assigned: Option<Assigned>,
    pub first: Option<Claimed>,
    pub replaced: Option<Replaced>,
    /// The claim of the second worker.
    pub second: Option<Claimed>,
    /// When the task was seen to end without another run.
    pub ended: Option<Duration>,
    /// From the claim, or from the replacement of the scheduler.
    pub watched: Duration,
    /// Longest time from one renewal of the first worker to the answer to the next.
    pub silence: Duration,
    /// Response status of the first worker's late report, or of its late acceptance if refused.
    pub first_report: Option<u16>,
    /// Response status of the second worker's report.
    pub second_report: Option<u16>,
    /// Retries at the task's creation.
    pub retries: u16,
    pub status: Status,
    pub ended_by: Option<EndedBy>,
    /// The ends of its runs in the event log.
    pub resolutions: Vec<Resolution>,
}

impl Observations {
    #[must_use]
    pub fn first_run(&self) -> Option<&Run> {
        self.status.runs.first()
    }
}
