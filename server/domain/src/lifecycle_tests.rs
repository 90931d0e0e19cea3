use super::*;
use proptest::prelude::*;

fn run(number: u16) -> RunId {
    RunId::new(number).unwrap()
}

fn life(state: State) -> Life {
    Life { state, retries_left: 1, requeues: 0 }
}

const SHUTDOWN: Report = Report::Exception(ExceptionReason::WorkerShutdown);

/// Every state with every event, and what comes of it in one word.
#[test]
fn every_pair_of_state_and_event_has_its_answer() {
    use Refusal::*;
    let r = run(1);
    let states = [State::Unscheduled, State::Pending(r), State::Running(r), State::Resolved(r, Outcome::Completed)];
    let refusals: [(Event, [Option<Refusal>; 4]); 14] = [
        (Event::Schedule, [None, Some(AlreadyScheduled), Some(AlreadyScheduled), Some(AlreadyResolved)]),
        (Event::Rerun { retries: 5 }, [None, Some(AlreadyScheduled), Some(AlreadyScheduled), None]),
        (Event::Cancel, [None, None, None, Some(AlreadyResolved)]),
        (Event::Claim(r), [Some(NoSuchRun), None, Some(AlreadyClaimed), Some(AlreadyResolved)]),
        (Event::Claim(run(0)), [Some(NoSuchRun), Some(NotTheLastRun), Some(NotTheLastRun), Some(NotTheLastRun)]),
        (Event::Claim(run(2)), [Some(NoSuchRun), Some(NoSuchRun), Some(NoSuchRun), Some(NoSuchRun)]),
        (Event::Reclaim(r), [Some(NoSuchRun), Some(NotClaimed), None, Some(AlreadyResolved)]),
        (Event::Report(r, Report::Completed), [Some(NoSuchRun), Some(NotClaimed), None, Some(AlreadyResolved)]),
        (Event::Report(r, Report::Failed), [Some(NoSuchRun), Some(NotClaimed), None, Some(AlreadyResolved)]),
        (Event::Report(r, SHUTDOWN), [Some(NoSuchRun), Some(NotClaimed), None, Some(AlreadyResolved)]),
        (Event::ClaimExpired(r), [Some(NoSuchRun), Some(NotClaimed), None, Some(AlreadyResolved)]),
        (Event::Requeue(r), [Some(NoSuchRun), Some(NotClaimed), None, Some(AlreadyResolved)]),
        (Event::Requeue(run(0)), [Some(NoSuchRun), Some(NotTheLastRun), Some(NotTheLastRun), Some(NotTheLastRun)]),
        (Event::DeadlinePassed, [None, None, None, Some(AlreadyResolved)]),
    ];
    for (event, expected) in refusals {
        for (state, refusal) in states.into_iter().zip(expected) {
            assert_eq!(apply(life(state), event).err(), refusal, "{state:?} with {event:?}");
        }
    }
}

#[test]
fn each_reason_is_retried_or_final_as_the_contract_says() {
    for &reason in ExceptionReason::ALL {
        let step = apply(life(State::Running(run(0))), Event::Report(run(0), Report::Exception(reason))).unwrap();
        let made = match reason {
            ExceptionReason::WorkerShutdown => Some((run(1), ReasonCreated::Retry)),
            ExceptionReason::IntermittentTask => Some((run(1), ReasonCreated::TaskRetry)),
            ExceptionReason::MalformedPayload
            | ExceptionReason::ResourceUnavailable
            | ExceptionReason::InternalError => None,
        };
        assert_eq!(step.made, made, "{reason}");
        assert_eq!(step.life.retries_left, u16::from(made.is_none()));
        assert_eq!(step.ended, Some((run(0), Outcome::Exception(reason.into()))));
    }
}

#[test]
fn what_takes_a_claim_away_says_how_the_run_ends_and_whether_it_is_tried_again() {
    let reports = [Report::Completed, Report::Failed].into_iter();
    let reports = reports.chain(ExceptionReason::ALL.iter().map(|&reason| Report::Exception(reason)));
    let number = run(0);
    let ends = reports
        .map(|report| (End::Report(report), Event::Report(number, report)))
        .chain([(End::Expired, Event::ClaimExpired(number)), (End::Requeue, Event::Requeue(number))]);
    for (end, event) in ends {
        let expected = match end {
            End::Report(report) => (report.outcome(), report.retry()),
            End::Expired => (Outcome::Exception(ReasonResolved::ClaimExpired), Some(ReasonCreated::Retry)),
            End::Requeue => (Outcome::Exception(ReasonResolved::WorkerShutdown), Some(ReasonCreated::Retry)),
        };
        assert_eq!((end.outcome(), end.retry()), expected, "{end:?}");
        let step = apply(life(State::Running(number)), event).unwrap();
        assert_eq!(step.ended, Some((number, end.outcome())), "{end:?}");
        assert_eq!(step.made, end.retry().map(|reason| (run(1), reason)), "{end:?}");
    }
}

