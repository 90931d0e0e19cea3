//! What is published of deliveries, cell by cell: what becomes of a task whose worker exits, does not accept it or is slow, or
//! which was given out by a scheduler that is replaced. docs/delivery.md prints it, and `tenure verify delivery` plays every cell
//! against a live deployment.

use chrono::TimeDelta;
use tenure_api::states::{Delivery, SessionEnd, TaskState};

use super::ending::Ending;
use crate::session;

/// What happens to a run in a worker's hands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Situation {
    /// The worker is gone: it renews nothing and reports nothing.
    Exit,
    /// The worker does not accept what it is assigned.
    NotAccepted,
    /// The worker renews its claim for ever and does not report, until it reports after all.
    Slow,
    /// The server is lost that gave out the runs of the queue, and its policy says `onSchedulerLoss: reassign`.
    SchedulerReplaced,
}

/// What takes a run away from its worker, or would.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum By {
    /// The lease of the run.
    Lease,
    /// The session that the run belongs to, whose time is over before the lease is.
    Session,
    AcceptTime,
    /// The scheduler that is replaced, when the worker has accepted the run.
    Scheduler,
    /// The same, when the worker has not accepted it.
    SchedulerUnaccepted,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Follows {
    /// Nothing: its worker is waited for.
    Waits,
    /// It ends then, and another run follows at once that costs no retry.
    AnotherRun(After),
    /// It goes to another worker then. It was never started, so that it is the same run.
    AnotherWorker(After),
    /// It ends then, and the task with it.
    Ends(After),
}

/// When a run is taken away from its worker.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum After {
    /// When it is noticed that the worker is gone.
    Noticed,
    /// When the completeTime is over.
    CompleteTime,
    /// When the first of both is so.
    TheEarlier,
    /// When the acceptTime is over.
    AcceptTime,
    /// When the scheduler is replaced.
    Replaced,
    /// When the completeTime is over, counted from the replacement of the scheduler.
    CompleteTimeAnew,
}

/// The times that the end of a run depends on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Times {
    /// How long a worker may be silent. It counts from the last renewal, of the lease or of the session.
    pub silence: TimeDelta,
    /// The acceptTime. It counts from when the run was assigned.
    pub accept: TimeDelta,
    /// The completeTime. It counts from the claim, or from when the scheduler was replaced.
    pub complete: TimeDelta,
}

/// One cell of the table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cell {
    pub situation: Situation,
    pub delivery: Delivery,
    /// Whether the queue has a completeTime.
    pub has_complete_time: bool,
    /// What becomes of a run; where its worker may have accepted it or not, of one that was accepted.
    follows: Follows,
}

const fn cell(situation: Situation, delivery: Delivery, has_complete_time: bool, follows: Follows) -> Cell {
    Cell { situation, delivery, has_complete_time, follows }
}

/// Every cell that is true, row by row.
pub const CELLS: [Cell; 16] = {
    use After::{AcceptTime, CompleteTime, CompleteTimeAnew, Noticed, Replaced, TheEarlier};
    use Delivery::{AtLeastOnce, AtMostOnce};
    use Follows::{AnotherRun, AnotherWorker, Ends, Waits};
    use Situation::{Exit, NotAccepted, SchedulerReplaced, Slow};
    [
        cell(Exit, AtLeastOnce, false, AnotherRun(Noticed)),
        cell(Exit, AtLeastOnce, true, AnotherRun(TheEarlier)),
        cell(Exit, AtMostOnce, false, Ends(Noticed)),
        cell(Exit, AtMostOnce, true, Ends(Noticed)),
        cell(NotAccepted, AtLeastOnce, false, AnotherWorker(AcceptTime)),
        cell(NotAccepted, AtLeastOnce, true, AnotherWorker(AcceptTime)),
        cell(NotAccepted, AtMostOnce, false, Ends(AcceptTime)),
        cell(NotAccepted, AtMostOnce, true, Ends(AcceptTime)),
        cell(Slow, AtLeastOnce, false, Waits),
        cell(Slow, AtLeastOnce, true, AnotherRun(CompleteTime)),
        cell(Slow, AtMostOnce, false, Waits),
        cell(Slow, AtMostOnce, true, Waits),
        cell(SchedulerReplaced, AtLeastOnce, false, AnotherRun(Replaced)),
        cell(SchedulerReplaced, AtLeastOnce, true, AnotherRun(CompleteTimeAnew)),
        cell(SchedulerReplaced, AtMostOnce, false, Waits),
        cell(SchedulerReplaced, AtMostOnce, true, Waits),
    ]
};

impl Situation {
    pub const ALL: [Self; 4] = [Self::Exit, Self::NotAccepted, Self::Slow, Self::SchedulerReplaced];

    /// The word in the name of a cell.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Exit => "exit",
            Self::NotAccepted => "accept",
            Self::Slow => "slow",
            Self::SchedulerReplaced => "scheduler",
        }
    }

    /// For people.
    #[must_use]
    pub fn words(self) -> &'static str {
        match self {
            Self::Exit => "**the worker exits**",
            Self::NotAccepted => "**the worker does not accept it**",
            Self::Slow => "**the worker is slow**",
            Self::SchedulerReplaced => "**the scheduler is replaced**",
        }
    }
}

impl By {
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Lease => "lease",
            Self::Session => "session",
            Self::AcceptTime => "accept-time",
            Self::Scheduler => "scheduler",
            Self::SchedulerUnaccepted => "unaccepted",
        }
    }
}

