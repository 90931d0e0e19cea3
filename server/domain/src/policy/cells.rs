//! What is published of deliveries, cell by cell: what becomes of a task whose worker exits, or is slow. docs/delivery.md
//! prints it, and `tenure verify delivery` plays every cell against a live deployment.

use chrono::TimeDelta;
use tenure_api::states::{Delivery, SessionEnd, TaskState};

use super::ending::Ending;
use crate::session;

/// What happens to a run in a worker's hands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Situation {
    /// The worker is gone: it renews nothing and reports nothing.
    Exit,
    /// The worker renews its claim for ever and does not report, until it reports after all.
    Slow,
}

/// What notices that a worker is gone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NoticedBy {
    /// The lease of the run.
    Lease,
    /// The session that the run belongs to, whose time is over before the lease is.
    Session,
}

/// What becomes of the run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Follows {
    /// Nothing: its worker is waited for.
    Waits,
    /// It ends then, and another run follows at once that costs no retry.
    AnotherRun(After),
    /// It ends then, and the task with it.
    Ends(After),
}

/// When a run ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum After {
    /// When it is noticed that the worker is gone.
    Noticed,
    /// When the completeTime is over.
    CompleteTime,
    /// When the first of both is so.
    TheEarlier,
}

/// One cell of the table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cell {
    /// What happens.
    pub situation: Situation,
    /// Under which delivery.
    pub delivery: Delivery,
    /// Whether the queue has a completeTime.
    pub has_complete_time: bool,
    /// What becomes of it.
    pub follows: Follows,
}

const fn cell(situation: Situation, delivery: Delivery, has_complete_time: bool, follows: Follows) -> Cell {
    Cell { situation, delivery, has_complete_time, follows }
}

/// Every cell that is true, row by row.
pub const CELLS: [Cell; 8] = {
    use After::{CompleteTime, Noticed, TheEarlier};
    use Delivery::{AtLeastOnce, AtMostOnce};
    use Follows::{AnotherRun, Ends, Waits};
    use Situation::{Exit, Slow};
    [
        cell(Exit, AtLeastOnce, false, AnotherRun(Noticed)),
        cell(Exit, AtLeastOnce, true, AnotherRun(TheEarlier)),
        cell(Exit, AtMostOnce, false, Ends(Noticed)),
        cell(Exit, AtMostOnce, true, Ends(Noticed)),
        cell(Slow, AtLeastOnce, false, Waits),
        cell(Slow, AtLeastOnce, true, AnotherRun(CompleteTime)),
        cell(Slow, AtMostOnce, false, Waits),
        cell(Slow, AtMostOnce, true, Waits),
    ]
};

impl Situation {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::Exit, Self::Slow];

    /// The word in the name of a cell.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Exit => "exit",
            Self::Slow => "slow",
        }
    }

    /// For people.
    #[must_use]
    pub fn words(self) -> &'static str {
        match self {
            Self::Exit => "**the worker exits**",
            Self::Slow => "**the worker is slow**",
        }
    }
}

impl NoticedBy {
    /// The word for it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Lease => "lease",
            Self::Session => "session",
        }
    }
}

impl Cell {
    /// The cell's name, as `--cell` takes it: `exit/at-least/0`.
    #[must_use]
    pub fn name(&self) -> String {
        let delivery = match self.delivery {
            Delivery::Retries => "retries",
            Delivery::AtLeastOnce => "at-least",
            Delivery::AtMostOnce => "at-most",
        };
        format!("{}/{delivery}/{}", self.situation.as_str(), if self.has_complete_time { "n" } else { "0" })
    }

    /// All that may notice it, so that the cell is true for each.
    #[must_use]
    pub fn noticed_by(&self) -> &'static [NoticedBy] {
        match self.situation {
            Situation::Exit => &[NoticedBy::Lease, NoticedBy::Session],
            // Its worker renews whatever it has.
            Situation::Slow => &[NoticedBy::Lease],
        }
    }

    /// When the run ends, and as what; none if its worker is waited for. The silence is how long a worker may be silent that is
    /// noticed by this: it counts from the last renewal, of the lease or of the session, and the completeTime from the claim.
    #[must_use]
    pub fn end(&self, by: NoticedBy, silence: TimeDelta, complete_time: TimeDelta) -> Option<(TimeDelta, Ending)> {
        let noticed = match by {
            NoticedBy::Lease => Ending::LeaseExpired,
            NoticedBy::Session => session::run_ends(SessionEnd::Expired, self.delivery, 0),
        };
        let (noticed, by_time) = ((silence, noticed), (complete_time, Ending::TooSlow));
        let after = match self.follows {
            Follows::Waits => return None,
            Follows::AnotherRun(after) | Follows::Ends(after) => after,
        };
        Some(match after {
            After::Noticed => noticed,
            After::CompleteTime => by_time,
            After::TheEarlier if complete_time < silence => by_time,
            After::TheEarlier => noticed,
        })
    }

    /// How many runs the task has in the end, if the worker that is next reports success.
    #[must_use]
    pub fn runs(&self) -> u16 {
        match self.follows {
            Follows::Waits | Follows::Ends(_) => 1,
            Follows::AnotherRun(_) => 2,
        }
    }

    /// How the task ends, if the worker that is next reports success; where it is waited for, the first worker.
    #[must_use]
    pub fn task_ends(&self) -> TaskState {
        match self.follows {
            Follows::Waits | Follows::AnotherRun(_) => TaskState::Completed,
            Follows::Ends(_) => TaskState::Exception,
        }
    }

    /// Whether a report of the first worker is taken, however late it comes. Otherwise it is answered with 409.
    #[must_use]
    pub fn takes_late_report(&self) -> bool {
        match self.follows {
            Follows::Waits => true,
            Follows::AnotherRun(_) | Follows::Ends(_) => false,
        }
    }

    /// For people.
    #[must_use]
    pub fn words(&self) -> String {
        let time = |after| match after {
            After::Noticed => "when its lease or its session is over",
            After::CompleteTime => "`completeTime` after it was claimed",
            After::TheEarlier => "when its lease, its session or its `completeTime` is over",
        };
        match self.follows {
            Follows::Waits => "waits for it for ever; one run".to_owned(),
            Follows::AnotherRun(after) => {
                format!("another run {}; no retry used; a report of the first is answered with 409", time(after))
            }
            Follows::Ends(after) => format!("`exception` {}; no other run", time(after)),
        }
    }
}

