//! The end of a claim: whether another run follows, and its cost.
//!
//! [`next`] is the rule; the documents show it for each ending of [`TABLE`]. [`decide`] adds the
//! bounds on runs.

use tenure_api::ids::RunId;
use tenure_api::states::{Delivery, EndedBy, ExceptionReason, ReasonCreated, ReasonResolved};

use crate::lifecycle::{Outcome, REQUEUES_MAX, RUNS_MAX, Report};
use crate::task::EndedRun;

/// Maximum free runs per task: runs that end without using a retry, because they were released, or
/// lost under at-least-once.
pub const FREE_RUNS_MAX: u16 = 200;
/// The last run number. The other bounds keep tasks below it.
pub const RUN_LAST: u16 = 400;

/// The event that ends a claim.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ending {
    Reported(Report),
    /// The claim was not renewed in time.
    LeaseExpired,
    /// The response with the claim was not delivered.
    Undelivered,
    WorkerRemoved,
    /// The worker exceeded the run's completeTime.
    TooSlow,
    /// The worker released the run.
    Released,
    /// The session of the run ended.
    SessionEnded,
    /// The queue's scheduler was replaced, and its policy wants all runs to be reassigned.
    SchedulerReplaced,
    /// The session did not accept the assigned run in time. Never the end of a claim, because there
    /// was none.
    NotAccepted,
}

impl Ending {
    #[must_use]
    pub fn outcome(self) -> Outcome {
        match self {
            Self::Reported(report) => report.outcome(),
            Self::LeaseExpired | Self::TooSlow | Self::SchedulerReplaced | Self::NotAccepted => {
                Outcome::Exception(ReasonResolved::ClaimExpired)
            }
            Self::Undelivered | Self::WorkerRemoved | Self::Released | Self::SessionEnded => {
                Outcome::Exception(ReasonResolved::WorkerShutdown)
            }
        }
    }

    /// Returns the creation reason of the next run, if one follows.
    #[must_use]
    pub fn retry(self) -> Option<ReasonCreated> {
        match self {
            Self::Reported(report) => report.retry(),
            Self::LeaseExpired
            | Self::Undelivered
            | Self::WorkerRemoved
            | Self::TooSlow
            | Self::Released
            | Self::SessionEnded
            | Self::SchedulerReplaced => Some(ReasonCreated::Retry),
            Self::NotAccepted => None,
        }
    }

    /// True if the worker was lost with the run, so the extent of its work is unknown.
    #[must_use]
    pub fn is_loss(self) -> bool {
        match self {
            Self::Reported(report) => report == Report::Exception(ExceptionReason::WorkerShutdown),
            Self::LeaseExpired | Self::WorkerRemoved | Self::TooSlow | Self::SessionEnded | Self::SchedulerReplaced => {
                true
            }
            Self::Undelivered | Self::Released | Self::NotAccepted => false,
        }
    }

    /// True if a worker's request for this ending repeats the actual ending of the run. Results are
    /// not compared. A report counts as a repeat if the run was taken away for the same reason, so
    /// a worker that shuts down need not know which came first.
    #[must_use]
    pub fn repeats(self, ended: &EndedRun) -> bool {
        ended.outcome() == self.outcome()
            && match self {
                Self::Reported(_) => ended.ended_by != Some(EndedBy::Released),
                Self::LeaseExpired
                | Self::Undelivered
                | Self::WorkerRemoved
                | Self::TooSlow
                | Self::Released
                | Self::SessionEnded
                | Self::SchedulerReplaced
                | Self::NotAccepted => ended.ended_by == self.ended_by(),
            }
    }

    /// Returns the detail shown beside the reason of the wire format.
    #[must_use]
    pub fn ended_by(self) -> Option<EndedBy> {
        match self {
            Self::Reported(_) => None,
            Self::LeaseExpired => Some(EndedBy::Lease),
            Self::Undelivered => Some(EndedBy::Undelivered),
            Self::WorkerRemoved => Some(EndedBy::WorkerRemoved),
            Self::TooSlow => Some(EndedBy::CompleteTime),
            Self::Released => Some(EndedBy::Released),
            Self::SessionEnded => Some(EndedBy::SessionEnded),
            Self::SchedulerReplaced => Some(EndedBy::SchedulerReplaced),
            Self::NotAccepted => Some(EndedBy::NotAccepted),
        }
    }
}

