use super::super::ending::{FREE_RUNS_MAX, TABLE};
use super::*;
use crate::lifecycle::{REQUEUES_MAX, Report};
use proptest::prelude::*;
use tenure_api::states::Delivery;

const LEFT: Allowance = Allowance { retries_left: 1, free_runs: 0, requeues: 0, losses: 0 };
const DELAY: Option<Hold> = Some(Hold::Delay);

fn run(number: u16) -> RunId {
    RunId::new(number).unwrap()
}

const WAITING: Option<Hold> = Some(Hold::Waiting);
const ASSIGNED: Option<Hold> = Some(Hold::Assigned);
const HOLDS: [Option<Hold>; 4] = [None, DELAY, WAITING, ASSIGNED];

fn states(last: RunId) -> [State; 7] {
    let [ready, delayed, waiting, assigned] = HOLDS.map(|hold| State::Pending(last, hold));
    [
        State::Unscheduled,
        ready,
        delayed,
        waiting,
        assigned,
        State::Running(last),
        State::Resolved(last, Outcome::Completed),
    ]
}

/// The refusing rule for each state, in the order of [`states`].
type Refusals = [Option<Refusal>; 7];

/// Every event for the last run, and the refusing rules. An assigned run under at-most-once is
/// tested separately.
fn table(r: RunId) -> Vec<(Event, Refusals)> {
    use Refusal::*;
    let (scheduled, resolved, none) = (Some(AlreadyScheduled), Some(AlreadyResolved), Some(NoSuchRun));
    let (claimed, not_claimed, held) = (Some(AlreadyClaimed), Some(NotClaimed), Some(Held));
    let pending = |refused: [Option<Refusal>; 4]| {
        let [ready, delayed, waiting, assigned] = refused;
        [none, ready, delayed, waiting, assigned, claimed, resolved]
    };
    let s = scheduled;
    let mut table: Vec<(Event, Refusals)> = vec![
        (Event::Cancel, [None, None, None, None, None, None, resolved]),
        (Event::DeadlinePassed, [None, None, None, None, None, None, resolved]),
        (Event::Ready(r), pending([None, None, None, held])),
        (Event::Hold(r, Hold::Delay), pending([held; 4])),
        (Event::Hold(r, Hold::Waiting), pending([None, None, held, None])),
        (Event::Hold(r, Hold::Assigned), pending([held, held, None, held])),
        (Event::Claim(r), pending([None, held, held, held])),
        (Event::Accept(r), pending([None, held, held, None])),
        (Event::Reclaim(r), [none, not_claimed, not_claimed, not_claimed, not_claimed, None, resolved]),
        (Event::LateResult(run(0)), [none, None, None, None, None, None, resolved]),
    ];
    let not_taken = Some(NotTaken);
    for named in [r, run(2)] {
        let refusals = [none, not_taken, not_taken, not_taken, not_taken, not_taken, resolved];
        table.push((Event::LateResult(named), refusals));
    }
    for hold in HOLDS {
        table.push((Event::Schedule(hold), [None, s, s, s, s, s, resolved]));
        table.push((Event::Rerun { retries: 5, hold }, [None, s, s, s, s, s, None]));
        for (ending, ..) in TABLE {
            let refusals = [none, not_claimed, not_claimed, not_claimed, not_claimed, None, resolved];
            table.push((Event::End(r, ending, hold), refusals));
        }
    }
    let no_claim = [none, not_claimed, not_claimed, not_claimed, not_claimed, claimed, resolved];
    table.push((Event::End(r, Ending::NotAccepted, None), no_claim));
    for (ending, ..) in TABLE {
        let may = match ending {
            Ending::SessionEnded | Ending::WorkerRemoved | Ending::SchedulerReplaced | Ending::Released => None,
            Ending::Reported(_)
            | Ending::LeaseExpired
            | Ending::TooSlow
            | Ending::Undelivered
            | Ending::NotAccepted => not_claimed,
        };
        table.push((Event::TakenBack(r, ending), pending([not_claimed, not_claimed, not_claimed, may])));
    }
    table.push((Event::TakenBack(r, Ending::NotAccepted), pending([not_claimed, not_claimed, not_claimed, None])));
    table
}

