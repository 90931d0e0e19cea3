//! The life of a task with a delivery and with holds: [`lifecycle`] and what policies add to it. For a task
//! without either it is [`lifecycle::apply`], which it asks for everything that policies leave as it is.
//!
//! Times are not looked at: an event says whether the run that it makes is delayed.

use tenure_api::ids::RunId;
use tenure_api::states::{Delivery, ReasonCreated};

use super::ending::{self, Allowance, Ending, TakenBack, retries_after_rerun};
use super::hold::Hold;
use crate::lifecycle::{self, Outcome, Report};

/// Where a task is in its life.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// It has no run yet.
    Unscheduled,
    /// Its last run waits for a worker, or for its time.
    Pending(RunId, Option<Hold>),
    /// Its last run is claimed.
    Running(RunId),
    /// Its last run has ended and no other follows.
    Resolved(RunId, Outcome),
}

/// A task's state, what a lost worker costs it, and what is left of its allowances.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Life {
    /// Where it is.
    pub state: State,
    /// What a lost worker costs.
    pub delivery: Delivery,
    /// What is left.
    pub left: Allowance,
}

/// Something that happens to a task.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// Its dependencies are satisfied, or scheduleTask runs it without them; the run is delayed or not.
    Schedule(Option<Hold>),
    /// Another run is requested; the task was created with so many retries.
    Rerun {
        /// The retries of its definition.
        retries: u16,
        /// Whether the run waits for admission. A delay is not for reruns.
        hold: Option<Hold>,
    },
    /// It is cancelled.
    Cancel,
    /// The task's deadline has passed.
    DeadlinePassed,
    /// The time of a run that is held has come, or it is admitted for any worker.
    Ready(RunId),
    /// Something else holds the run from now on.
    Hold(RunId, Hold),
    /// A worker takes the run.
    Claim(RunId),
    /// The session that the run is assigned to takes it.
    Accept(RunId),
    /// The run is taken back from the session that it is assigned to.
    TakenBack(RunId, Ending),
    /// The worker renews its claim.
    Reclaim(RunId),
    /// The claim ends; a run that follows is delayed or not.
    End(RunId, Ending, Option<Hold>),
}

/// Which rule refuses an event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// One that holds without policies too.
    Life(lifecycle::Refusal),
    /// The run is held: its time has not come, it waits for admission, or it is another session's.
    Held,
    /// No run of the task may end for nothing any more: the worker keeps it.
    FreeRunsUsedUp,
}

impl From<lifecycle::Refusal> for Refusal {
    fn from(refusal: lifecycle::Refusal) -> Self {
        Self::Life(refusal)
    }
}

impl From<ending::Refused> for Refusal {
    fn from(refused: ending::Refused) -> Self {
        match refused {
            ending::Refused::RequeuesUsedUp => Self::Life(lifecycle::Refusal::RequeuesUsedUp),
            ending::Refused::FreeRunsUsedUp => Self::FreeRunsUsedUp,
            ending::Refused::NotOfAClaim => Self::Life(lifecycle::Refusal::AlreadyClaimed),
        }
    }
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
    match event {
        Event::Schedule(hold) => plain(life, lifecycle::Event::Schedule, hold),
        Event::Rerun { retries, hold } => {
            let step = plain(life, lifecycle::Event::Rerun { retries: 0 }, hold);
            rerun(life, retries, hold, step)
        }
        Event::Cancel => plain(life, lifecycle::Event::Cancel, None),
        Event::DeadlinePassed => plain(life, lifecycle::Event::DeadlinePassed, None),
        Event::Reclaim(run) => plain(life, lifecycle::Event::Reclaim(run), None),
        Event::Claim(run) => {
            let step = plain(life, lifecycle::Event::Claim(run), None)?;
            match held(life.state) {
                None => Ok(step),
                Some(Hold::Delay | Hold::Waiting | Hold::Assigned) => Err(Refusal::Held),
            }
        }
        Event::Accept(run) => {
            let step = plain(life, lifecycle::Event::Claim(run), None)?;
            match held(life.state) {
                None | Some(Hold::Assigned) => Ok(step),
                Some(Hold::Delay | Hold::Waiting) => Err(Refusal::Held),
            }
        }
        Event::Ready(run) => {
            // What a claim of the run would be told, but for the hold.
            plain(life, lifecycle::Event::Claim(run), None)?;
            match held(life.state) {
                None | Some(Hold::Delay | Hold::Waiting) => Ok(moved(life, State::Pending(run, None))),
                Some(Hold::Assigned) => Err(Refusal::Held),
            }
        }
        Event::Hold(run, to) => {
            plain(life, lifecycle::Event::Claim(run), None)?;
            hold(life, run, to)
        }
        Event::TakenBack(run, ending) => {
            plain(life, lifecycle::Event::Claim(run), None)?;
            take_back(life, run, ending)
        }
        Event::End(run, ending, hold) => {
            // What any report of the run would be told.
            plain(life, lifecycle::Event::Report(run, Report::Completed), None)?;
            end(life, run, ending, hold)
        }
    }
}

