use serde_json::{Value, json};
use tenure_domain::policy::cells::By;

use super::super::observations::{Assigned, Began, Claimed, Replaced, Resolution};
use super::super::part::{ACCEPT_TIME, TTL};
use super::*;

const TASK: &str = "9HrBC1jMQ3KlZw4CssPUeQ";

/// Milliseconds after the claim, by the server's clock.
fn at(ms: i64) -> Timestamp {
    let claim: Timestamp = serde_json::from_value(json!("2026-01-31T12:00:00.000Z")).unwrap();
    Timestamp::new(claim.time() + TimeDelta::milliseconds(ms))
}

fn run(id: u16, worker: &str, started: i64, ended: i64, state: &str, reason: &str) -> Value {
    json!({"runId": id, "state": state, "reasonCreated": "scheduled", "reasonResolved": reason, "workerGroup": "g",
        "workerId": worker, "takenUntil": at(started + 10_000), "scheduled": at(0), "started": at(started),
        "resolved": at(ended)})
}

/// The first run, lost.
fn lost(part: &Part, ended: i64) -> Value {
    let reason = part.end().unwrap().1.outcome().reason();
    let mut run = run(0, FIRST, 0, ended, "exception", &reason.to_string());
    run["takenUntil"] = json!(at(part.lease().num_milliseconds()));
    if !part.is_claimed() {
        for of_a_claim in ["workerGroup", "workerId", "takenUntil", "started"] {
            run.as_object_mut().unwrap().remove(of_a_claim);
        }
    }
    run
}

fn status(runs: &[Value], state: &str) -> tenure_api::bodies::Status {
    serde_json::from_value(json!({"taskId": TASK, "taskQueueId": "tenure-verify/v1", "schedulerId": "-",
        "projectId": "none", "taskGroupId": TASK, "priority": "lowest", "deadline": at(600_000), "expires": at(900_000),
        "retriesLeft": 5, "state": state, "runs": runs}))
    .unwrap()
}

fn claimed(run: &str, sent_ms: u64, received_ms: u64) -> Claimed {
    let [sent, received] = [sent_ms, received_ms].map(Duration::from_millis);
    Claimed { run: run.parse().unwrap(), taken_until: at(10_000), sent, received }
}

/// Age of the session at its claim.
const SESSION_AGE_MS: i64 = 500;
/// When the scheduler was replaced, after the claim or the assignment.
const REPLACED_MS: i64 = 1_000;

/// When the first worker should lose the run, if at all.
fn end_ms(part: &Part) -> Option<i64> {
    let (after, ending) = part.end()?;
    let from = match part.by {
        By::Lease | By::AcceptTime => 0,
        By::Session => {
            if ending == Ending::SessionEnded {
                -SESSION_AGE_MS
            } else {
                0
            }
        }
        By::Scheduler | By::SchedulerUnaccepted => REPLACED_MS,
    };
    Some(from + after.num_milliseconds())
}

fn end(run: u64, exchange: &str) -> Resolution {
    Resolution { run, exchange: exchange.to_owned() }
}

fn part(name: &str) -> Part {
    Part::all().find(|part| part.name() == name).unwrap()
}