/// Whether another run follows and at which cost, before the bounds on runs apply.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Next {
    Never,
    /// A run follows while retries are left, and uses one.
    ForARetry,
    /// A free run follows while any are left, then a retry.
    ForNothingFirst,
    /// A free run follows. Without free runs left, the ending is refused and the worker keeps the
    /// run.
    ForNothingOrRefused,
    /// A free run follows at the same position, up to [`REQUEUES_MAX`] times; then the claim is
    /// left to expire.
    Requeued,
    /// Not an ending of a claim. [`taken_back`] has the rule for assigned runs.
    NotOfAClaim,
}

impl Next {
    /// Returns the text for people.
    #[must_use]
    pub fn words(self) -> &'static str {
        match self {
            Self::Never => "no",
            Self::ForARetry => "while retries are left",
            Self::ForNothingFirst => "200 times for nothing, then while retries are left",
            Self::ForNothingOrRefused => "200 times for nothing, then refused",
            Self::Requeued => "in its place, 5 times for nothing",
            Self::NotOfAClaim => "cannot be",
        }
    }
}

/// The rule for every delivery and ending.
#[must_use]
pub fn next(delivery: Delivery, ending: Ending) -> Next {
    match ending {
        Ending::Undelivered => Next::Requeued,
        Ending::Released => Next::ForNothingOrRefused,
        Ending::Reported(report) => match report {
            Report::Completed
            | Report::Failed
            | Report::Exception(
                ExceptionReason::MalformedPayload
                | ExceptionReason::ResourceUnavailable
                | ExceptionReason::InternalError,
            ) => Next::Never,
            // The worker itself states that the work may be repeated.
            Report::Exception(ExceptionReason::IntermittentTask) => Next::ForARetry,
            Report::Exception(ExceptionReason::WorkerShutdown) => after_a_loss(delivery),
        },
        Ending::LeaseExpired
        | Ending::WorkerRemoved
        | Ending::TooSlow
        | Ending::SessionEnded
        | Ending::SchedulerReplaced => after_a_loss(delivery),
        Ending::NotAccepted => Next::NotOfAClaim,
    }
}

fn after_a_loss(delivery: Delivery) -> Next {
    match delivery {
        Delivery::Retries => Next::ForARetry,
        Delivery::AtLeastOnce => Next::ForNothingFirst,
        Delivery::AtMostOnce => Next::Never,
    }
}

const fn exception(reason: ExceptionReason) -> Ending {
    Ending::Reported(Report::Exception(reason))
}

/// Every ending of a claim, with its name.
pub const TABLE: [(Ending, &str); 14] = [
    (Ending::Reported(Report::Completed), "reported as completed"),
    (Ending::Reported(Report::Failed), "reported as failed"),
    (exception(ExceptionReason::MalformedPayload), "reported as malformed-payload"),
    (exception(ExceptionReason::ResourceUnavailable), "reported as resource-unavailable"),
    (exception(ExceptionReason::InternalError), "reported as internal-error"),
    (exception(ExceptionReason::IntermittentTask), "reported as intermittent-task"),
    (exception(ExceptionReason::WorkerShutdown), "reported as worker-shutdown"),
    (Ending::LeaseExpired, "lease over"),
    (Ending::WorkerRemoved, "worker removed"),
    (Ending::SessionEnded, "session ended"),
    (Ending::TooSlow, "completeTime over"),
    (Ending::SchedulerReplaced, "scheduler replaced; does not end a run at most once"),
    (Ending::Released, "released"),
    (Ending::Undelivered, "claim not delivered"),
];

/// Renders [`TABLE`] as a Markdown table.
pub fn markdown() -> String {
    let columns: Vec<String> = Delivery::ALL.iter().map(|delivery| format!("`{delivery}`")).collect();
    let mut text = format!("| the claim ends: | shown as | {} |\n|---|---|---|---|---|\n", columns.join(" | "));
    for (ending, name) in TABLE {
        let reason = ending.outcome().reason();
        let shown = match ending.ended_by() {
            Some(by) => format!("`{reason}`, `{by}`"),
            None => format!("`{reason}`"),
        };
        let cells: Vec<&str> = Delivery::ALL.iter().map(|&delivery| next(delivery, ending).words()).collect();
        text.push_str(&format!("| {name} | {shown} | {} |\n", cells.join(" | ")));
    }
    text
}

/// A task's remaining retries and its counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Allowance {
    pub retries_left: u16,
    /// Runs that ended without using a retry, up to [`FREE_RUNS_MAX`].
    pub free_runs: u16,
    /// Requeues of undelivered claims.
    pub requeues: u16,
    /// Workers lost in a row.
    pub losses: u16,
}