impl Follows {
    /// How many runs the task has in the end, if the worker that is next reports success.
    #[must_use]
    pub fn runs(self) -> u16 {
        match self {
            Self::Waits | Self::AnotherWorker(_) | Self::Ends(_) => 1,
            Self::AnotherRun(_) => 2,
        }
    }

    /// How the task ends, if the worker that is next reports success; where it is waited for, the first worker.
    #[must_use]
    pub fn task_ends(self) -> TaskState {
        match self {
            Self::Waits | Self::AnotherRun(_) | Self::AnotherWorker(_) => TaskState::Completed,
            Self::Ends(_) => TaskState::Exception,
        }
    }

    /// Whether a report of the first worker is taken, however late it comes, and its acceptance before that if it has not
    /// accepted the run. Otherwise it is answered with 409.
    #[must_use]
    pub fn takes_late_report(self) -> bool {
        match self {
            Self::Waits => true,
            Self::AnotherRun(_) | Self::AnotherWorker(_) | Self::Ends(_) => false,
        }
    }
}

impl Cell {
    /// The cell's name, as `--cell` takes it: `exit/at-least/0`.
    pub fn name(&self) -> String {
        let delivery = match self.delivery {
            Delivery::Retries => "retries",
            Delivery::AtLeastOnce => "at-least",
            Delivery::AtMostOnce => "at-most",
        };
        format!("{}/{delivery}/{}", self.situation.as_str(), if self.has_complete_time { "n" } else { "0" })
    }

    pub fn ways(&self) -> &'static [By] {
        match self.situation {
            Situation::Exit => &[By::Lease, By::Session],
            Situation::NotAccepted => &[By::AcceptTime],
            // Its worker renews whatever it has.
            Situation::Slow => &[By::Lease],
            Situation::SchedulerReplaced => &[By::Scheduler, By::SchedulerUnaccepted],
        }
    }

    pub fn follows(&self, by: By) -> Follows {
        match by {
            By::Lease | By::Session | By::AcceptTime | By::Scheduler => self.follows,
            By::SchedulerUnaccepted => match self.follows {
                // No worker has begun it, so that no completeTime is waited for.
                Follows::AnotherRun(_) => Follows::AnotherWorker(After::Replaced),
                same @ (Follows::Waits | Follows::AnotherWorker(_) | Follows::Ends(_)) => same,
            },
        }
    }

    /// When the run is taken away from its worker, and as what; none if its worker is waited for. Each of the times counts from
    /// its own beginning, and a replacement of the scheduler from itself.
    pub fn end(&self, by: By, times: &Times) -> Option<(TimeDelta, Ending)> {
        let ending = match by {
            By::Lease => Ending::LeaseExpired,
            By::Session => session::run_ends(SessionEnd::Expired, self.delivery, 0),
            By::AcceptTime => Ending::NotAccepted,
            By::Scheduler | By::SchedulerUnaccepted => Ending::SchedulerReplaced,
        };
        let (noticed, by_time) = ((times.silence, ending), (times.complete, Ending::TooSlow));
        let after = match self.follows(by) {
            Follows::Waits => return None,
            Follows::AnotherRun(after) | Follows::AnotherWorker(after) | Follows::Ends(after) => after,
        };
        Some(match after {
            After::Noticed => noticed,
            After::CompleteTime | After::CompleteTimeAnew => by_time,
            After::TheEarlier if times.complete < times.silence => by_time,
            After::TheEarlier => noticed,
            After::AcceptTime => (times.accept, ending),
            After::Replaced => (TimeDelta::zero(), ending),
        })
    }

    /// For people.
    pub fn words(&self) -> String {
        let words = in_words(self.follows);
        let unaccepted = self.ways().contains(&By::SchedulerUnaccepted).then(|| self.follows(By::SchedulerUnaccepted));
        match unaccepted.filter(|follows| *follows != self.follows) {
            Some(other) => format!("{words}; if it was not accepted yet: {}", in_words(other)),
            None => words,
        }
    }
}

fn in_words(follows: Follows) -> String {
    let time = |after| match after {
        After::Noticed => "when its lease or its session is over",
        After::CompleteTime => "`completeTime` after it was claimed",
        After::TheEarlier => "when its lease, its session or its `completeTime` is over",
        After::AcceptTime => "once its `acceptTime` is over",
        After::Replaced => "at once",
        After::CompleteTimeAnew => "`completeTime` after that, unless it has ended by then",
    };
    match follows {
        Follows::Waits => "waits for it for ever; one run".to_owned(),
        Follows::AnotherRun(after) => {
            format!("another run {}; no retry used; a report of the first is answered with 409", time(after))
        }
        Follows::AnotherWorker(after) => format!("another worker gets it {}; one run, no retry used", time(after)),
        Follows::Ends(after) => format!("`exception` {}; no other run", time(after)),
    }
}

/// [`CELLS`] as lines of Markdown.
pub fn markdown() -> String {
    let mut text =
        "| | `at-least-once`, `completeTime` 0 | `at-least-once`, > 0 | `at-most-once`, 0 | `at-most-once`, > 0 |\n\
                    |---|---|---|---|---|\n"
            .to_owned();
    for situation in Situation::ALL {
        let row = CELLS.iter().filter(|cell| cell.situation == situation).map(Cell::words);
        text.push_str(&format!("| {} | {} |\n", situation.words(), row.collect::<Vec<_>>().join(" | ")));
    }
    text
}

#[cfg(test)]
#[path = "cells_tests.rs"]
mod tests;