/// [`CELLS`] as lines of Markdown.
#[must_use]
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
mod tests {
    use super::super::document::tests::policy;
    use super::super::ending::{Allowance, decide};
    use super::super::options::Options;
    use super::super::terms::Terms;
    use super::*;
    use chrono::DateTime;
    use serde_json::json;
    use tenure_api::ids::RunId;

    const SILENCE: TimeDelta = TimeDelta::seconds(10);
    const COMPLETE_TIME: TimeDelta = TimeDelta::seconds(3);

    /// What the rules say of a cell: when its run ends and as what, and whether another run follows.
    fn by_the_rules(cell: &Cell, by: NoticedBy, complete_time: TimeDelta) -> Option<(TimeDelta, Ending, bool)> {
        let seconds = if cell.has_complete_time { complete_time.num_seconds() } else { 0 };
        let policy = policy(&json!({"delivery": cell.delivery, "completeTime": seconds})).unwrap();
        let start = DateTime::UNIX_EPOCH;
        let too_slow = Terms::of(&policy, &Options::default()).complete_by(start);
        let too_slow = too_slow.map(|time| (time - start, Ending::TooSlow));
        let noticed = match (cell.situation, by) {
            (Situation::Exit, NoticedBy::Lease) => Some((SILENCE, Ending::LeaseExpired)),
            (Situation::Exit, NoticedBy::Session) => Some((SILENCE, Ending::SessionEnded)),
            (Situation::Slow, _) => None,
        };
        let (time, ending) = [too_slow, noticed].into_iter().flatten().min_by_key(|(time, _)| *time)?;
        let had = Allowance { retries_left: 5, free_runs: 0, requeues: 0, losses: 0 };
        let decision = decide(cell.delivery, ending, RunId::FIRST, had).unwrap();
        assert_eq!(decision.left.retries_left, 5, "no cell costs a retry");
        Some((time, ending, decision.next.is_some()))
    }

    #[test]
    fn every_cell_is_what_the_rules_say() {
        for (cell, by) in CELLS.iter().flat_map(|cell| cell.noticed_by().iter().map(move |by| (cell, *by))) {
            for complete_time in [COMPLETE_TIME, TimeDelta::seconds(60)] {
                let expected = by_the_rules(cell, by, complete_time);
                let ends = expected.map(|(time, ending, _)| (time, ending));
                assert_eq!(cell.end(by, SILENCE, complete_time), ends, "{} {by:?}", cell.name());
                match (cell.follows, expected) {
                    (Follows::Waits, None)
                    | (Follows::AnotherRun(_), Some((.., true)))
                    | (Follows::Ends(_), Some((.., false))) => {}
                    (follows, rules) => panic!("{}: {follows:?} and {rules:?}", cell.name()),
                }
            }
        }
    }

    #[test]
    fn every_cell_is_there_once_and_in_the_order_of_the_table() {
        let names: Vec<String> = CELLS.iter().map(Cell::name).collect();
        let expected = [
            "exit/at-least/0",
            "exit/at-least/n",
            "exit/at-most/0",
            "exit/at-most/n",
            "slow/at-least/0",
            "slow/at-least/n",
            "slow/at-most/0",
            "slow/at-most/n",
        ];
        assert_eq!(names, expected);
    }

    #[test]
    fn what_is_seen_of_a_cell_agrees_with_itself() {
        for cell in CELLS {
            for by in cell.noticed_by() {
                let ended = cell.end(*by, SILENCE, COMPLETE_TIME).is_some();
                assert_eq!(cell.takes_late_report(), !ended);
                assert_eq!(cell.runs() == 2, matches!(cell.follows, Follows::AnotherRun(_)));
                assert_eq!(cell.task_ends() == TaskState::Exception, ended && cell.runs() == 1);
            }
        }
    }

    #[test]
    fn a_worker_that_exits_is_noticed_by_its_lease_and_by_its_session() {
        for cell in CELLS {
            let by: Vec<&str> = cell.noticed_by().iter().map(|by| by.as_str()).collect();
            let expected = if cell.situation == Situation::Exit { &["lease", "session"][..] } else { &["lease"] };
            assert_eq!(by, expected, "{}", cell.name());
        }
    }

    #[test]
    fn both_pages_show_the_cells() {
        let note = include_str!("../../../../docs/internals/policies.md");
        assert!(note.contains(&markdown()), "docs/internals/policies.md is to contain:\n{}", markdown());
        let page = include_str!("../../../../docs/delivery.md");
        assert!(page.contains(&markdown()), "docs/delivery.md is to contain:\n{}", markdown());
    }
}