/// What holds the run of a task, if it is pending and anything does.
fn held(state: State) -> Option<Hold> {
    match state {
        State::Pending(_, hold) => hold,
        State::Unscheduled | State::Running(_) | State::Resolved(..) => None,
    }
}

fn moved(life: Life, state: State) -> Step {
    Step { life: Life { state, ..life }, ended: None, made: None }
}

/// A pending run is held by something else: it begins to wait for admission, is assigned, or waits again.
fn hold(life: Life, run: RunId, to: Hold) -> Result<Step, Refusal> {
    let may = match to {
        Hold::Delay => false,
        Hold::Waiting => match held(life.state) {
            None | Some(Hold::Delay | Hold::Assigned) => true,
            Some(Hold::Waiting) => false,
        },
        Hold::Assigned => match held(life.state) {
            Some(Hold::Waiting) => true,
            None | Some(Hold::Delay | Hold::Assigned) => false,
        },
    };
    if may { Ok(moved(life, State::Pending(run, Some(to)))) } else { Err(Refusal::Held) }
}

/// A pending run is taken back from the session that it is assigned to.
fn take_back(life: Life, run: RunId, ending: Ending) -> Result<Step, Refusal> {
    match held(life.state) {
        None | Some(Hold::Delay | Hold::Waiting) => Err(lifecycle::Refusal::NotClaimed.into()),
        Some(Hold::Assigned) => match ending::taken_back(life.delivery, ending) {
            TakenBack::Waits => Ok(moved(life, State::Pending(run, Some(Hold::Waiting)))),
            TakenBack::Ends => {
                let outcome = ending.outcome();
                Ok(Step { ended: Some((run, outcome)), ..moved(life, State::Resolved(run, outcome)) })
            }
            TakenBack::Stays => Err(Refusal::Held),
            TakenBack::NotOfAnAssignment => Err(lifecycle::Refusal::NotClaimed.into()),
        },
    }
}

fn end(life: Life, run: RunId, ending: Ending, hold: Option<Hold>) -> Result<Step, Refusal> {
    let outcome = ending.outcome();
    let decision = ending::decide(life.delivery, ending, run, life.left)?;
    let made = decision.next.map(|reason| (run.next(), reason));
    let state = match made {
        Some((next, _)) => State::Pending(next, hold),
        None => State::Resolved(run, outcome),
    };
    Ok(Step { life: Life { state, left: decision.left, ..life }, ended: Some((run, outcome)), made })
}

/// The life cycle says whether there may be another run, except for the number of runs, of which it counts the free ones too.
fn rerun(life: Life, retries: u16, hold: Option<Hold>, step: Result<Step, Refusal>) -> Result<Step, Refusal> {
    let next = match life.state {
        State::Unscheduled => RunId::FIRST,
        State::Resolved(last, _) => last.next(),
        State::Pending(..) | State::Running(_) => return step,
    };
    let retries_left = retries_after_rerun(next, retries, life.left.free_runs);
    let retries_left = retries_left.ok_or(lifecycle::Refusal::RunsUsedUp)?;
    let left = Allowance { retries_left, losses: 0, ..life.left };
    let life = Life { state: State::Pending(next, hold), left, ..life };
    Ok(Step { life, ended: None, made: Some((next, ReasonCreated::Rerun)) })
}

/// What the life cycle without policies says; a run that it makes pending is held so.
fn plain(life: Life, event: lifecycle::Event, hold: Option<Hold>) -> Result<Step, Refusal> {
    let state = match life.state {
        State::Unscheduled => lifecycle::State::Unscheduled,
        State::Pending(run, _) => lifecycle::State::Pending(run),
        State::Running(run) => lifecycle::State::Running(run),
        State::Resolved(run, outcome) => lifecycle::State::Resolved(run, outcome),
    };
    let Allowance { retries_left, requeues, .. } = life.left;
    let lifecycle::Step { life: after, ended, made } =
        lifecycle::apply(lifecycle::Life { state, retries_left, requeues }, event)?;
    let state = match after.state {
        lifecycle::State::Unscheduled => State::Unscheduled,
        lifecycle::State::Pending(run) => State::Pending(run, hold),
        lifecycle::State::Running(run) => State::Running(run),
        lifecycle::State::Resolved(run, outcome) => State::Resolved(run, outcome),
    };
    let left = Allowance { retries_left: after.retries_left, requeues: after.requeues, ..life.left };
    Ok(Step { life: Life { state, left, ..life }, ended, made })
}

#[cfg(test)]
#[path = "life_tests.rs"]
mod tests;