impl Allowance {
    pub fn free_runs_left(&self) -> u16 {
        FREE_RUNS_MAX.saturating_sub(self.free_runs)
    }
}

/// The consequence of an ended claim.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Decision {
    /// Creation reason of the next run, if one follows.
    pub next: Option<ReasonCreated>,
    /// The remaining allowance.
    pub left: Allowance,
}

/// Why a claim may not end this way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refused {
    /// The task was requeued as often as allowed: the claim is left to expire.
    RequeuesUsedUp,
    /// The task has no free runs left: the worker keeps the run.
    FreeRunsUsedUp,
    /// Not an ending of a claim.
    NotOfAClaim,
}

/// Decides the consequence when the claim of `run`, the task's last run, ends.
pub fn decide(delivery: Delivery, ending: Ending, run: RunId, had: Allowance) -> Result<Decision, Refused> {
    let losses = if ending.is_loss() { had.losses.saturating_add(1) } else { 0 };
    let had = Allowance { losses, ..had };
    let free = Allowance { free_runs: had.free_runs.saturating_add(1), ..had };
    let retried = had.retries_left.checked_sub(1).map(|retries_left| Allowance { retries_left, ..had });
    let left = match next(delivery, ending) {
        Next::Never => None,
        Next::ForARetry => retried,
        Next::ForNothingFirst if had.free_runs < FREE_RUNS_MAX => Some(free),
        Next::ForNothingFirst => retried,
        Next::ForNothingOrRefused if had.free_runs < FREE_RUNS_MAX => Some(free),
        Next::ForNothingOrRefused => return Err(Refused::FreeRunsUsedUp),
        Next::Requeued if had.requeues < REQUEUES_MAX => Some(Allowance { requeues: had.requeues + 1, ..had }),
        Next::Requeued => return Err(Refused::RequeuesUsedUp),
        Next::NotOfAClaim => return Err(Refused::NotOfAClaim),
    };
    Ok(match left.filter(|_| run.number() < RUN_LAST) {
        Some(left) => Decision { next: ending.retry(), left },
        None => Decision { next: None, left: had },
    })
}

/// What happens to an assigned, unaccepted run that is to be taken back from its session. It was
/// never started; still, under at-most-once no other worker gets it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TakenBack {
    /// It waits for another session, at no cost.
    Waits,
    /// The run and its task end.
    Ends,
    /// It stays assigned.
    Stays,
    /// Not an ending of an assignment.
    NotOfAnAssignment,
}

/// Decides the fate of an assigned run, for every delivery and ending.
#[must_use]
pub fn taken_back(delivery: Delivery, ending: Ending) -> TakenBack {
    match ending {
        Ending::NotAccepted | Ending::SessionEnded | Ending::WorkerRemoved => match delivery {
            Delivery::Retries | Delivery::AtLeastOnce => TakenBack::Waits,
            Delivery::AtMostOnce => TakenBack::Ends,
        },
        Ending::SchedulerReplaced => match delivery {
            Delivery::Retries | Delivery::AtLeastOnce => TakenBack::Waits,
            Delivery::AtMostOnce => TakenBack::Stays,
        },
        // The worker itself states that it did not start the run.
        Ending::Released => TakenBack::Waits,
        Ending::Reported(_) | Ending::LeaseExpired | Ending::TooSlow | Ending::Undelivered => {
            TakenBack::NotOfAnAssignment
        }
    }
}

/// Whether the assigned worker could accept a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Acceptance {
    /// Nothing prevented it.
    Possible,
    /// It was quarantined after the assignment, and its acceptance was refused.
    Refused,
}

/// Decides the fate of a run that was not accepted in time. A refused worker has not started it.
pub fn not_accepted(delivery: Delivery, acceptance: Acceptance) -> TakenBack {
    match acceptance {
        Acceptance::Possible => taken_back(delivery, Ending::NotAccepted),
        Acceptance::Refused => TakenBack::Waits,
    }
}

/// Returns the retries of a task rerun as run `next`, from `retries` of its definition; none if it
/// had too many runs. Free runs do not count.
pub fn retries_after_rerun(next: RunId, retries: u16, free_runs: u16) -> Option<u16> {
    let counted = (next.number() + 1).saturating_sub(free_runs);
    RUNS_MAX.checked_sub(counted).map(|after| retries.min(after))
}

#[cfg(test)]
#[path = "ending_tests.rs"]
mod tests;
