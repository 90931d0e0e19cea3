use super::super::document::tests::policy;
use super::super::ending::{Allowance, RetryRule, TakenBack, decide, taken_back};
use super::super::options::Options;
use super::super::terms::Terms;
use super::*;
use chrono::DateTime;
use serde_json::json;
use tenure_api::ids::RunId;

const TIMES: Times =
    Times { silence: TimeDelta::seconds(10), accept: TimeDelta::seconds(1), complete: TimeDelta::seconds(3) };

fn each_way() -> impl Iterator<Item = (Cell, By)> {
    CELLS.into_iter().flat_map(|cell| cell.ways().iter().map(move |by| (cell, *by)))
}

/// The consequence without its time.
#[derive(Debug, PartialEq)]
enum Next {
    Run,
    Worker,
    Nothing,
}

/// The end of the completeTime of a run that was claimed, or whose scheduler was replaced, at time
/// 0.
fn too_slow(cell: &Cell, times: &Times) -> Option<(TimeDelta, Ending)> {
    let seconds = if cell.has_complete_time { times.complete.num_seconds() } else { 0 };
    let policy = policy(&json!({"delivery": cell.delivery, "completeTime": seconds})).unwrap();
    let time = Terms::of(&policy, &Options::default()).complete_by(DateTime::UNIX_EPOCH)?;
    Some((time - DateTime::UNIX_EPOCH, Ending::TooSlow))
}

/// The rules' result for a claimed run.
fn claimed(cell: &Cell, (time, ending): (TimeDelta, Ending)) -> (TimeDelta, Ending, Next) {
    let had = Allowance { retries_left: 5, free_runs: 0, requeues: 0, losses: 0 };
    let decision = decide(RetryRule::of(cell.delivery), ending, RunId::FIRST, had).unwrap();
    assert_eq!(decision.left.retries_left, 5, "no cell costs a retry");
    (time, ending, if decision.next.is_some() { Next::Run } else { Next::Nothing })
}

/// The rules' result for an assigned run.
fn assigned(cell: &Cell, (time, ending): (TimeDelta, Ending)) -> Option<(TimeDelta, Ending, Next)> {
    match taken_back(cell.delivery, ending) {
        TakenBack::Waits => Some((time, ending, Next::Worker)),
        TakenBack::Ends => Some((time, ending, Next::Nothing)),
        TakenBack::Stays => None,
        TakenBack::NotOfAnAssignment => panic!("{}", cell.name()),
    }
}

/// The rules' result for a cell: when and how its run is taken away, and the consequence.
fn by_the_rules(cell: &Cell, by: By, times: &Times) -> Option<(TimeDelta, Ending, Next)> {
    let too_slow = too_slow(cell, times);
    let replaced = (TimeDelta::zero(), Ending::SchedulerReplaced);
    let noticed = match (cell.situation, by) {
        (Situation::Exit, By::Session) => Some((times.silence, Ending::SessionEnded)),
        (Situation::Exit, _) => Some((times.silence, Ending::LeaseExpired)),
        (Situation::Slow, _) => None,
        (Situation::NotAccepted, _) => return assigned(cell, (times.accept, Ending::NotAccepted)),
        (Situation::SchedulerReplaced, By::SchedulerUnaccepted) => return assigned(cell, replaced),
        (Situation::SchedulerReplaced, _) => {
            // A run that may not start twice stays, accepted or not. Other runs get a new
            // completeTime.
            let stays = taken_back(cell.delivery, Ending::SchedulerReplaced) == TakenBack::Stays;
            return (!stays).then(|| claimed(cell, too_slow.unwrap_or(replaced)));
        }
    };
    let first = [too_slow, noticed].into_iter().flatten().min_by_key(|(time, _)| *time)?;
    Some(claimed(cell, first))
}

#[test]
fn every_cell_agrees_with_rules() {
    for (cell, by) in each_way() {
        for complete in [TIMES.complete, TimeDelta::seconds(60)] {
            let times = Times { complete, ..TIMES };
            let expected = by_the_rules(&cell, by, &times);
            let ends = expected.as_ref().map(|(time, ending, _)| (*time, *ending));
            assert_eq!(cell.end(by, &times), ends, "{} {by:?}", cell.name());
            let next = match cell.follows(by) {
                Follows::Waits => None,
                Follows::AnotherRun(_) => Some(Next::Run),
                Follows::AnotherWorker(_) => Some(Next::Worker),
                Follows::Ends(_) => Some(Next::Nothing),
            };
            assert_eq!(next, expected.map(|(.., next)| next), "{} {by:?}", cell.name());
        }
    }
}

#[test]
fn cells_are_complete_and_in_table_order() {
    let names: Vec<String> = CELLS.iter().map(Cell::name).collect();
    let columns = ["at-least/0", "at-least/n", "at-most/0", "at-most/n"];
    let rows = ["exit", "accept", "slow", "scheduler"];
    let expected: Vec<String> = rows.iter().flat_map(|row| columns.map(|column| format!("{row}/{column}"))).collect();
    assert_eq!(names, expected);
}

#[test]
fn cell_is_consistent() {
    for (cell, by) in each_way() {
        let (follows, ended) = (cell.follows(by), cell.end(by, &TIMES).is_some());
        assert_eq!(follows.takes_late_report(), !ended);
        assert_eq!(follows.runs() == 2, matches!(follows, Follows::AnotherRun(_)));
        assert_eq!(follows.task_ends() == TaskState::Exception, matches!(follows, Follows::Ends(_)));
    }
}

#[test]
fn cell_holds_for_every_way_a_run_is_taken() {
    for cell in CELLS {
        let ways: Vec<&str> = cell.ways().iter().map(|by| by.as_str()).collect();
        let expected = match cell.situation {
            Situation::Exit => &["lease", "session"][..],
            Situation::NotAccepted => &["accept-time"],
            Situation::Slow => &["lease"],
            Situation::SchedulerReplaced => &["scheduler", "unaccepted"],
        };
        assert_eq!(ways, expected, "{}", cell.name());
    }
}

#[test]
fn both_pages_show_the_cells() {
    let note = include_str!("../../../../docs/internals/policies.md");
    assert!(note.contains(&markdown()), "docs/internals/policies.md is to contain:\n{}", markdown());
    let page = include_str!("../../../../docs/delivery.md");
    assert!(page.contains(&markdown()), "docs/delivery.md is to contain:\n{}", markdown());
}
