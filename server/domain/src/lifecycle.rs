//! The life of a task as a state machine: what each event does in each state, and which rule refuses it.
//!
//! The hot statements carry the same rules as guards in their SQL; a test holds them against [`apply`]. Times are
//! not checked here: the caller has compared them with `tenure_now()`, and the event contains the result.

use tenure_api::ids::RunId;
use tenure_api::states::{ExceptionReason, ReasonCreated, ReasonResolved, RunState};

/// How often an undelivered claim may be requeued before it is left to expire.
pub const REQUEUES_MAX: u16 = 5;
/// A task that has had this many runs cannot be rerun.
pub const RUNS_MAX: u16 = 50;

/// Where a task is in its life.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// It has no run yet.
    Unscheduled,
    /// Its last run waits for a worker.
    Pending(RunId),
    /// Its last run is claimed.
    Running(RunId),
    /// Its last run has ended and no other follows.
    Resolved(RunId, Outcome),
}

/// How a run ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// Reported as a success.
    Completed,
    /// Reported as a failure.
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

/// A task's state and what is left of its allowances.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Life {
    /// Where it is.
    pub state: State,
    /// How often it may still be tried again.
    pub retries_left: u16,
    /// How often an undelivered claim was requeued.
    pub requeues: u16,
}

/// Something that happens to a task.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// Its dependencies are satisfied, or scheduleTask runs it without them.
    Schedule,
    /// Another run is requested, however the last one ended; the task was created with so many retries.
    Rerun {
        /// The retries of its definition.
        retries: u16,
    },
    /// It is cancelled.
    Cancel,
    /// A worker takes the run.
    Claim(RunId),
    /// The worker renews its claim.
    Reclaim(RunId),
    /// The worker reports how the run ended.
    Report(RunId, Report),
    /// The claim was not renewed in time.
    ClaimExpired(RunId),
    /// The answer that carried the claim was not delivered.
    Requeue(RunId),
    /// The task's deadline has passed.
    DeadlinePassed,
}

/// What a worker reports.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Report {
    /// Success.
    Completed,
    /// The task itself failed.
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

/// What takes a claim away from its worker without a policy: all that [`Ending`](crate::policy::ending::Ending) has then.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum End {
    /// The worker reports the run.
    Report(Report),
    /// The claim was not renewed in time.
    Expired,
    /// The answer that carried the claim was not delivered.
    Requeue,
}

impl End {
    /// How a run that loses its claim so ends.
    fn outcome(self) -> Outcome {
        match self {
            Self::Report(report) => report.outcome(),
            Self::Expired => Outcome::Exception(ReasonResolved::ClaimExpired),
            Self::Requeue => Outcome::Exception(ReasonResolved::WorkerShutdown),
        }
    }

    /// Why the next run is made, if the task is to be tried again at all. A report and an expired claim use up a retry for it.
    fn retry(self) -> Option<ReasonCreated> {
        match self {
            Self::Report(report) => report.retry(),
            Self::Expired | Self::Requeue => Some(ReasonCreated::Retry),
        }
    }
}

/// Which rule refuses an event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// The task has no such run.
    NoSuchRun,
    /// The run is not the task's last one.
    NotTheLastRun,
    /// The run is pending, not claimed.
    NotClaimed,
    /// The run is already claimed.
    AlreadyClaimed,
    /// The run, or the task, has ended.
    AlreadyResolved,
    /// The task has a run already.
    AlreadyScheduled,
    /// The task was requeued as often as is allowed.
    RequeuesUsedUp,
    /// The task had as many runs as is allowed.
    RunsUsedUp,
}

/// What an event did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Step {
    /// The task afterwards.
    pub life: Life,
    /// The run that the event ended, and how.
    pub ended: Option<(RunId, Outcome)>,
    /// The run that the event made, and why.
    pub made: Option<(RunId, ReasonCreated)>,
}

/// Applies an event: every state with every event.
pub fn apply(life: Life, event: Event) -> Result<Step, Refusal> {
    match life.state {
        State::Unscheduled => on_unscheduled(life, event),
        State::Pending(last) => on_pending(life, last, event),
        State::Running(last) => on_running(life, last, event),
        State::Resolved(last, _) => on_resolved(life, last, event),
    }
}

fn on_unscheduled(life: Life, event: Event) -> Result<Step, Refusal> {
    match event {
        Event::Schedule => Ok(Step {
            life: Life { state: State::Pending(RunId::FIRST), ..life },
            ended: None,
            made: Some((RunId::FIRST, ReasonCreated::Scheduled)),
        }),
        Event::Rerun { retries } => rerun(life, RunId::FIRST, retries),
        Event::Claim(_) | Event::Reclaim(_) | Event::Report(..) | Event::ClaimExpired(_) | Event::Requeue(_) => {
            Err(Refusal::NoSuchRun)
        }
        Event::Cancel => Ok(end_without_run(life, ReasonResolved::Canceled)),
        Event::DeadlinePassed => Ok(end_without_run(life, ReasonResolved::DeadlineExceeded)),
    }
}

