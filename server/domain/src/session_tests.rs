use super::*;
use crate::policy::ending::{Allowance, Refused, RetryRule, decide};
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
fn absent_start_fields_have_defaults() {
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
fn renewal_changes_stated_fields_within_ranges() {
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
fn only_stop_task_command_names_task() {
    for &command in WorkerCommand::ALL {
        for task_id in [None, Some("9HrBC1jMQ3KlZw4CssPUeQ".parse().unwrap())] {
            let allowed = (command == WorkerCommand::StopTask) == task_id.is_some();
            assert_eq!(check_command(&CommandRequest { command, task_id }).is_ok(), allowed, "{command} {task_id:?}");
        }
    }
}

#[test]
fn claims_belong_to_session_of_same_worker_and_queue() {
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
fn session_starts_unless_policy_or_live_session_differs() {
    let live = Some((at(100), at(220)));
    for (expected, ours, live, takeover, now, result) in [
        // The policy version is checked first.
        (Some(3), 4, None, false, 100, Err(StartRefused::Policy(4))),
        (Some(3), 4, live, true, 200, Err(StartRefused::Policy(4))),
        (Some(0), 0, None, false, 100, Ok(())),
        (Some(4), 4, None, false, 100, Ok(())),
        (None, 4, None, false, 100, Ok(())),
        (None, 0, None, true, 100, Ok(())),
        (None, 0, live, false, 110, Err(StartRefused::Exists(at(100), at(220)))),
        // A session is live until something ends it.
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

/// How runs end with their session, written by hand: a worker that closes its session releases its
/// runs if allowed.
#[test]
fn session_end_ends_runs_by_delivery() {
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
    assert_eq!(SessionEnd::ALL.len(), 4, "add a new variant to the table");
}

#[test]
fn session_end_takes_back_assigned_runs() {
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

/// The end of a session waits only for locks: a task's history never keeps a run.
#[test]
fn run_end_with_session_is_never_refused() {
    for &by in SessionEnd::ALL {
        for &delivery in Delivery::ALL {
            for free_runs in [0, 199, 200] {
                for retries_left in [0, 1] {
                    let had = Allowance { retries_left, free_runs, requeues: 5, losses: 9 };
                    let ending = run_ends(by, delivery, free_runs);
                    let decided: Result<_, Refused> = decide(RetryRule::of(delivery), ending, RunId::FIRST, had);
                    assert!(decided.is_ok(), "{by} {delivery} {had:?}");
                    let costs_nothing = by == SessionEnd::Closed && delivery != Delivery::AtMostOnce && free_runs < 200;
                    let left = decided.unwrap();
                    assert!(!costs_nothing || (left.next.is_some() && left.left.retries_left == retries_left));
                }
            }
        }
    }
}
