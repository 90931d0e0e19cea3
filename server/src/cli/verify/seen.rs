//! What was seen of a cell while it was played: all that judging needs, and nothing else.

use std::time::Duration;

use tenure_api::bodies::{Run, Status};
use tenure_api::dates::Timestamp;
use tenure_api::ids::RunId;
use tenure_api::states::EndedBy;

/// A claim that a worker got. The durations are by this machine's clock, from the beginning of the cell.
#[derive(Debug, Clone, Copy)]
pub struct Claimed {
    /// The run.
    pub run: RunId,
    /// When the claim ends unless it is renewed, by the server's clock.
    pub taken_until: Timestamp,
    /// Before the request went out.
    pub sent: Duration,
    /// When the answer was here.
    pub received: Duration,
}

/// A session that a worker began.
#[derive(Debug, Clone, Copy)]
pub struct Began {
    /// When it ends unless it is renewed, by the server's clock.
    pub expires: Timestamp,
    /// Before the request went out, by this machine's clock, from the beginning of the cell.
    pub sent: Duration,
}

/// A run that was assigned to the session of a worker which did not accept it.
#[derive(Debug, Clone, Copy)]
pub struct Assigned {
    /// Until when it may be accepted, by the server's clock, if there is a limit.
    pub accept_by: Option<Timestamp>,
    /// Before the request went out that created the task, by this machine's clock, from the beginning of the cell.
    pub sent: Duration,
}

/// The scheduler of the queue was replaced.
#[derive(Debug, Clone, Copy)]
pub struct Replaced {
    /// Since when the next one is the scheduler, by the server's clock; none if there is none.
    pub since: Option<Timestamp>,
    /// Before the request went out, by this machine's clock, from the beginning of the cell.
    pub sent: Duration,
    /// When the answer was here.
    pub received: Duration,
}

/// The end of a run in the event log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resolution {
    /// The run.
    pub run: u64,
    /// The short name of the exchange.
    pub exchange: String,
}

/// A cell as it was played.
#[derive(Debug, Clone)]
pub struct Seen {
    /// The session of the first worker, if it has one.
    pub session: Option<Began>,
    /// What that worker was assigned, where it does not accept it.
    pub assigned: Option<Assigned>,
    /// The claim of that worker, where it has one.
    pub first: Option<Claimed>,
    /// The replacement of the scheduler, where it is replaced.
    pub replaced: Option<Replaced>,
    /// What the worker got that asked for work all the while.
    pub second: Option<Claimed>,
    /// When it was seen that the task had ended without another run.
    pub ended: Option<Duration>,
    /// For how long the first run was watched, from its claim, or from the replacement of the scheduler.
    pub watched: Duration,
    /// The longest time from one renewal of the first worker to the answer to the next one.
    pub silence: Duration,
    /// The status that the first worker's report was answered with, after all this; or its acceptance, if that was refused.
    pub first_report: Option<u16>,
    /// The same of the second worker's.
    pub second_report: Option<u16>,
    /// The retries that the task was created with.
    pub retries: u16,
    /// The task in the end.
    pub status: Status,
    /// What ended its last run, if it ended as an exception.
    pub ended_by: Option<EndedBy>,
    /// The ends of its runs in the event log.
    pub resolutions: Vec<Resolution>,
}

impl Seen {
    /// The first run.
    #[must_use]
    pub fn first_run(&self) -> Option<&Run> {
        self.status.runs.first()
    }
}
