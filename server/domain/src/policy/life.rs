//! A task's life as a state machine: the effect of each event in each state, or the refusal.
//!
//! The frequent SQL statements have the same rules as guards; a test compares them with [`apply`].
//! Times are not checked here: an event states whether its new run is held.

use tenure_api::ids::RunId;
use tenure_api::states::{ReasonCreated, ReasonResolved};

use super::ending::{self, Allowance, Ending, RetryRule, TakenBack, retries_after_rerun};
use super::hold::Hold;
use crate::lifecycle::Outcome;
use crate::task::{Last, Task};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    Unscheduled,
    /// Waits for a worker or is held.
    Pending(RunId, Option<Hold>),
    Running(RunId),
    Resolved(RunId, Outcome),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Life {
    pub state: State,
    pub rule: RetryRule,
    pub left: Allowance,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// Dependencies are satisfied, or scheduleTask skips them.
    Schedule(Option<Hold>),
    Rerun {
        retries: u16,
        /// The wait for admission, if any: reruns are never delayed.
        hold: Option<Hold>,
    },
    Cancel,
    DeadlinePassed,
    /// The delay ends, or the run is admitted for any worker.
    Ready(RunId),
    Hold(RunId, Hold),
    Claim(RunId),
    Accept(RunId),
    TakenBack(RunId, Ending),
    Reclaim(RunId),
    /// The claim ends. With the hold of the next run.
    End(RunId, Ending, Option<Hold>),
    /// The report of this earlier run counts: see [`late`](super::late).
    LateResult(RunId),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal {
    NoSuchRun,
    NotTheLastRun,
    NotClaimed,
    AlreadyClaimed,
    AlreadyResolved,
    AlreadyScheduled,
    /// The next undelivered claim is left to expire.
    RequeuesUsedUp,
    RunsUsedUp,
    /// Delayed, waiting for admission, or assigned to another session.
    Held,
    /// The worker keeps the run.
    FreeRunsUsedUp,
    /// The run was not taken from its worker.
    NotTaken,
}

impl From<ending::Refused> for Refusal {
    fn from(refused: ending::Refused) -> Self {
        match refused {
            ending::Refused::RequeuesUsedUp => Self::RequeuesUsedUp,
            ending::Refused::FreeRunsUsedUp => Self::FreeRunsUsedUp,
            ending::Refused::NotOfAClaim => Self::AlreadyClaimed,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Step {
    pub life: Life,
    pub ended: Option<(RunId, Outcome)>,
    /// The new run, with its reason.
    pub made: Option<(RunId, ReasonCreated)>,
}

impl Task {
    /// A task's description lacks rule, hold, and all allowances except the retries.
    pub fn life(&self) -> Life {
        let state = match (&self.last, self.ended.last()) {
            (Last::Unscheduled, _) | (Last::Ended, None) => State::Unscheduled,
            (Last::Pending(open), _) => State::Pending(open.run, None),
            (Last::Running(open, _), _) => State::Running(open.run),
            (Last::Ended, Some(ended)) => State::Resolved(ended.run.run, ended.outcome()),
        };
        let left = Allowance { retries_left: self.retries_left, free_runs: 0, requeues: 0, losses: 0 };
        Life { state, rule: RetryRule::NONE, left }
    }
}

pub fn apply(life: Life, event: Event) -> Result<Step, Refusal> {
    match event {
        Event::Schedule(hold) => match life.state {
            State::Unscheduled => {
                let made = Some((RunId::FIRST, ReasonCreated::Scheduled));
                Ok(Step { made, ..moved(life, State::Pending(RunId::FIRST, hold)) })
            }
            State::Pending(..) | State::Running(_) => Err(Refusal::AlreadyScheduled),
            State::Resolved(..) => Err(Refusal::AlreadyResolved),
        },
        Event::Rerun { retries, hold } => rerun(life, retries, hold),
        Event::Cancel => resolve(life, ReasonResolved::Canceled),
        Event::DeadlinePassed => resolve(life, ReasonResolved::DeadlineExceeded),
        Event::Claim(run) => match pending(life, run)? {
            None => Ok(moved(life, State::Running(run))),
            Some(Hold::Delay | Hold::Waiting | Hold::Assigned) => Err(Refusal::Held),
        },
        Event::Accept(run) => match pending(life, run)? {
            None | Some(Hold::Assigned) => Ok(moved(life, State::Running(run))),
            Some(Hold::Delay | Hold::Waiting) => Err(Refusal::Held),
        },
        Event::Ready(run) => match pending(life, run)? {
            None | Some(Hold::Delay | Hold::Waiting) => Ok(moved(life, State::Pending(run, None))),
            Some(Hold::Assigned) => Err(Refusal::Held),
        },
        Event::Hold(run, to) => match (to, pending(life, run)?) {
            (Hold::Waiting, None | Some(Hold::Delay | Hold::Assigned)) | (Hold::Assigned, Some(Hold::Waiting)) => {
                Ok(moved(life, State::Pending(run, Some(to))))
            }
            (Hold::Delay | Hold::Waiting | Hold::Assigned, _) => Err(Refusal::Held),
        },
        Event::TakenBack(run, ending) => match pending(life, run)? {
            None | Some(Hold::Delay | Hold::Waiting) => Err(Refusal::NotClaimed),
            Some(Hold::Assigned) => take_back(life, run, ending),
        },
        Event::Reclaim(run) => {
            check_running(life, run)?;
            Ok(moved(life, life.state))
        }
        Event::End(run, ending, hold) => {
            check_running(life, run)?;
            end(life, run, ending, hold)
        }
        Event::LateResult(run) => late_result(life, run),
    }
}

/// The run must be pending.
fn pending(life: Life, run: RunId) -> Result<Option<Hold>, Refusal> {
    check_last(life, run)?;
    match life.state {
        State::Unscheduled => Err(Refusal::NoSuchRun),
        State::Pending(_, hold) => Ok(hold),
        State::Running(_) => Err(Refusal::AlreadyClaimed),
        State::Resolved(..) => Err(Refusal::AlreadyResolved),
    }
}

fn check_running(life: Life, run: RunId) -> Result<(), Refusal> {
    check_last(life, run)?;
    match life.state {
        State::Unscheduled => Err(Refusal::NoSuchRun),
        State::Pending(..) => Err(Refusal::NotClaimed),
        State::Running(_) => Ok(()),
        State::Resolved(..) => Err(Refusal::AlreadyResolved),
    }
}

fn check_last(life: Life, named: RunId) -> Result<(), Refusal> {
    match life.state {
        State::Unscheduled => Err(Refusal::NoSuchRun),
        State::Pending(last, _) | State::Running(last) | State::Resolved(last, _) => match named.cmp(&last) {
            std::cmp::Ordering::Equal => Ok(()),
            std::cmp::Ordering::Less => Err(Refusal::NotTheLastRun),
            std::cmp::Ordering::Greater => Err(Refusal::NoSuchRun),
        },
    }
}

fn moved(life: Life, state: State) -> Step {
    Step { life: Life { state, ..life }, ended: None, made: None }
}

fn resolved(life: Life, run: RunId, outcome: Outcome) -> Step {
    Step { ended: Some((run, outcome)), ..moved(life, State::Resolved(run, outcome)) }
}

/// A task without a run gets one for the exception.
fn resolve(life: Life, reason: ReasonResolved) -> Result<Step, Refusal> {
    let outcome = Outcome::Exception(reason);
    match life.state {
        State::Unscheduled => {
            let made = Some((RunId::FIRST, ReasonCreated::Exception));
            Ok(Step { made, ..resolved(life, RunId::FIRST, outcome) })
        }
        State::Pending(last, _) | State::Running(last) => Ok(resolved(life, last, outcome)),
        State::Resolved(..) => Err(Refusal::AlreadyResolved),
    }
}

fn take_back(life: Life, run: RunId, ending: Ending) -> Result<Step, Refusal> {
    match ending::taken_back(life.rule.delivery, ending) {
        TakenBack::Waits => Ok(moved(life, State::Pending(run, Some(Hold::Waiting)))),
        TakenBack::Ends => Ok(resolved(life, run, ending.outcome())),
        TakenBack::Stays => Err(Refusal::Held),
        TakenBack::NotOfAnAssignment => Err(Refusal::NotClaimed),
    }
}

fn end(life: Life, run: RunId, ending: Ending, hold: Option<Hold>) -> Result<Step, Refusal> {
    let outcome = ending.outcome();
    let decision = ending::decide(life.rule, ending, run, life.left)?;
    let made = decision.next.map(|reason| (run.next(), reason));
    let state = match made {
        Some((next, _)) => State::Pending(next, hold),
        None => State::Resolved(run, outcome),
    };
    Ok(Step { life: Life { state, left: decision.left, ..life }, ended: Some((run, outcome)), made })
}

/// Supersedes the open run, and resolves the task with a run that is made for the result.
fn late_result(life: Life, run: RunId) -> Result<Step, Refusal> {
    let last = match life.state {
        State::Unscheduled => return Err(Refusal::NoSuchRun),
        State::Resolved(..) => return Err(Refusal::AlreadyResolved),
        State::Pending(last, _) | State::Running(last) => last,
    };
    if run >= last {
        return Err(Refusal::NotTaken);
    }
    let made = last.next();
    let life =
        Life { state: State::Resolved(made, Outcome::Completed), left: Allowance { losses: 0, ..life.left }, ..life };
    let superseded = Outcome::Exception(ReasonResolved::Superseded);
    Ok(Step { life, ended: Some((last, superseded)), made: Some((made, ReasonCreated::Exception)) })
}

/// Resets the retries as far as the number of runs allows.
fn rerun(life: Life, retries: u16, hold: Option<Hold>) -> Result<Step, Refusal> {
    let next = match life.state {
        State::Unscheduled => RunId::FIRST,
        State::Resolved(last, _) => last.next(),
        State::Pending(..) | State::Running(_) => return Err(Refusal::AlreadyScheduled),
    };
    let retries_left = retries_after_rerun(next, retries, life.left.free_runs).ok_or(Refusal::RunsUsedUp)?;
    let left = Allowance { retries_left, losses: 0, ..life.left };
    let life = Life { left, ..life };
    Ok(Step { made: Some((next, ReasonCreated::Rerun)), ..moved(life, State::Pending(next, hold)) })
}

#[cfg(test)]
#[path = "life_tests.rs"]
mod tests;