/// Returns a case as documented, with its successor late by `late_ms`.
pub fn published(part: &Part, late_ms: i64) -> Observations {
    let first = Claimed { taken_until: at(part.lease().num_milliseconds()), ..claimed("0", 1_000, 1_005) };
    let expires = at(TTL.num_milliseconds() - SESSION_AGE_MS);
    let has_session = part.by == By::Session || part.assigns();
    let session = has_session.then_some(Began { expires, sent: Duration::from_millis(500) });
    let accept_by = (part.by == By::AcceptTime).then_some(at(ACCEPT_TIME.num_milliseconds()));
    let assigned = (!part.is_claimed()).then_some(Assigned { accept_by, sent: Duration::from_millis(1_000) });
    let [sent, received] = [2_000, 2_010].map(Duration::from_millis);
    let replaced = part.is_replaced().then_some(Replaced { since: Some(at(REPLACED_MS)), sent, received });
    let ended_ms = end_ms(part).map(|ended| ended + late_ms);
    let noticed_ms = ended_ms.map_or(0, |ended| u64::try_from(ended).unwrap() + 1_010);
    let observed = Observations {
        session,
        assigned,
        first: part.is_claimed().then_some(first),
        replaced,
        second: None,
        ended: None,
        watched: Duration::from_secs(15),
        silence: Duration::from_secs(3),
        first_report: Some(409),
        second_report: None,
        retries: 5,
        status: status(&[], "completed"),
        ended_by: None,
        resolutions: Vec::new(),
    };
    match (part.follows(), ended_ms) {
        (Follows::AnotherRun(_), Some(ended)) => Observations {
            second: Some(claimed("1", 1_020, noticed_ms)),
            second_report: Some(200),
            status: status(
                &[lost(part, ended), run(1, SECOND, ended, ended + 50, "completed", "completed")],
                "completed",
            ),
            resolutions: vec![end(0, "task-exception"), end(1, "task-completed")],
            ..observed
        },
        (Follows::AnotherWorker(_), Some(taken)) => Observations {
            second: Some(claimed("0", 1_020, noticed_ms)),
            second_report: Some(200),
            status: status(&[run(0, SECOND, taken, taken + 50, "completed", "completed")], "completed"),
            resolutions: vec![end(0, "task-completed")],
            ..observed
        },
        (Follows::Ends(_), Some(ended)) => Observations {
            ended: Some(Duration::from_millis(noticed_ms)),
            status: status(&[lost(part, ended)], "exception"),
            ended_by: part.end().unwrap().1.ended_by(),
            resolutions: vec![end(0, "task-exception")],
            ..observed
        },
        (Follows::Waits, None) => Observations {
            first_report: Some(200),
            status: status(&[run(0, FIRST, 0, 15_000, "completed", "completed")], "completed"),
            resolutions: vec![end(0, "task-completed")],
            ..observed
        },
        (follows, ended) => panic!("{follows:?} {ended:?}"),
    }
}

#[test]
fn documented_case_up_to_ten_seconds_late_is_accepted() {
    for part in Part::all() {
        for late_ms in [0, 1, 999, 1_500, 10_000] {
            let observed = published(&part, late_ms);
            assert_eq!(judge(&part, &observed), [], "{} {late_ms}", part.name());
            let expected = part.end().map(|_| TimeDelta::milliseconds(late_ms));
            assert_eq!(lateness(&part, &observed), expected, "{}", part.name());
        }
    }
}

/// Changes a case and expects exactly these differences.
#[track_caller]
fn found(name: &str, spoil: impl FnOnce(&mut Observations), expected: &[Difference]) {
    let part = part(name);
    let mut observed = published(&part, 20);
    spoil(&mut observed);
    assert_eq!(judge(&part, &observed), expected, "{name}");
    for difference in expected {
        assert!(!difference.to_string().contains('\n'), "{difference}");
    }
}

fn ends(words: &[&str]) -> Ends {
    Ends(words.iter().map(|word| (*word).to_owned()).collect())
}

const AGAIN: &str = "exit/at-least/0";
const SLOW: &str = "slow/at-least/n";
const ONCE: &str = "exit/at-most/n";
const WAITS: &str = "slow/at-most/n";
const AGAIN_BY_SESSION: &str = "exit/at-least/0 by session";
const ONCE_BY_SESSION: &str = "exit/at-most/0 by session";
const SLOW_BY_SESSION: &str = "exit/at-least/n by session";
const NOT_ACCEPTED: &str = "accept/at-least/0";
const NEVER_ACCEPTED: &str = "accept/at-most/n";
const REPLACED: &str = "scheduler/at-least/0";
const REPLACED_LATER: &str = "scheduler/at-least/n";
const REPLACED_UNACCEPTED: &str = "scheduler/at-least/n unaccepted";
const KEPT: &str = "scheduler/at-most/0";
const KEPT_UNACCEPTED: &str = "scheduler/at-most/n unaccepted";

#[test]
fn missing_claim_or_long_silence_is_only_difference() {
    found(AGAIN, |observed| observed.first = None, &[Difference::NoClaim]);
    found(AGAIN, |observed| observed.status.runs.clear(), &[Difference::NoClaim]);
    for name in [NOT_ACCEPTED, REPLACED_UNACCEPTED, KEPT_UNACCEPTED] {
        found(name, |observed| observed.assigned = None, &[Difference::NoClaim]);
    }
    found(KEPT, |observed| observed.first = None, &[Difference::NoClaim]);
    let silence = Duration::from_secs(10);
    found(WAITS, |observed| observed.silence = silence, &[Difference::NotJudged(silence)]);
    found(AGAIN, |observed| observed.silence = silence, &[]);
}