#[test]
fn without_retries_left_the_task_is_resolved() {
    let spent = Life { state: State::Running(run(3)), retries_left: 0, requeues: 0 };
    for event in [Event::Report(run(3), SHUTDOWN), Event::ClaimExpired(run(3))] {
        let step = apply(spent, event).unwrap();
        assert!(matches!(step.life.state, State::Resolved(..)), "{event:?}");
        assert_eq!(step.made, None);
    }
}

#[test]
fn a_requeue_costs_no_retry_and_stops_at_its_limit() {
    let mut current = Life { state: State::Running(run(0)), retries_left: 0, requeues: 0 };
    for number in 0..REQUEUES_MAX {
        let step = apply(current, Event::Requeue(run(number))).unwrap();
        assert_eq!(step.made, Some((run(number + 1), ReasonCreated::Retry)));
        assert_eq!(step.life.retries_left, 0);
        current = apply(step.life, Event::Claim(run(number + 1))).unwrap().life;
    }
    assert_eq!(apply(current, Event::Requeue(run(REQUEUES_MAX))), Err(Refusal::RequeuesUsedUp));
}

#[test]
fn a_rerun_starts_the_retries_anew_as_far_as_the_number_of_runs_allows() {
    for (state, next) in [(State::Unscheduled, 0), (State::Resolved(run(3), Outcome::Completed), 4)] {
        let step = apply(Life { retries_left: 0, ..life(state) }, Event::Rerun { retries: 5 }).unwrap();
        assert_eq!(step.made, Some((run(next), ReasonCreated::Rerun)));
        assert_eq!((step.ended, step.life.retries_left), (None, 5));
    }
    for (last, expected) in [(40, Ok(5)), (45, Ok(3)), (48, Ok(0)), (49, Err(Refusal::RunsUsedUp))] {
        let resolved = life(State::Resolved(run(last), Outcome::Failed));
        let retries = apply(resolved, Event::Rerun { retries: 5 }).map(|step| step.life.retries_left);
        assert_eq!(retries, expected, "after run {last}");
    }
}

#[test]
fn a_cancelled_task_that_had_no_run_gets_one_that_carries_the_exception() {
    let step = apply(life(State::Unscheduled), Event::Cancel).unwrap();
    assert_eq!(step.made, Some((run(0), ReasonCreated::Exception)));
    assert_eq!(step.ended, Some((run(0), Outcome::Exception(ReasonResolved::Canceled))));
}

fn any_event() -> impl Strategy<Value = Event> {
    let named = (0_u16..8).prop_map(run);
    let report = prop_oneof![
        Just(Report::Completed),
        Just(Report::Failed),
        prop::sample::select(ExceptionReason::ALL).prop_map(Report::Exception)
    ];
    prop_oneof![
        Just(Event::Schedule),
        (0_u16..4).prop_map(|retries| Event::Rerun { retries }),
        Just(Event::Cancel),
        named.clone().prop_map(Event::Claim),
        named.clone().prop_map(Event::Reclaim),
        (named.clone(), report).prop_map(|(run, report)| Event::Report(run, report)),
        named.clone().prop_map(Event::ClaimExpired),
        named.prop_map(Event::Requeue),
        Just(Event::DeadlinePassed),
    ]
}

proptest! {
    /// Invariant I1: whatever happens, a run is claimed at most once and ends at most once, and runs follow each other.
    #[test]
    fn a_run_is_claimed_once_and_ends_once(events in prop::collection::vec(any_event(), 0..60), retries in 0_u16..4) {
        let mut current = Life { state: State::Unscheduled, retries_left: retries, requeues: 0 };
        let (mut claimed, mut ended, mut made, mut reruns) = (vec![], vec![], 0_u16, 0_u16);
        for event in events {
            let Ok(step) = apply(current, event) else { continue };
            if let Event::Claim(number) = event {
                prop_assert!(!claimed.contains(&number));
                claimed.push(number);
            }
            if let Some((number, _)) = step.ended {
                prop_assert!(!ended.contains(&number));
                ended.push(number);
            }
            if let Some((number, reason)) = step.made {
                prop_assert_eq!(number, run(made));
                made += 1;
                reruns += u16::from(reason == ReasonCreated::Rerun);
            }
            if !matches!(event, Event::Rerun { .. }) {
                prop_assert!(step.life.retries_left <= current.retries_left);
            }
            current = step.life;
        }
        // A rerun of this test asks for three retries at most.
        prop_assert!(u16::try_from(ended.len()).unwrap() <= retries + REQUEUES_MAX + 1 + 4 * reruns);
    }
}
