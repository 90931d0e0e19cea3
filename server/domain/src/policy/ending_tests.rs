use super::*;
use proptest::prelude::*;

fn run(number: u16) -> RunId {
    RunId::new(number).unwrap()
}

fn allowances() -> Vec<Allowance> {
    let mut all = Vec::new();
    for retries_left in [0, 1, 5] {
        for free_runs in [0, 198, 199, 200] {
            for requeues in [0, 4, 5] {
                for losses in [0, 3, u16::MAX] {
                    all.push(Allowance { retries_left, free_runs, requeues, losses });
                }
            }
        }
    }
    all
}

#[test]
fn table_has_every_ending_once() {
    let mut endings: Vec<Ending> =
        [Report::Completed, Report::Failed, Report::FailedForGood].map(Ending::Reported).to_vec();
    endings.extend(ExceptionReason::ALL.iter().map(|&reason| exception(reason)));
    endings.extend([
        Ending::LeaseExpired,
        Ending::WorkerRemoved,
        Ending::SessionEnded,
        Ending::TooSlow,
        Ending::Released,
        Ending::Undelivered,
        Ending::SchedulerReplaced,
    ]);
    assert_eq!(endings.len(), TABLE.len());
    endings.push(Ending::NotAccepted);
    for ending in endings {
        let listed = TABLE.iter().filter(|(listed, ..)| *listed == ending).count();
        // This match fails to compile for a new ending: add it to `endings` too.
        let expected = match ending {
            Ending::Reported(_)
            | Ending::LeaseExpired
            | Ending::Undelivered
            | Ending::WorkerRemoved
            | Ending::TooSlow
            | Ending::Released
            | Ending::SessionEnded
            | Ending::SchedulerReplaced => 1,
            Ending::NotAccepted => 0,
        };
        assert_eq!(listed, expected, "{ending:?}");
    }
}

/// The expressions of the statement `resolve_run`, written by hand.
fn as_sql_says(rule: RetryRule, ending: Ending, run: RunId, t: Allowance) -> Option<Decision> {
    let RetryRule { delivery, retry_failed } = rule;
    let (released, back) = (ending == Ending::Released, ending == Ending::Undelivered);
    if (released && t.free_runs >= 200) || (back && t.requeues >= 5) {
        return None;
    }
    let loss = ending.is_loss();
    let free = released || (loss && delivery.code() == 1 && t.free_runs < 200);
    let failed = ending.outcome() == Outcome::Failed;
    let ends = ending.retry().is_none() || (loss && delivery.code() == 2) || (failed && !retry_failed);
    let next =
        if ends || run.number() >= 400 { None } else { ending.retry().filter(|_| back || free || t.retries_left > 0) };
    let retries_left = if next.is_none() || back || free { t.retries_left } else { t.retries_left - 1 };
    let left = Allowance {
        retries_left,
        free_runs: t.free_runs + u16::from(free && next.is_some()),
        requeues: t.requeues + u16::from(back && next.is_some()),
        losses: if loss { t.losses.saturating_add(1) } else { 0 },
    };
    Some(Decision { next, left })
}

#[test]
fn every_case_agrees_with_sql_statement() {
    for (ending, name) in TABLE {
        for rule in RetryRule::all() {
            for number in [0, 1, 399, 400, 1000] {
                for had in allowances() {
                    let decided = decide(rule, ending, run(number), had).ok();
                    assert_eq!(decided, as_sql_says(rule, ending, run(number), had), "{name} {rule:?} {had:?}");
                }
            }
        }
    }
}

#[test]
fn failed_run_is_retried_only_with_retry_failed() {
    let had = |retries_left| Allowance { retries_left, free_runs: 0, requeues: 0, losses: 2 };
    let left = |retries_left| Allowance { losses: 0, ..had(retries_left) };
    for rule in RetryRule::all() {
        for (report, retries_left, retried) in [
            (Report::Failed, 2, rule.retry_failed),
            (Report::Failed, 0, false),
            (Report::FailedForGood, 2, false),
            (Report::Completed, 2, false),
        ] {
            let expected = if retried {
                Decision { next: Some(ReasonCreated::TaskRetry), left: left(retries_left - 1) }
            } else {
                Decision { next: None, left: left(retries_left) }
            };
            let decided = decide(rule, Ending::Reported(report), run(0), had(retries_left));
            assert_eq!(decided, Ok(expected), "{report:?} {rule:?}");
        }
    }
}