/// Every state with every event under every rule, and the refusing rule.
#[test]
fn every_event_in_every_state_has_result() {
    use Refusal::{NoSuchRun, NotTheLastRun};
    let r = run(1);
    let mut table = table(r);
    for named in [run(0), run(2)] {
        let other = Some(if named < r { NotTheLastRun } else { NoSuchRun });
        let refusals = [Some(NoSuchRun), other, other, other, other, other, other];
        table.extend(
            [Event::Ready(named), Event::Claim(named), Event::Accept(named), Event::Reclaim(named)]
                .map(|event| (event, refusals)),
        );
        table.extend([Hold::Delay, Hold::Waiting, Hold::Assigned].map(|to| (Event::Hold(named, to), refusals)));
        table.extend(TABLE.map(|(ending, ..)| (Event::End(named, ending, None), refusals)));
        table.extend(TABLE.map(|(ending, ..)| (Event::TakenBack(named, ending), refusals)));
    }
    for (event, refusals) in table {
        for (state, refusal) in states(r).into_iter().zip(refusals) {
            for rule in RetryRule::all() {
                let found = apply(Life { state, rule, left: LEFT }, event).err();
                let stays = rule.delivery == Delivery::AtMostOnce
                    && state == State::Pending(r, ASSIGNED)
                    && event == Event::TakenBack(r, Ending::SchedulerReplaced);
                let refusal = if stays { Some(Refusal::Held) } else { refusal };
                assert_eq!(found, refusal, "{state:?} with {event:?} under {rule:?}");
            }
        }
    }
}

/// Admission and sessions neither create nor end runs, except a run that may not go to another
/// worker.
#[test]
fn a_run_waits_is_assigned_and_is_taken_back() {
    for rule in RetryRule::all() {
        let life = |hold| Life { state: State::Pending(run(1), hold), rule, left: LEFT };
        for (from, event, to) in [
            (None, Event::Hold(run(1), Hold::Waiting), WAITING),
            (DELAY, Event::Hold(run(1), Hold::Waiting), WAITING),
            (WAITING, Event::Hold(run(1), Hold::Assigned), ASSIGNED),
            (ASSIGNED, Event::Hold(run(1), Hold::Waiting), WAITING),
            (WAITING, Event::Ready(run(1)), None),
            (DELAY, Event::Ready(run(1)), None),
        ] {
            assert_eq!(apply(life(from), event), Ok(Step { life: life(to), ended: None, made: None }));
        }
        let accepted = apply(life(ASSIGNED), Event::Accept(run(1))).unwrap();
        assert_eq!(accepted.life, Life { state: State::Running(run(1)), ..life(None) });
        for ending in [Ending::NotAccepted, Ending::SessionEnded, Ending::WorkerRemoved] {
            let step = apply(life(ASSIGNED), Event::TakenBack(run(1), ending)).unwrap();
            let outcome = ending.outcome();
            let expected = match rule.delivery {
                Delivery::Retries | Delivery::AtLeastOnce => Step { life: life(WAITING), ended: None, made: None },
                Delivery::AtMostOnce => Step {
                    life: Life { state: State::Resolved(run(1), outcome), ..life(None) },
                    ended: Some((run(1), outcome)),
                    made: None,
                },
            };
            assert_eq!(step, expected);
        }
    }
}