#[test]
fn unexpected_worker_or_run_is_found() {
    let other = Some("else".to_owned());
    let worker = |run, expected, found: &Option<String>| Difference::Worker(run, expected, found.clone());
    let first = Some(FIRST.to_owned());
    for name in [AGAIN, WAITS, REPLACED, KEPT_UNACCEPTED] {
        found(name, |observed| observed.status.runs[0].worker_id = other.clone(), &[worker(0, Some(FIRST), &other)]);
    }
    found(AGAIN, |observed| observed.status.runs[1].worker_id = other.clone(), &[worker(1, Some(SECOND), &other)]);
    for name in [NOT_ACCEPTED, REPLACED_UNACCEPTED] {
        found(name, |observed| observed.status.runs[0].worker_id = first.clone(), &[worker(0, Some(SECOND), &first)]);
    }
    found(NEVER_ACCEPTED, |observed| observed.status.runs[0].worker_id = first.clone(), &[worker(0, None, &first)]);
    let watched = Duration::from_secs(15);
    found(AGAIN, |observed| observed.second = None, &[Difference::NoOtherRun(watched)]);
    found(NOT_ACCEPTED, |observed| observed.second = None, &[Difference::NoOtherRun(watched)]);
    for name in [ONCE, WAITS, NEVER_ACCEPTED, KEPT, KEPT_UNACCEPTED] {
        found(name, |observed| observed.second = Some(claimed("1", 0, 20_000)), &[Difference::OtherRun]);
    }
}

#[test]
fn early_end_is_found_by_either_clock() {
    let early = |ms| Difference::Early(TimeDelta::milliseconds(ms));
    found(AGAIN, |observed| observed.status.runs[0].resolved = Some(at(9_999)), &[early(1)]);
    found(ONCE, |observed| observed.status.runs[0].resolved = Some(at(3_020)), &[early(6_980)]);
    found(SLOW, |observed| observed.status.runs[0].resolved = Some(at(2_500)), &[early(500)]);
    found(AGAIN, |observed| observed.status.runs[0].resolved = Some(at(10_000)), &[]);
    let here = |ms| Difference::EarlyHere(TimeDelta::milliseconds(ms));
    found(AGAIN, |observed| observed.second = Some(claimed("1", 0, 10_999)), &[here(1)]);
    found(SLOW, |observed| observed.second = Some(claimed("1", 0, 3_500)), &[here(500)]);
    found(ONCE, |observed| observed.ended = Some(Duration::from_secs(4)), &[here(7_000)]);
}

#[test]
fn late_or_missing_end_is_found() {
    let late = Difference::Late(TimeDelta::milliseconds(10_001));
    found(AGAIN, |observed| observed.status.runs[1].started = Some(at(20_001)), std::slice::from_ref(&late));
    found(ONCE, |observed| observed.status.runs[0].resolved = Some(at(20_001)), &[late]);
    // The report of its worker is accepted in the end, so the run ends after all.
    let watched = Duration::from_secs(15);
    found(
        SLOW,
        |observed| *observed = Observations { ended_by: None, ..published(&part(WAITS), 0) },
        &[
            Difference::NoOtherRun(watched),
            Difference::NotEnded(watched),
            Difference::Runs(
                ends(&["exception (claim-expired)", "completed (completed)"]),
                ends(&["completed (completed)"]),
            ),
            Difference::FirstReport(409, Some(200)),
            Difference::SecondReport(200, None),
            Difference::Log(
                ends(&["task-exception of run 0", "task-completed of run 1"]),
                ends(&["task-completed of run 0"]),
            ),
        ],
    );
}

#[test]
fn unexpected_lease_is_found() {
    let long = |observed: &mut Observations| observed.first.as_mut().unwrap().taken_until = at(1_200_000);
    found(WAITS, long, &[Difference::Lease(TimeDelta::seconds(10), TimeDelta::minutes(20))]);
    found(AGAIN_BY_SESSION, long, &[Difference::Lease(TimeDelta::minutes(2), TimeDelta::minutes(20))]);
    found(WAITS, |observed| observed.first.as_mut().unwrap().taken_until = at(10_999), &[]);
}