#[test]
fn assigned_run_is_taken_back_by_delivery_and_ending() {
    use TakenBack::{Ends, NotOfAnAssignment, Stays, Waits};
    let assignments = [
        (Ending::NotAccepted, [Waits, Waits, Ends]),
        (Ending::SessionEnded, [Waits, Waits, Ends]),
        (Ending::WorkerRemoved, [Waits, Waits, Ends]),
        (Ending::SchedulerReplaced, [Waits, Waits, Stays]),
        (Ending::Released, [Waits; 3]),
    ];
    let endings = TABLE.iter().map(|(ending, ..)| *ending).chain([Ending::NotAccepted]);
    for ending in endings {
        let listed = assignments.iter().find(|(listed, _)| *listed == ending);
        let expected = listed.map_or([NotOfAnAssignment; 3], |(_, expected)| *expected);
        let found: Vec<TakenBack> = Delivery::ALL.iter().map(|&delivery| taken_back(delivery, ending)).collect();
        assert_eq!(found, expected, "{ending:?}");
    }
    for (acceptance, expected) in [(Acceptance::Possible, [Waits, Waits, Ends]), (Acceptance::Refused, [Waits; 3])] {
        let found: Vec<TakenBack> = Delivery::ALL.iter().map(|&delivery| not_accepted(delivery, acceptance)).collect();
        assert_eq!(found, expected, "{acceptance:?}");
    }
    for rule in RetryRule::all() {
        for had in allowances() {
            let refused = decide(rule, Ending::NotAccepted, run(0), had);
            assert_eq!(refused, Err(Refused::NotOfAClaim), "a claim was accepted");
        }
    }
}

#[test]
fn rerun_counts_only_runs_that_were_not_free() {
    for (next, free_runs, expected) in [
        (0, 0, Some(5)),
        (44, 0, Some(5)),
        (45, 0, Some(4)),
        (49, 0, Some(0)),
        (50, 0, None),
        (50, 1, Some(0)),
        (249, 200, Some(0)),
        (250, 200, None),
        (0, 200, Some(5)),
    ] {
        assert_eq!(retries_after_rerun(run(next), 5, free_runs), expected, "run {next}");
    }
}

#[test]
fn both_pages_show_the_table() {
    let note = include_str!("../../../../docs/internals/policies.md");
    assert!(note.contains(&markdown()), "docs/internals/policies.md is to contain:\n{}", markdown());
    let page = include_str!("../../../../docs/delivery.md");
    assert!(page.contains(&markdown()), "docs/delivery.md is to contain:\n{}", markdown());
}

fn any_rule() -> impl Strategy<Value = RetryRule> {
    prop::sample::select(RetryRule::all().collect::<Vec<_>>())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    /// The bounds keep a task far below the last run number, however its runs end and however often
    /// it is rerun.
    #[test]
    fn task_never_reaches_last_run_number(
        ends in prop::collection::vec((prop::sample::select(&TABLE[..]), any_rule()), 0..700),
    ) {
        let mut left = Allowance { retries_left: 49, free_runs: 0, requeues: 0, losses: 0 };
        let mut number = 0;
        for ((ending, ..), rule) in ends {
            match decide(rule, ending, run(number), left) {
                Err(_) => {}
                Ok(Decision { next: Some(_), left: after }) => {
                    prop_assert!(after.free_runs <= FREE_RUNS_MAX && after.requeues <= REQUEUES_MAX);
                    (number, left) = (number + 1, after);
                }
                Ok(Decision { next: None, left: after }) => match retries_after_rerun(run(number + 1), 49, after.free_runs) {
                    Some(retries_left) => (number, left) = (number + 1, Allowance { retries_left, ..after }),
                    None => left = after,
                },
            }
        }
        prop_assert!(number < RUNS_MAX + FREE_RUNS_MAX + REQUEUES_MAX);
    }
}
