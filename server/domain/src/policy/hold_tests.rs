use super::super::document::Policy;
use super::super::ending::TABLE;
use super::super::options::Options;
use super::*;

const EVER: DateTime<Utc> = DateTime::<Utc>::MAX_UTC;

fn at(seconds: i64) -> DateTime<Utc> {
    DateTime::from_timestamp(seconds, 0).unwrap()
}

fn after(seconds: i64) -> Start {
    Start::After(TimeDelta::seconds(seconds))
}

fn terms(delivery: Delivery, retry_delay: Option<RetryDelay>) -> Terms {
    Terms { delivery, retry_delay, ..Terms::of(&Policy::none(), &Options::default()) }
}

#[test]
fn every_hold_has_a_number() {
    for code in -1..10 {
        assert_eq!(Hold::from_code(code).map(Hold::code), (1..=3).contains(&code).then_some(code));
    }
}

#[test]
fn delay_ends_at_its_time_or_deadline() {
    let now = at(100);
    for (start, deadline, until) in [
        (after(0), at(200), None),
        (after(1), at(200), Some(at(101))),
        (after(100), at(200), Some(at(200))),
        (after(101), at(200), Some(at(200))),
        (after(31_622_400), EVER, Some(at(31_622_500))),
        (after(5), at(100), None),
        (after(5), at(50), None),
        (Start::At(at(99)), at(200), None),
        (Start::At(at(100)), at(200), None),
        (Start::At(at(150)), at(200), Some(at(150))),
        (Start::At(at(201)), at(200), Some(at(200))),
        (Start::At(EVER), at(200), Some(at(200))),
        (Start::After(TimeDelta::MAX), at(200), Some(at(200))),
        (Start::After(TimeDelta::MAX), EVER, Some(EVER)),
    ] {
        let found = delayed(start, DelayedBy::Delay, now, deadline);
        assert_eq!(found.map(|delayed| delayed.until), until, "{start:?} before {deadline}");
        let terms = Terms { start, ..terms(Delivery::Retries, None) };
        assert_eq!(of_first_run(&terms, now, deadline), found);
    }
    let hold = Delayed { until: at(101), by: DelayedBy::Delay };
    assert_eq!([100, 101, 102].map(|now| hold.is_over(at(now))), [false, true, true], "never earlier");
}

#[test]
fn task_that_never_starts_is_refused_by_field() {
    let (now, deadline) = (at(100), at(200));
    for (start, refused) in [
        (after(0), false),
        (after(99), false),
        (after(100), true),
        (Start::After(TimeDelta::MAX), true),
        (Start::At(at(0)), false),
        (Start::At(at(199)), false),
        (Start::At(at(200)), true),
        (Start::At(EVER), true),
    ] {
        let refusal = start_refusal(start, "extra.tenure.delay", now, deadline);
        assert_eq!(refusal.is_some(), refused, "{start:?}");
        assert!(refusal.is_none_or(|message| message.starts_with("`extra.tenure.delay`, ")));
    }
    assert_eq!(start_refusal(after(0), "delay", now, at(50)), None, "the deadline is refused elsewhere");
    assert_eq!(
        start_refusal(after(100), "options.delay", now, deadline).unwrap(),
        "`options.delay`, 100 seconds from now, must end before `deadline`, 1970-01-01T00:03:20.000Z; it is now \
         1970-01-01T00:01:40.000Z; state a later `deadline`"
    );
    assert_eq!(
        start_refusal(Start::At(at(201)), "options.notBefore", now, deadline).unwrap(),
        "`options.notBefore`, 1970-01-01T00:03:21.000Z, must be before `deadline`, 1970-01-01T00:03:20.000Z; state a later \
         `deadline`"
    );
}

#[test]
fn retry_delays_grow_by_factor_up_to_maximum() {
    let delay =
        |first, factor, most| RetryDelay { first: TimeDelta::seconds(first), factor, most: TimeDelta::seconds(most) };
    let waits = |delay: &RetryDelay| [1, 2, 3, 4, 400, u32::MAX].map(|n| retry_wait(delay, n).num_milliseconds());
    assert_eq!(waits(&delay(5, 1.0, 86_400)), [5_000; 6]);
    assert_eq!(waits(&delay(5, 2.0, 30)), [5_000, 10_000, 20_000, 30_000, 30_000, 30_000]);
    assert_eq!(waits(&delay(1, 1.5, 86_400)), [1_000, 1_500, 2_250, 3_375, 86_400_000, 86_400_000]);
    assert_eq!(waits(&delay(3_600, 10.0, 86_400))[5], 86_400_000);
    assert_eq!(waits(&delay(60, 1.0, 10)), [10_000; 6], "the maximum caps the first delay");
    assert_eq!(waits(&delay(0, 10.0, 86_400)), [0; 6]);
    assert_eq!(waits(&delay(9, 10.0, 0)), [0; 6]);
    assert_eq!(retry_wait(&delay(5, 2.0, 30), 0), TimeDelta::seconds(5));
}

