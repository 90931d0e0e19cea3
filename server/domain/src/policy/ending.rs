//! The end of a claim: whether another run follows, and its cost. [`next`] is the rule; [`decide`]
//! adds the bounds on runs. The documents show [`TABLE`].

use tenure_api::ids::RunId;
use tenure_api::states::{Delivery, EndedBy, ExceptionReason, ReasonCreated, ReasonResolved};

use crate::lifecycle::{Outcome, REQUEUES_MAX, RUNS_MAX, Report};
use crate::task::EndedRun;

/// Maximum runs that end without using a retry: released, or lost under at-least-once.
pub const FREE_RUNS_MAX: u16 = 200;
/// No run follows a run of this number. The other bounds keep tasks below it.
pub const RUN_LAST: u16 = 400;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ending {
    Reported(Report),
    LeaseExpired,
    Undelivered,
    WorkerRemoved,
    TooSlow,
    Released,
    SessionEnded,
    /// The scheduler was lost, and the policy says `onSchedulerLoss: reassign`.
    SchedulerReplaced,
    /// Never the end of a claim: the assigned run was not accepted in time.
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

    /// Returns the reason of the next run, if one may follow.
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

    /// True if the worker was lost, so the extent of its work is unknown.
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

    /// True if a request for this ending repeats the actual one. Results are not compared. A report
    /// counts as a repeat if the run was taken away for the same reason, so a worker that shuts
    /// down need not know which came first.
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

    /// Detail beside the reason of the wire format.
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

/// What decides if another run follows, by the queue's policy and the task's options.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RetryRule {
    pub delivery: Delivery,
    /// True if a run reported as failed may be followed by another one.
    pub retry_failed: bool,
}

impl RetryRule {
    /// The rule without a policy and options.
    pub const NONE: Self = Self::of(Delivery::Retries);

    /// Returns the rule of a delivery without `retryFailed`.
    #[must_use]
    pub const fn of(delivery: Delivery) -> Self {
        Self { delivery, retry_failed: false }
    }

    pub fn all() -> impl Iterator<Item = Self> {
        let both = |&delivery| [false, true].map(|retry_failed| Self { delivery, retry_failed });
        Delivery::ALL.iter().flat_map(both)
    }
}

/// Consequence of an ending, before the bounds on runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Next {
    Never,
    /// Another run while retries are left, using one.
    ForARetry,
    /// Free while free runs are left, then for a retry.
    ForNothingFirst,
    /// Free; without free runs left, the ending is refused and the worker keeps the run.
    ForNothingOrRefused,
    /// Free at the same position, up to [`REQUEUES_MAX`] times; then the claim is left to expire.
    Requeued,
    /// See [`taken_back`] for assigned runs.
    NotOfAClaim,
}

impl Next {
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

/// The consequence of every ending.
#[must_use]
pub fn next(rule: RetryRule, ending: Ending) -> Next {
    let RetryRule { delivery, retry_failed } = rule;
    match ending {
        Ending::Undelivered => Next::Requeued,
        Ending::Released => Next::ForNothingOrRefused,
        Ending::Reported(report) => match report {
            Report::Failed if retry_failed => Next::ForARetry,
            Report::Completed
            | Report::Failed
            | Report::FailedForGood
            | Report::Exception(
                ExceptionReason::MalformedPayload
                | ExceptionReason::ResourceUnavailable
                | ExceptionReason::InternalError,
            ) => Next::Never,
            // The worker states that the work may be repeated.
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

pub const TABLE: [(Ending, &str); 15] = [
    (Ending::Reported(Report::Completed), "reported as completed"),
    (Ending::Reported(Report::Failed), "reported as failed"),
    (Ending::Reported(Report::FailedForGood), "reported as failed with `\"retry\": false`"),
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
        let cells: Vec<String> = Delivery::ALL.iter().map(|&delivery| cell(delivery, ending)).collect();
        text.push_str(&format!("| {name} | {shown} | {} |\n", cells.join(" | ")));
    }
    text
}

fn cell(delivery: Delivery, ending: Ending) -> String {
    let plain = next(RetryRule::of(delivery), ending);
    let retried = next(RetryRule { delivery, retry_failed: true }, ending);
    if plain == retried {
        return plain.words().to_owned();
    }
    format!("{}; with `retryFailed` {}", plain.words(), retried.words())
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Allowance {
    pub retries_left: u16,
    /// Ended without using a retry, up to [`FREE_RUNS_MAX`].
    pub free_runs: u16,
    pub requeues: u16,
    /// Workers lost in a row.
    pub losses: u16,
}

impl Allowance {
    pub fn free_runs_left(&self) -> u16 {
        FREE_RUNS_MAX.saturating_sub(self.free_runs)
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Decision {
    /// Reason of the next run, if one follows.
    pub next: Option<ReasonCreated>,
    pub left: Allowance,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refused {
    /// The claim is left to expire.
    RequeuesUsedUp,
    /// The worker keeps the run.
    FreeRunsUsedUp,
    /// See [`taken_back`] for assigned runs.
    NotOfAClaim,
}

/// `run` is the task's last run.
pub fn decide(rule: RetryRule, ending: Ending, run: RunId, had: Allowance) -> Result<Decision, Refused> {
    let losses = if ending.is_loss() { had.losses.saturating_add(1) } else { 0 };
    let had = Allowance { losses, ..had };
    let free = Allowance { free_runs: had.free_runs.saturating_add(1), ..had };
    let retried = had.retries_left.checked_sub(1).map(|retries_left| Allowance { retries_left, ..had });
    let left = match next(rule, ending) {
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

/// Fate of an assigned run taken back from its session. It was never started; still, under
/// at-most-once no other worker gets it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TakenBack {
    /// Waits for another session, at no cost.
    Waits,
    Ends,
    Stays,
    NotOfAnAssignment,
}

/// The rule for every delivery and ending.
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
        // The worker states that it did not start the run.
        Ending::Released => TakenBack::Waits,
        Ending::Reported(_) | Ending::LeaseExpired | Ending::TooSlow | Ending::Undelivered => {
            TakenBack::NotOfAnAssignment
        }
    }
}

/// The worker's chance to accept an assigned run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Acceptance {
    Possible,
    /// Its worker was quarantined after the assignment.
    Refused,
}

/// A refused worker has not started the run.
pub fn not_accepted(delivery: Delivery, acceptance: Acceptance) -> TakenBack {
    match acceptance {
        Acceptance::Possible => taken_back(delivery, Ending::NotAccepted),
        Acceptance::Refused => TakenBack::Waits,
    }
}

/// Returns the retries of a task rerun as run `next`; none if it had too many runs. Free runs do
/// not count.
pub fn retries_after_rerun(next: RunId, retries: u16, free_runs: u16) -> Option<u16> {
    let counted = (next.number() + 1).saturating_sub(free_runs);
    RUNS_MAX.checked_sub(counted).map(|after| retries.min(after))
}

#[cfg(test)]
#[path = "ending_tests.rs"]
mod tests;
