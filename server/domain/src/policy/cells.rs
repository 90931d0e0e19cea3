//! The published table of delivery guarantees: what happens to a task whose worker exits, does not
//! accept it or is slow, or whose scheduler is replaced. docs/delivery.md prints it, and `tenure
//! verify delivery` tests every cell against a live deployment.

use chrono::TimeDelta;
use tenure_api::states::{Delivery, SessionEnd, TaskState};

use super::ending::Ending;
use crate::session;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Situation {
    /// The worker neither renews nor reports.
    Exit,
    NotAccepted,
    /// The worker renews indefinitely before it reports.
    Slow,
    /// The queue's scheduler is lost, and the policy says `onSchedulerLoss: reassign`.
    SchedulerReplaced,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum By {
    Lease,
    /// The run's session, which expires before the lease.
    Session,
    AcceptTime,
    /// The scheduler is replaced after the worker accepted the run.
    Scheduler,
    /// The scheduler is replaced before the worker accepted the run.
    SchedulerUnaccepted,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Follows {
    Waits,
    /// Another run follows at once, without using a retry.
    AnotherRun(After),
    /// The same run goes to another worker, because it was never started.
    AnotherWorker(After),
    Ends(After),
}

/// When a run is taken away from its worker.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum After {
    Noticed,
    CompleteTime,
    /// The loss of the worker or the end of completeTime, the earlier of both.
    TheEarlier,
    AcceptTime,
    Replaced,
    /// The end of a completeTime that begins with the replacement.
    CompleteTimeAnew,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Times {
    /// Since the last renewal of the lease or the session.
    pub silence: TimeDelta,
    pub accept: TimeDelta,
    /// Since the claim or the replacement of the scheduler.
    pub complete: TimeDelta,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cell {
    pub situation: Situation,
    pub delivery: Delivery,
    pub has_complete_time: bool,
    /// The consequence; if acceptance matters, that for an accepted run.
    follows: Follows,
}

const fn cell(situation: Situation, delivery: Delivery, has_complete_time: bool, follows: Follows) -> Cell {
    Cell { situation, delivery, has_complete_time, follows }
}

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

    /// Returns the word in a cell's name.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Exit => "exit",
            Self::NotAccepted => "accept",
            Self::Slow => "slow",
            Self::SchedulerReplaced => "scheduler",
        }
    }

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
    /// Final number of runs, if the next worker reports success.
    #[must_use]
    pub fn runs(self) -> u16 {
        match self {
            Self::Waits | Self::AnotherWorker(_) | Self::Ends(_) => 1,
            Self::AnotherRun(_) => 2,
        }
    }

    /// Returns the final state, if the next worker reports success.
    #[must_use]
    pub fn task_ends(self) -> TaskState {
        match self {
            Self::Waits | Self::AnotherRun(_) | Self::AnotherWorker(_) => TaskState::Completed,
            Self::Ends(_) => TaskState::Exception,
        }
    }

    /// True if the first worker may still accept and report the run; otherwise both get a 409.
    #[must_use]
    pub fn takes_late_report(self) -> bool {
        match self {
            Self::Waits => true,
            Self::AnotherRun(_) | Self::AnotherWorker(_) | Self::Ends(_) => false,
        }
    }
}

impl Cell {
    /// Returns the name for `--cell`, such as `exit/at-least/0`.
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
            // The worker renews both lease and session.
            Situation::Slow => &[By::Lease],
            Situation::SchedulerReplaced => &[By::Scheduler, By::SchedulerUnaccepted],
        }
    }

    pub fn follows(&self, by: By) -> Follows {
        match by {
            By::Lease | By::Session | By::AcceptTime | By::Scheduler => self.follows,
            By::SchedulerUnaccepted => match self.follows {
                // No worker has started the run, so no completeTime applies.
                Follows::AnotherRun(_) => Follows::AnotherWorker(After::Replaced),
                same @ (Follows::Waits | Follows::AnotherWorker(_) | Follows::Ends(_)) => same,
            },
        }
    }

    /// Returns when and how the run is taken away; none if it waits for its worker. Each duration
    /// counts from its own start.
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

/// Renders [`CELLS`] as a Markdown table.
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