#[test]
fn backoff_doubles_from_fourth_loss_if_losses_are_free() {
    for (losses, wait_s) in
        [(0, 0), (3, 0), (4, 1), (5, 2), (6, 4), (14, 1_024), (15, 2_048), (16, 3_600), (67, 3_600), (u16::MAX, 3_600)]
    {
        assert_eq!(backoff(Delivery::AtLeastOnce, losses), TimeDelta::seconds(wait_s), "{losses}");
        assert!(backoff(Delivery::Retries, losses).is_zero() && backoff(Delivery::AtMostOnce, losses).is_zero());
    }
}

#[test]
fn stated_delay_outranks_policy_and_longer_delay_wins() {
    let retry = Some(RetryDelay { first: TimeDelta::seconds(8), factor: 2.0, most: TimeDelta::seconds(100) });
    let again = Ending::Reported(Report::Exception(ExceptionReason::IntermittentTask));
    let (once, retries) = (Delivery::AtLeastOnce, Delivery::Retries);
    for (ending, stated, delivery, retry_delay, losses, expected) in [
        (Ending::Released, None, retries, retry, 0, None),
        (Ending::Released, Some(after(0)), retries, retry, 0, None),
        (Ending::Released, Some(after(30)), retries, retry, 0, Some((30, DelayedBy::Release))),
        (Ending::Released, Some(Start::At(at(140))), retries, None, 0, Some((40, DelayedBy::Release))),
        (Ending::Released, Some(after(5_000)), retries, None, 0, Some((900, DelayedBy::Release))),
        (again, None, retries, None, 0, None),
        (again, None, retries, retry, 0, Some((16, DelayedBy::RetryDelay))),
        (again, None, once, retry, 9, Some((16, DelayedBy::RetryDelay))),
        (again, Some(after(3)), retries, retry, 0, Some((3, DelayedBy::RetryAfter))),
        (again, Some(after(0)), retries, retry, 0, None),
        (Ending::Reported(Report::Failed), None, retries, None, 0, None),
        (Ending::Reported(Report::Failed), None, retries, retry, 0, Some((16, DelayedBy::RetryDelay))),
        (Ending::Reported(Report::Failed), None, once, retry, 9, Some((16, DelayedBy::RetryDelay))),
        (Ending::Reported(Report::FailedForGood), None, retries, retry, 0, None),
        (Ending::Undelivered, None, once, retry, 9, None),
        (Ending::LeaseExpired, None, retries, None, 9, None),
        (Ending::LeaseExpired, None, retries, retry, 9, Some((16, DelayedBy::RetryDelay))),
        (Ending::LeaseExpired, None, once, None, 3, None),
        (Ending::LeaseExpired, None, once, None, 4, Some((1, DelayedBy::Backoff))),
        (Ending::TooSlow, None, once, retry, 8, Some((16, DelayedBy::RetryDelay))),
        (Ending::WorkerRemoved, None, once, retry, 9, Some((32, DelayedBy::Backoff))),
    ] {
        let before = Before { ending, stated, retry: 2, losses };
        let found = of_next_run(before, &terms(delivery, retry_delay), at(100), at(1_000));
        let expected = expected.map(|(seconds, by)| Delayed { until: at(100 + seconds), by });
        assert_eq!(found, expected, "{ending:?} {stated:?} {delivery} {losses}");
    }
}

#[test]
fn every_delay_ends_between_now_and_deadline() {
    let retry = RetryDelay { first: TimeDelta::seconds(3_600), factor: 10.0, most: TimeDelta::seconds(86_400) };
    for (ending, ..) in TABLE {
        for &delivery in Delivery::ALL {
            for stated in [None, Some(after(0)), Some(after(1)), Some(Start::At(EVER)), Some(Start::At(at(0)))] {
                for retry_delay in [None, Some(retry)] {
                    for (number, losses) in [(1, 0), (2, 4), (u32::MAX, u16::MAX)] {
                        for deadline in [at(50), at(100), at(101), EVER] {
                            let before = Before { ending, stated, retry: number, losses };
                            let found = of_next_run(before, &terms(delivery, retry_delay), at(100), deadline);
                            let fits = found.is_none_or(|hold| hold.until > at(100) && hold.until <= deadline);
                            assert!(fits, "{before:?} {delivery} {deadline}");
                            let ends = ending.retry().is_some() && ending != Ending::Undelivered;
                            assert!(ends || found.is_none(), "{before:?}");
                        }
                    }
                }
            }
        }
    }
}