#[test]
fn session_expires_from_its_start() {
    let early = |ms| Difference::Early(TimeDelta::milliseconds(ms));
    found(AGAIN_BY_SESSION, |observed| observed.status.runs[0].resolved = Some(at(14_499)), &[early(1)]);
    found(ONCE_BY_SESSION, |observed| observed.status.runs[0].resolved = Some(at(10_000)), &[early(4_500)]);
    let here = |ms| Difference::EarlyHere(TimeDelta::milliseconds(ms));
    found(AGAIN_BY_SESSION, |observed| observed.second = Some(claimed("1", 0, 15_499)), &[here(1)]);
    found(AGAIN_BY_SESSION, |observed| observed.second = Some(claimed("1", 0, 15_500)), &[]);
    found(SLOW_BY_SESSION, |observed| observed.second = Some(claimed("1", 0, 3_999)), &[here(1)]);
    let late = Difference::Late(TimeDelta::milliseconds(10_001));
    found(AGAIN_BY_SESSION, |observed| observed.status.runs[1].started = Some(at(24_501)), &[late]);
    let by_lease = |observed: &mut Observations| {
        observed.status.runs[0].reason_resolved = Some(ReasonResolved::ClaimExpired);
        observed.ended_by = Some(EndedBy::Lease);
    };
    let runs = Difference::Runs(ends(&["exception (worker-shutdown)"]), ends(&["exception (claim-expired)"]));
    let by = Difference::EndedBy(EndedBy::SessionEnded, Some(EndedBy::Lease));
    found(ONCE_BY_SESSION, by_lease, &[runs, by]);
}

#[test]
fn accept_time_starts_at_assignment() {
    let early = |ms| Difference::Early(TimeDelta::milliseconds(ms));
    let here = |ms| Difference::EarlyHere(TimeDelta::milliseconds(ms));
    let late = Difference::Late(TimeDelta::milliseconds(10_001));
    found(NOT_ACCEPTED, |observed| observed.status.runs[0].started = Some(at(999)), &[early(1)]);
    found(NOT_ACCEPTED, |observed| observed.second = Some(claimed("0", 0, 1_999)), &[here(1)]);
    found(NOT_ACCEPTED, |observed| observed.status.runs[0].started = Some(at(11_001)), std::slice::from_ref(&late));
    found(NEVER_ACCEPTED, |observed| observed.status.runs[0].resolved = Some(at(900)), &[early(100)]);
    found(NEVER_ACCEPTED, |observed| observed.ended = Some(Duration::from_millis(1_900)), &[here(100)]);
    found(NEVER_ACCEPTED, |observed| observed.status.runs[0].resolved = Some(at(11_001)), &[late]);
    for name in [NOT_ACCEPTED, NEVER_ACCEPTED] {
        found(name, |observed| observed.assigned.as_mut().unwrap().accept_by = None, &[Difference::NoAcceptTime]);
    }
}

#[test]
fn run_of_replaced_scheduler_ends_after_replacement() {
    let early = |ms| Difference::Early(TimeDelta::milliseconds(ms));
    let here = |ms| Difference::EarlyHere(TimeDelta::milliseconds(ms));
    let late = Difference::Late(TimeDelta::milliseconds(10_001));
    found(REPLACED, |observed| observed.status.runs[0].resolved = Some(at(999)), &[early(1)]);
    found(REPLACED, |observed| observed.status.runs[1].started = Some(at(11_001)), std::slice::from_ref(&late));
    found(REPLACED_UNACCEPTED, |observed| observed.status.runs[0].started = Some(at(400)), &[early(600)]);
    found(
        REPLACED_UNACCEPTED,
        |observed| observed.status.runs[0].started = Some(at(11_001)),
        std::slice::from_ref(&late),
    );
    // By its claim it would have ended by then; an immediate end is too early as well.
    found(REPLACED_LATER, |observed| observed.status.runs[0].resolved = Some(at(6_000)), &[early(1_000)]);
    found(REPLACED_LATER, |observed| observed.status.runs[0].resolved = Some(at(1_050)), &[early(5_950)]);
    found(REPLACED_LATER, |observed| observed.second = Some(claimed("1", 0, 7_999)), &[here(1)]);
    found(REPLACED_LATER, |observed| observed.status.runs[1].started = Some(at(17_001)), &[late]);
}

