use chrono::DateTime;
use tenure_api::states::{Priority, ReasonResolved};

use super::super::ending::TABLE;
use super::super::hold::Hold;
use super::*;
use crate::lifecycle::Outcome;
use crate::task::OpenRun;

fn run(number: u16) -> RunId {
    RunId::new(number).unwrap()
}

const COMPLETED: Ending = Ending::Reported(Report::Completed);

fn states() -> Vec<State> {
    let holds = [None, Some(Hold::Delay), Some(Hold::Waiting), Some(Hold::Assigned)];
    let mut states = vec![State::Unscheduled, State::Running(run(2))];
    states.extend(holds.map(|hold| State::Pending(run(2), hold)));
    for outcome in [Outcome::Completed, Outcome::Failed, Outcome::Exception(ReasonResolved::Canceled)] {
        states.extend([State::Resolved(run(2), outcome), State::Resolved(run(3), outcome)]);
    }
    states
}

fn all_ended_by() -> impl Iterator<Item = Option<EndedBy>> {
    std::iter::once(None).chain(EndedBy::ALL.iter().copied().map(Some))
}

/// Every report of a run that ended in every way, under every policy, in every state.
#[test]
fn only_completed_counts_while_task_is_unresolved() {
    for (ending, ..) in TABLE {
        for ended_by in all_ended_by() {
            for &policy in LateResult::ALL {
                for was_rerun in [false, true] {
                    for state in states() {
                        let report = LateReport { ending, ended_by, policy, recorded: None, was_rerun, state };
                        let is_taken = matches!(ended_by, Some(EndedBy::CompleteTime | EndedBy::SchedulerReplaced));
                        let is_open = matches!(state, State::Pending(..) | State::Running(_));
                        let counts =
                            ending == COMPLETED && is_taken && policy == LateResult::FirstWins && !was_rerun && is_open;
                        let expected = if counts { Verdict::Counts } else { Verdict::Refused };
                        assert_eq!(judge(report), expected, "{report:?}");
                    }
                }
            }
        }
    }
}

/// A repeat is recognized until the task is rerun, also after the policy was changed.
#[test]
fn repeat_counts_once() {
    for (ending, ..) in TABLE {
        for ended_by in all_ended_by() {
            for &policy in LateResult::ALL {
                for was_rerun in [false, true] {
                    for state in states() {
                        let recorded = Some(run(3));
                        let report = LateReport { ending, ended_by, policy, recorded, was_rerun, state };
                        let is_late = is_late(ending, ended_by);
                        let expected = match state {
                            State::Resolved(last, _) if is_late && last == run(3) => Verdict::Repeats(run(3)),
                            State::Unscheduled | State::Pending(..) | State::Running(_) | State::Resolved(..) => {
                                Verdict::Refused
                            }
                        };
                        assert_eq!(judge(report), expected, "{report:?}");
                    }
                }
            }
        }
    }
}

#[test]
fn rerun_revokes_results_of_earlier_runs() {
    let open = |number, reason| OpenRun { run: run(number), reason, scheduled: DateTime::UNIX_EPOCH };
    let task = |last: Last| Task {
        id: "AAAAAAAAQACAAAAAAAAAAA".parse().unwrap(),
        seq: 1,
        queue: "proj/queue".parse().unwrap(),
        scheduler: "-".to_owned(),
        project: "none".to_owned(),
        group: "AAAAAAAAQACAAAAAAAAAAA".parse().unwrap(),
        priority: Priority::Lowest,
        deadline: DateTime::UNIX_EPOCH,
        expires: DateTime::UNIX_EPOCH,
        retries_left: 0,
        last,
        ended: Vec::new(),
    };
    let pending = |reason| task(Last::Pending(open(2, reason)));
    for &reason in ReasonCreated::ALL {
        let is_rerun = reason == ReasonCreated::Rerun;
        assert_eq!(was_rerun(&pending(reason), run(1)), is_rerun, "{reason}");
        assert!(!was_rerun(&pending(reason), run(2)), "the run itself: {reason}");
    }
    assert!(!was_rerun(&task(Last::Unscheduled), run(0)));
}
