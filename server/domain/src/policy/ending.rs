//! What follows when a claim ends: whether another run does, and what that costs.
//!
//! [`next`] is the rule, which docs show for each ending of [`TABLE`]; [`decide`] adds the bounds on runs.

use tenure_api::ids::RunId;
use tenure_api::states::{Delivery, EndedBy, ExceptionReason, ReasonCreated, ReasonResolved};

use crate::lifecycle::{Outcome, REQUEUES_MAX, RUNS_MAX, Report};
use crate::task::EndedRun;

/// How many runs of a task may end without using up a retry: released, or lost under at-least-once.
pub const FREE_RUNS_MAX: u16 = 200;
/// After a run of this number none follows, whatever is left. The other bounds keep tasks below it.
pub const RUN_LAST: u16 = 400;

/// What takes a claim away from its worker.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ending {
    /// The worker reports the run.
    Reported(Report),
    /// The claim was not renewed in time.
    LeaseExpired,
    /// The answer that carried the claim was not delivered.
    Undelivered,
    WorkerRemoved,
    /// The worker took longer than the run's completeTime.
    TooSlow,
    /// The worker releases the run.
    Released,
    /// The session that holds the run ended.
    SessionEnded,
    /// The server that gave out the runs of the queue was replaced, and its policy wants them all to be given out again.
    SchedulerReplaced,
    /// The session that the run is assigned to did not accept it in time. No claim ends so: there was none.
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

    /// Why the next run is made, if one is.
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

    /// Whether the worker was lost with the run, so that what it did is not known.
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

    /// Whether a worker that asks for this end of a run asks again for what has ended it; what it says about a result is not
    /// looked at. A report of a run that was taken away with the same reason counts as a repeat, so that a worker that shuts down
    /// need not know which came first.
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

    /// What is shown beside the reason that the wire has.
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

/// Whether another run follows, and what that costs, before the bounds on runs are looked at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Next {
    /// No run follows.
    Never,
    /// One follows while retries are left, and uses one up.
    ForARetry,
    /// One follows for nothing while free runs are left, and then for a retry.
    ForNothingFirst,
    /// One follows for nothing; without a free run left the end is refused, and the worker keeps the run.
    ForNothingOrRefused,
    /// One follows in the same place for nothing, [`REQUEUES_MAX`] times; then the claim is left to expire.
    Requeued,
    /// No claim ends so. [`taken_back`] says what follows for a run that is assigned.
    NotOfAClaim,
}

impl Next {
    /// For people.
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

/// Whether another run follows: every delivery with every ending.
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
            // The worker's own word that the work may be done again.
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

/// [`TABLE`] as lines of Markdown.
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

/// What a task has left, and what was counted of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Allowance {
    /// How often it may still be tried again.
    pub retries_left: u16,
    /// How many of its runs ended without using up a retry: [`FREE_RUNS_MAX`] at most.
    pub free_runs: u16,
    /// How often an undelivered claim of it was requeued.
    pub requeues: u16,
    /// How many workers in a row were lost with it.
    pub losses: u16,
}

impl Allowance {
    /// How many of its runs may still end without using up a retry.
    pub fn free_runs_left(&self) -> u16 {
        FREE_RUNS_MAX.saturating_sub(self.free_runs)
    }
}

/// What follows when a claim has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Decision {
    /// Why the next run was made, if one was.
    pub next: Option<ReasonCreated>,
    /// What is left of the allowances.
    pub left: Allowance,
}

/// Why a claim may not end so.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refused {
    /// Its task was requeued as often as is allowed: the claim is left to expire.
    RequeuesUsedUp,
    /// No run of its task may end for nothing any more: the worker keeps the run.
    FreeRunsUsedUp,
    /// No claim ends so.
    NotOfAClaim,
}

/// What follows when the claim of this run, the task's last, ends so.
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

/// What becomes of a run that is assigned when it is to be taken back from its session, which has not accepted it. It was not
/// started, and yet under at-most-once no other worker gets it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TakenBack {
    /// It waits for another session, and costs nothing.
    Waits,
    /// It ends, and the task with it.
    Ends,
    /// It stays assigned.
    Stays,
    /// No assignment ends so.
    NotOfAnAssignment,
}

/// What becomes of a run that is assigned when this happens: every delivery with every ending.
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
        // The worker's own word that it did not begin it.
        Ending::Released => TakenBack::Waits,
        Ending::Reported(_) | Ending::LeaseExpired | Ending::TooSlow | Ending::Undelivered => {
            TakenBack::NotOfAnAssignment
        }
    }
}

/// Whether the worker to which a run is assigned could accept it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Acceptance {
    /// Nothing kept it from that.
    Possible,
    /// It was quarantined since the run was given to it, and was refused.
    Refused,
}

/// What becomes of a run that was not accepted in time: every delivery. A worker that was refused has not begun it.
pub fn not_accepted(delivery: Delivery, acceptance: Acceptance) -> TakenBack {
    match acceptance {
        Acceptance::Possible => taken_back(delivery, Ending::NotAccepted),
        Acceptance::Refused => TakenBack::Waits,
    }
}

/// The retries of a task that is rerun as this run, of `retries` in its definition; none if it had too many runs. Free runs are
/// not counted.
pub fn retries_after_rerun(next: RunId, retries: u16, free_runs: u16) -> Option<u16> {
    let counted = (next.number() + 1).saturating_sub(free_runs);
    RUNS_MAX.checked_sub(counted).map(|after| retries.min(after))
}

#[cfg(test)]
#[path = "ending_tests.rs"]
mod tests;