#[test]
fn missing_replacement_is_found_late_one_not_judged() {
    for name in [REPLACED, REPLACED_LATER, REPLACED_UNACCEPTED, KEPT, KEPT_UNACCEPTED] {
        found(name, |observed| observed.replaced.as_mut().unwrap().since = None, &[Difference::NotReplaced]);
    }
    let late = |observed: &mut Observations| observed.replaced.as_mut().unwrap().received = Duration::from_secs(7);
    found(REPLACED_LATER, late, &[Difference::ReplacedLate(Duration::from_secs(6))]);
    for name in [REPLACED, REPLACED_UNACCEPTED, KEPT, KEPT_UNACCEPTED] {
        found(name, late, &[]);
    }
}

#[test]
fn unexpected_runs_states_and_retries_are_found() {
    let runs = |expected, found| Difference::Runs(ends(expected), ends(found));
    found(
        ONCE,
        |observed| observed.status.runs[0].reason_resolved = Some(ReasonResolved::WorkerShutdown),
        &[runs(&["exception (claim-expired)"], &["exception (worker-shutdown)"])],
    );
    found(
        WAITS,
        |observed| observed.status.runs.push(observed.status.runs[0].clone()),
        &[runs(&["completed (completed)"], &["completed (completed)", "completed (completed)"])],
    );
    found(
        ONCE,
        |observed| observed.status.state = TaskState::Pending,
        &[Difference::State(TaskState::Exception, TaskState::Pending)],
    );
    found(AGAIN, |observed| observed.status.retries_left = 4, &[Difference::Retries(5, 4)]);
    found(
        ONCE,
        |observed| observed.ended_by = Some(EndedBy::CompleteTime),
        &[Difference::EndedBy(EndedBy::Lease, Some(EndedBy::CompleteTime))],
    );
    found(ONCE, |observed| observed.ended_by = None, &[Difference::EndedBy(EndedBy::Lease, None)]);
    found(
        NEVER_ACCEPTED,
        |observed| observed.ended_by = Some(EndedBy::Lease),
        &[Difference::EndedBy(EndedBy::NotAccepted, Some(EndedBy::Lease))],
    );
    found(NOT_ACCEPTED, |observed| observed.status.retries_left = 4, &[Difference::Retries(5, 4)]);
    // A second run, although the first never started.
    found(
        NOT_ACCEPTED,
        |observed| observed.status.runs.push(observed.status.runs[0].clone()),
        &[runs(&["completed (completed)"], &["completed (completed)", "completed (completed)"])],
    );
}

#[test]
fn unexpected_report_status_is_found() {
    found(ONCE, |observed| observed.first_report = Some(200), &[Difference::FirstReport(409, Some(200))]);
    found(NOT_ACCEPTED, |observed| observed.first_report = Some(200), &[Difference::FirstReport(409, Some(200))]);
    for name in [WAITS, KEPT, KEPT_UNACCEPTED] {
        found(name, |observed| observed.first_report = Some(409), &[Difference::FirstReport(200, Some(409))]);
    }
    found(NOT_ACCEPTED, |observed| observed.second_report = Some(409), &[Difference::SecondReport(200, Some(409))]);
    found(AGAIN, |observed| observed.second_report = Some(409), &[Difference::SecondReport(200, Some(409))]);
}

#[test]
fn extra_or_missing_resolution_is_found() {
    let log = |found: &[&str]| Difference::Log(ends(&["task-completed of run 0"]), ends(found));
    found(WAITS, |observed| observed.resolutions.clear(), &[log(&[])]);
    let twice = ["task-completed of run 0", "task-completed of run 0"];
    found(WAITS, |observed| observed.resolutions.push(observed.resolutions[0].clone()), &[log(&twice)]);
    found(
        WAITS,
        |observed| observed.resolutions = vec![end(0, "task-exception")],
        &[log(&["task-exception of run 0"])],
    );
    found(
        WAITS,
        |observed| observed.resolutions = vec![end(1, "task-completed")],
        &[log(&["task-completed of run 1"])],
    );
}