#[test]
fn new_run_has_requested_hold() {
    let life = |state| Life { state, rule: RetryRule::of(Delivery::AtLeastOnce), left: LEFT };
    for hold in HOLDS {
        let scheduled = apply(life(State::Unscheduled), Event::Schedule(hold)).unwrap();
        assert_eq!(scheduled.life.state, State::Pending(run(0), hold));
        let lost = apply(life(State::Running(run(0))), Event::End(run(0), Ending::LeaseExpired, hold)).unwrap();
        assert_eq!(lost.life.state, State::Pending(run(1), hold));
        let done =
            apply(life(State::Running(run(0))), Event::End(run(0), Ending::Reported(Report::Completed), hold)).unwrap();
        assert_eq!(done.life.state, State::Resolved(run(0), Outcome::Completed));
        if hold != ASSIGNED {
            let ready = apply(life(State::Pending(run(0), hold)), Event::Ready(run(0))).unwrap();
            assert_eq!(ready.life, life(State::Pending(run(0), None)));
            assert_eq!((ready.ended, ready.made), (None, None));
        }
        let canceled = apply(life(State::Pending(run(0), hold)), Event::Cancel).unwrap();
        let outcome = Outcome::Exception(ReasonResolved::Canceled);
        assert_eq!(canceled.life.state, State::Resolved(run(0), outcome));
    }
    let failed = Life { left: Allowance { losses: 7, ..LEFT }, ..life(State::Resolved(run(0), Outcome::Failed)) };
    for hold in [None, WAITING] {
        let rerun = apply(failed, Event::Rerun { retries: 3, hold }).unwrap();
        assert_eq!(rerun.life.state, State::Pending(run(1), hold));
        assert_eq!((rerun.life.left.losses, rerun.life.left.retries_left), (0, 3));
    }
}

/// The states of the task and of the ended run when a run is reported as failed.
#[test]
fn failed_run_ends_task_or_is_retried() {
    let failed = |report, rule, retries_left| {
        let left = Allowance { retries_left, ..LEFT };
        let life = Life { state: State::Running(run(0)), rule, left };
        apply(life, Event::End(run(0), Ending::Reported(report), DELAY)).unwrap()
    };
    for rule in RetryRule::all() {
        for (report, retries_left) in [(Report::Failed, 1), (Report::Failed, 0), (Report::FailedForGood, 1)] {
            let step = failed(report, rule, retries_left);
            assert_eq!(step.ended, Some((run(0), Outcome::Failed)));
            if rule.retry_failed && report == Report::Failed && retries_left > 0 {
                assert_eq!(step.life.state, State::Pending(run(1), DELAY), "{rule:?}");
                assert_eq!(step.made, Some((run(1), ReasonCreated::TaskRetry)));
                assert_eq!(step.life.left.retries_left, retries_left - 1);
            } else {
                assert_eq!(step.life.state, State::Resolved(run(0), Outcome::Failed), "{report:?} {rule:?}");
                assert_eq!((step.made, step.life.left.retries_left), (None, retries_left));
            }
        }
    }
}

#[test]
fn task_with_many_free_runs_can_be_rerun_within_bounds() {
    let spent = Allowance { retries_left: 0, free_runs: FREE_RUNS_MAX, requeues: 0, losses: 9 };
    let life = |last| Life {
        state: State::Resolved(run(last), Outcome::Failed),
        rule: RetryRule::of(Delivery::AtLeastOnce),
        left: spent,
    };
    let step = apply(life(248), Event::Rerun { retries: 5, hold: None }).unwrap();
    assert_eq!((step.life.left.retries_left, step.made), (0, Some((run(249), ReasonCreated::Rerun))));
    let used_up = apply(life(249), Event::Rerun { retries: 5, hold: None });
    assert_eq!(used_up, Err(Refusal::RunsUsedUp));
    let running = Life { state: State::Running(run(249)), ..step.life };
    let released = apply(running, Event::End(run(249), Ending::Released, None));
    assert_eq!(released, Err(Refusal::FreeRunsUsedUp));
}

fn any_event() -> impl Strategy<Value = Event> {
    let named = (0_u16..10).prop_map(run);
    let hold = prop::sample::select(&HOLDS[..]);
    let to = prop::sample::select(&[Hold::Delay, Hold::Waiting, Hold::Assigned][..]);
    let ending = prop::sample::select(&TABLE[..]).prop_map(|(ending, ..)| ending);
    prop_oneof![
        1 => hold.clone().prop_map(Event::Schedule),
        1 => (0_u16..4, hold.clone()).prop_map(|(retries, hold)| Event::Rerun { retries, hold }),
        1 => Just(Event::Cancel),
        1 => Just(Event::DeadlinePassed),
        4 => named.clone().prop_map(Event::Ready),
        4 => (named.clone(), to).prop_map(|(run, to)| Event::Hold(run, to)),
        6 => named.clone().prop_map(Event::Claim),
        4 => named.clone().prop_map(Event::Accept),
        2 => (named.clone(), ending.clone()).prop_map(|(run, ending)| Event::TakenBack(run, ending)),
        2 => named.clone().prop_map(Event::Reclaim),
        1 => named.clone().prop_map(Event::LateResult),
        8 => (named, ending, hold).prop_map(|(run, ending, hold)| Event::End(run, ending, hold)),
    ]
}