/// A run is made only to carry the exception.
fn end_without_run(life: Life, reason: ReasonResolved) -> Step {
    Step {
        made: Some((RunId::FIRST, ReasonCreated::Exception)),
        ..resolve(life, RunId::FIRST, Outcome::Exception(reason))
    }
}

/// The retries start anew, as far as the number of runs allows.
fn rerun(life: Life, next: RunId, retries: u16) -> Result<Step, Refusal> {
    let after = RUNS_MAX.checked_sub(next.number() + 1).ok_or(Refusal::RunsUsedUp)?;
    let life = Life { state: State::Pending(next), retries_left: retries.min(after), ..life };
    Ok(Step { life, ended: None, made: Some((next, ReasonCreated::Rerun)) })
}

fn on_pending(life: Life, last: RunId, event: Event) -> Result<Step, Refusal> {
    match event {
        Event::Schedule | Event::Rerun { .. } => Err(Refusal::AlreadyScheduled),
        Event::Claim(run) => {
            same_run(run, last)?;
            Ok(Step { life: Life { state: State::Running(last), ..life }, ended: None, made: None })
        }
        Event::Reclaim(run) | Event::Report(run, _) | Event::ClaimExpired(run) | Event::Requeue(run) => {
            same_run(run, last)?;
            Err(Refusal::NotClaimed)
        }
        Event::Cancel => Ok(resolve(life, last, Outcome::Exception(ReasonResolved::Canceled))),
        Event::DeadlinePassed => Ok(resolve(life, last, Outcome::Exception(ReasonResolved::DeadlineExceeded))),
    }
}

fn on_running(life: Life, last: RunId, event: Event) -> Result<Step, Refusal> {
    match event {
        Event::Schedule | Event::Rerun { .. } => Err(Refusal::AlreadyScheduled),
        Event::Claim(run) => {
            same_run(run, last)?;
            Err(Refusal::AlreadyClaimed)
        }
        Event::Reclaim(run) => {
            same_run(run, last)?;
            Ok(Step { life, ended: None, made: None })
        }
        Event::Report(run, report) => end_claim(life, last, run, End::Report(report)),
        Event::ClaimExpired(run) => end_claim(life, last, run, End::Expired),
        Event::Requeue(run) => end_claim(life, last, run, End::Requeue),
        Event::Cancel => Ok(resolve(life, last, Outcome::Exception(ReasonResolved::Canceled))),
        Event::DeadlinePassed => Ok(resolve(life, last, Outcome::Exception(ReasonResolved::DeadlineExceeded))),
    }
}

fn end_claim(life: Life, last: RunId, run: RunId, end: End) -> Result<Step, Refusal> {
    same_run(run, last)?;
    let outcome = end.outcome();
    let Some(reason) = end.retry() else { return Ok(resolve(life, last, outcome)) };
    match end {
        End::Report(_) | End::Expired => Ok(resolve_and_retry(life, last, outcome, reason)),
        End::Requeue => {
            if life.requeues >= REQUEUES_MAX {
                return Err(Refusal::RequeuesUsedUp);
            }
            Ok(next_run(Life { requeues: life.requeues + 1, ..life }, last, outcome, reason))
        }
    }
}

fn on_resolved(life: Life, last: RunId, event: Event) -> Result<Step, Refusal> {
    match event {
        Event::Rerun { retries } => rerun(life, last.next(), retries),
        Event::Claim(run)
        | Event::Reclaim(run)
        | Event::Report(run, _)
        | Event::ClaimExpired(run)
        | Event::Requeue(run) => {
            same_run(run, last)?;
            Err(Refusal::AlreadyResolved)
        }
        Event::Schedule | Event::Cancel | Event::DeadlinePassed => Err(Refusal::AlreadyResolved),
    }
}

fn same_run(named: RunId, last: RunId) -> Result<(), Refusal> {
    match named.cmp(&last) {
        std::cmp::Ordering::Equal => Ok(()),
        std::cmp::Ordering::Less => Err(Refusal::NotTheLastRun),
        std::cmp::Ordering::Greater => Err(Refusal::NoSuchRun),
    }
}

fn resolve(life: Life, run: RunId, outcome: Outcome) -> Step {
    Step { life: Life { state: State::Resolved(run, outcome), ..life }, ended: Some((run, outcome)), made: None }
}

fn resolve_and_retry(life: Life, run: RunId, outcome: Outcome, reason: ReasonCreated) -> Step {
    match life.retries_left.checked_sub(1) {
        Some(retries_left) => next_run(Life { retries_left, ..life }, run, outcome, reason),
        None => resolve(life, run, outcome),
    }
}

fn next_run(life: Life, run: RunId, outcome: Outcome, reason: ReasonCreated) -> Step {
    let next = run.next();
    Step { life: Life { state: State::Pending(next), ..life }, ended: Some((run, outcome)), made: Some((next, reason)) }
}

#[cfg(test)]
#[path = "lifecycle_tests.rs"]
mod tests;
