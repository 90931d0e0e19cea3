use super::*;
use crate::policy::ending::{Allowance, Refused, decide};
use tenure_api::ids::RunId;

fn at(seconds: i64) -> DateTime<Utc> {
    DateTime::from_timestamp(seconds, 0).unwrap()
}

fn request() -> StartSessionRequest {
    StartSessionRequest {
        task_queue_id: "acme/linux".parse().unwrap(),
        worker_group: "rack-1".parse().unwrap(),
        worker_id: "one".parse().unwrap(),
        ttl: None,
        weight: None,
        capacity: None,
        takeover: false,
        policy_version: None,
    }
}

fn start() -> Start {
    Start::from_request(request()).unwrap()
}

fn is_refused<T>(result: Result<T, Unacceptable>, words: &str) -> bool {
    matches!(result, Err(Unacceptable::Rule(message)) if message.contains(words))
}

#[test]
fn what_is_not_said_at_the_start_has_a_default() {
    let start = start();
    assert_eq!((start.ttl, start.weight, start.capacity), (120, 1, 1));
    assert_eq!((start.takeover, start.policy_version), (false, None));
}

#[test]
fn every_number_of_a_start_has_its_range() {
    type Field = (&'static str, fn(&mut StartSessionRequest) -> &mut Option<i64>, i64, i64);
    let fields: [Field; 4] = [
        ("`ttl` must be from 15 to 3600 seconds", |request| &mut request.ttl, 15, 3_600),
        ("`weight` must be from 0 to 65535", |request| &mut request.weight, 0, 65_535),
        ("`capacity` must be from 0 to 1000", |request| &mut request.capacity, 0, 1_000),
        ("`policyVersion` must be from 0", |request| &mut request.policy_version, 0, i64::MAX),
    ];
    for (words, field, least, most) in fields {
        let with = |value| {
            let mut request = request();
            *field(&mut request) = Some(value);
            Start::from_request(request)
        };
        for value in [least, most] {
            assert!(with(value).is_ok(), "{words}: {value}");
        }
        for value in
            [least - 1, most.saturating_add(1), i64::MIN].into_iter().filter(|value| !(least..=most).contains(value))
        {
            assert!(is_refused(with(value), words), "{words}: {value}");
        }
    }
}

#[test]
fn a_renewal_changes_what_it_says_within_the_same_ranges() {
    let stated = Stated::from_request(&RenewSessionRequest::default()).unwrap();
    assert_eq!(stated, Stated { weight: None, capacity: None, frozen: None });
    let all = RenewSessionRequest { weight: Some(65_535), capacity: Some(0), frozen: Some(true) };
    let expected = Stated { weight: Some(65_535), capacity: Some(0), frozen: Some(true) };
    assert_eq!(Stated::from_request(&all).unwrap(), expected);
    for wrong in [-1, 65_536, i64::MAX] {
        assert!(is_refused(Stated::from_request(&RenewSessionRequest { weight: Some(wrong), ..all }), "`weight`"));
    }
    for wrong in [-1, 1_001, i64::MAX] {
        assert!(is_refused(Stated::from_request(&RenewSessionRequest { capacity: Some(wrong), ..all }), "`capacity`"));
    }
}

#[test]
fn a_task_is_named_by_the_command_that_stops_one_and_by_no_other() {
    for &command in WorkerCommand::ALL {
        for task_id in [None, Some("9HrBC1jMQ3KlZw4CssPUeQ".parse().unwrap())] {
            let allowed = (command == WorkerCommand::StopTask) == task_id.is_some();
            assert_eq!(check_command(&CommandRequest { command, task_id }).is_ok(), allowed, "{command} {task_id:?}");
        }
    }
}

#[test]
fn claims_belong_to_a_session_of_the_same_worker_in_the_same_queue() {
    let start = start();
    let identity = Identity {
        id: "b4cf1f7d-1b1c-4a8b-9d3f-5f0f4d6f2a10".parse().unwrap(),
        epoch: 7,
        queue: start.queue.clone(),
        worker_group: start.worker_group,
        worker_id: start.worker_id,
        ttl: 120,
        started: at(0),
    };
    assert!(identity.is_of(&start.queue, "rack-1", "one"));
    assert!(!identity.is_of(&start.queue, "rack-1", "two"));
    assert!(!identity.is_of(&start.queue, "rack-2", "one"));
    assert!(!identity.is_of(&"acme/mac".parse().unwrap(), "rack-1", "one"));
    for (ttl, seconds) in [(15, 5), (45, 15), (90, 30), (120, 30), (3_600, 30)] {
        assert_eq!(Identity { ttl, ..identity.clone() }.wait_max(), Duration::from_secs(seconds), "ttl {ttl}");
    }
}

#[test]
fn a_session_begins_unless_the_policy_or_a_live_one_is_in_the_way() {
    let live = Some((at(100), at(220)));
    for (expected, ours, live, takeover, now, result) in [
        // The version of the policy comes first.
        (Some(3), 4, None, false, 100, Err(StartRefused::Policy(4))),
        (Some(3), 4, live, true, 200, Err(StartRefused::Policy(4))),
        (Some(0), 0, None, false, 100, Ok(())),
        (Some(4), 4, None, false, 100, Ok(())),
        (None, 4, None, false, 100, Ok(())),
        (None, 0, None, true, 100, Ok(())),
        (None, 0, live, false, 110, Err(StartRefused::Exists(at(100), at(220)))),
        // It is live as long as nothing has ended it.
        (None, 0, live, false, 500, Err(StartRefused::Exists(at(100), at(220)))),
        (None, 0, live, true, 100, Err(StartRefused::TooSoon(at(101)))),
        (None, 0, live, true, 101, Ok(())),
        // The clock was set back.
        (None, 0, live, true, 99, Ok(())),
        (None, 0, live, true, 500, Ok(())),
    ] {
        let start = Start { policy_version: expected, takeover, ..start() };
        assert_eq!(may_start(&start, live, ours, at(now)), result, "{expected:?} {takeover} at {now}");
    }
}

/// How runs end with their session, by hand: what the worker gives back itself is released if that may be.
#[test]
fn every_end_of_a_session_ends_every_run_as_its_delivery_says() {
    use Ending::{Released, SessionEnded, WorkerRemoved};
    for free_runs in [0, 1, 199, 200, u16::MAX] {
        let released = if free_runs < 200 { Released } else { SessionEnded };
        for (by, endings) in [
            (SessionEnd::Expired, [SessionEnded; 3]),
            (SessionEnd::Closed, [released, released, SessionEnded]),
            (SessionEnd::Takeover, [SessionEnded; 3]),
            (SessionEnd::WorkerRemoved, [WorkerRemoved; 3]),
        ] {
            for (&delivery, ending) in Delivery::ALL.iter().zip(endings) {
                assert_eq!(run_ends(by, delivery, free_runs), ending, "{by} {delivery} {free_runs}");
            }
        }
    }
    assert_eq!(SessionEnd::ALL.len(), 4, "a new one belongs into the table");
}

#[test]
fn every_end_of_a_session_takes_back_every_run_that_is_assigned_to_it() {
    use TakenBack::{Ends, Waits};
    for (by, expected) in [
        (SessionEnd::Expired, [Waits, Waits, Ends]),
        (SessionEnd::Closed, [Waits; 3]),
        (SessionEnd::Takeover, [Waits, Waits, Ends]),
        (SessionEnd::WorkerRemoved, [Waits, Waits, Ends]),
    ] {
        for (&delivery, expected) in Delivery::ALL.iter().zip(expected) {
            assert_eq!(assigned_run_ends(by, delivery), expected, "{by} {delivery}");
        }
    }
}

/// The end of a session waits for nothing but locks: no run may be kept because of what its task had before.
#[test]
fn no_end_of_a_run_with_its_session_is_ever_refused() {
    for &by in SessionEnd::ALL {
        for &delivery in Delivery::ALL {
            for free_runs in [0, 199, 200] {
                for retries_left in [0, 1] {
                    let had = Allowance { retries_left, free_runs, requeues: 5, losses: 9 };
                    let ending = run_ends(by, delivery, free_runs);
                    let decided: Result<_, Refused> = decide(delivery, ending, RunId::FIRST, had);
                    assert!(decided.is_ok(), "{by} {delivery} {had:?}");
                    let costs_nothing = by == SessionEnd::Closed && delivery != Delivery::AtMostOnce && free_runs < 200;
                    let left = decided.unwrap();
                    assert!(!costs_nothing || (left.next.is_some() && left.left.retries_left == retries_left));
                }
            }
        }
    }
}