proptest! {
    /// Row M18 and invariant I1: a run is claimed once, only when it is ready, and ends once. A
    /// resolved task stays resolved until it is rerun. Under at-most-once no run follows a lost
    /// run.
    #[test]
    fn ended_run_stays_ended_after_any_events(
        events in prop::collection::vec(any_event(), 0..120),
        rule in prop::sample::select(RetryRule::all().collect::<Vec<_>>()),
    ) {
        let mut life = Life { state: State::Unscheduled, rule, left: LEFT };
        let (mut claimed, mut ended, mut made) = (vec![], vec![], 0_u16);
        for event in events {
            let Ok(step) = apply(life, event) else { continue };
            if let Event::Claim(number) = event {
                prop_assert!(!claimed.contains(&number));
                prop_assert_eq!(life.state, State::Pending(number, None));
                claimed.push(number);
            }
            if let Event::Accept(number) = event {
                prop_assert!(!claimed.contains(&number));
                let is_given = [None, ASSIGNED].map(|hold| State::Pending(number, hold)).contains(&life.state);
                prop_assert!(is_given, "accepted in {:?}", life.state);
                claimed.push(number);
            }
            if let Some((number, _)) = step.ended {
                prop_assert!(!ended.contains(&number));
                ended.push(number);
            }
            if let (Event::LateResult(late), State::Resolved(number, _)) = (event, step.life.state) {
                prop_assert!(late < number && ended.contains(&late), "the late run had ended before");
                ended.push(number);
            }
            if let Some((number, reason)) = step.made {
                prop_assert_eq!(number, run(made));
                made += 1;
                if let (Event::End(_, ending, _), Delivery::AtMostOnce) = (event, rule.delivery) {
                    prop_assert!(!ending.is_loss());
                    prop_assert!(reason != ReasonCreated::Retry || !ending.is_loss());
                }
            }
            if let State::Resolved(..) = life.state {
                let is_rerun = matches!(event, Event::Rerun { .. });
                prop_assert!(is_rerun, "event after resolution: {:?}", event);
            }
            prop_assert!(step.life.left.free_runs <= FREE_RUNS_MAX && step.life.left.requeues <= REQUEUES_MAX);
            life = step.life;
        }
    }
}

/// I1: the reported run has ended already, so the result gets a run of its own.
#[test]
fn late_result_supersedes_open_run() {
    let left = Allowance { losses: 3, ..LEFT };
    for state in HOLDS.map(|hold| State::Pending(run(4), hold)).into_iter().chain([State::Running(run(4))]) {
        let life = Life { state, rule: RetryRule::NONE, left };
        let after = State::Resolved(run(5), Outcome::Completed);
        let expected = Step {
            life: Life { state: after, left: Allowance { losses: 0, ..left }, ..life },
            ended: Some((run(4), Outcome::Exception(ReasonResolved::Superseded))),
            made: Some((run(5), ReasonCreated::Exception)),
        };
        assert_eq!(apply(life, Event::LateResult(run(0))), Ok(expected), "{state:?}");
    }
}

#[test]
fn canceled_task_without_run_gets_one_with_the_exception() {
    let life = Life { state: State::Unscheduled, rule: RetryRule::NONE, left: LEFT };
    let step = apply(life, Event::Cancel).unwrap();
    assert_eq!(step.made, Some((run(0), ReasonCreated::Exception)));
    assert_eq!(step.ended, Some((run(0), Outcome::Exception(ReasonResolved::Canceled))));
}
