use super::*;
use serde_json::json;

const NOW: &str = "2026-01-31T12:01:00Z";

fn now() -> DateTime<Utc> {
    NOW.parse().unwrap()
}

/// A task whose last run is `run`, with the preceding runs.
fn status(state: &str, run: &Value) -> Status {
    let first = json!({"runId": 0, "state": "exception", "reasonCreated": "scheduled", "reasonResolved": "worker-shutdown",
        "scheduled": "2026-01-31T11:00:00Z", "resolved": "2026-01-31T11:30:00Z"});
    let runs = match run["runId"].as_i64() {
        None => vec![],
        Some(0) => vec![run.clone()],
        Some(_) => vec![first, run.clone()],
    };
    serde_json::from_value(json!({
        "taskId": "9HrBC1jMQ3KlZw4CssPUeQ", "taskQueueId": "p/w", "schedulerId": "s", "projectId": "none",
        "taskGroupId": "9HrBC1jMQ3KlZw4CssPUeQ", "priority": "lowest", "deadline": "2026-02-01T12:00:00Z",
        "expires": "2027-01-31T12:00:00Z", "retriesLeft": 5, "state": state, "runs": runs,
    }))
    .unwrap()
}

fn run(state: &str, more: &Value) -> Value {
    let mut run =
        json!({"runId": 0, "state": state, "reasonCreated": "scheduled", "scheduled": "2026-01-31T12:00:00Z"});
    for (name, value) in more.as_object().unwrap() {
        run[name] = value.clone();
    }
    run
}

fn held() -> Value {
    json!({"started": "2026-01-31T12:00:19Z", "workerGroup": "here", "workerId": "linux-1"})
}

fn resolved(reason: &str) -> Value {
    let mut run = held();
    run["resolved"] = "2026-01-31T12:01:00Z".into();
    run["reasonResolved"] = reason.into();
    run
}

#[test]
fn every_state_has_its_line() {
    let failed = |failure: Value, result: Value| {
        let report = Report::of(&failure, &result);
        verdict(&status("failed", &run("failed", &resolved("failed"))), &report, now())
    };
    let exited = json!({"message": "exit code 3", "exitCode": 3});
    assert_eq!(failed(exited.clone(), Value::Null), "Failed on here/linux-1 after 41 s: exit code 3");
    let other = json!({"failure": "of another program"});
    assert_eq!(failed(exited, other), "Failed on here/linux-1 after 41 s: exit code 3");
    let kind = json!({"message": "bad port\nline 2", "kind": "ValueError"});
    assert_eq!(failed(kind, Value::Null), "Failed on here/linux-1 after 41 s: ValueError: bad port line 2");
    let earlier = json!({"failure": "maxRunTime of 60 s is over", "exitCode": 3});
    assert_eq!(failed(Value::Null, earlier), "Failed on here/linux-1 after 41 s: maxRunTime of 60 s is over");
    assert_eq!(failed(Value::Null, Value::Null), "Failed on here/linux-1 after 41 s");
    let malformed = Report::of(&json!({"message": "no command"}), &Value::Null);
    assert_eq!(
        verdict(&status("exception", &run("exception", &resolved("malformed-payload"))), &malformed, now()),
        "Exception on here/linux-1 after 41 s: malformed-payload: no command"
    );
    let none = Report::default();
    let mut retried = run("running", &held());
    retried["runId"] = 1.into();
    let at_once = json!({"resolved": "2026-01-31T12:00:05Z", "reasonResolved": "deadline-exceeded"});
    for (state, run, line) in [
        ("unscheduled", Value::Null, "Unscheduled: it has no run yet"),
        ("pending", run("pending", &json!({})), "Pending for 1 m"),
        ("running", run("running", &held()), "Running for 41 s on here/linux-1"),
        ("running", retried, "Running for 41 s on here/linux-1 (run 1)"),
        ("completed", run("completed", &resolved("completed")), "Completed on here/linux-1 after 41 s"),
        ("exception", run("exception", &resolved("canceled")), "Exception on here/linux-1 after 41 s: canceled"),
        ("exception", run("exception", &at_once), "Exception before a worker had it: deadline-exceeded"),
    ] {
        assert_eq!(verdict(&status(state, &run), &none, now()), line);
    }
}

#[test]
fn report_does_not_change_line_of_completed_run() {
    let status = status("completed", &run("completed", &resolved("completed")));
    let report = Report::of(&Value::Null, &json!({"exitCode": 0, "failure": "none"}));
    assert_eq!(verdict(&status, &report, now()), "Completed on here/linux-1 after 41 s");
}

#[test]
fn only_results_of_the_known_form_are_reports() {
    for (result, exit_code, failure) in [
        (json!({"exitCode": 0}), Some(0), None),
        (json!({"exitCode": 255, "failure": "exit code 255"}), Some(255), Some("exit code 255")),
        (json!({"exitCode": 256}), None, None),
        (json!({"exitCode": -1}), None, None),
        (json!({"exitCode": "3", "failure": 3}), None, None),
        (json!({"failure": " \n"}), None, None),
        (json!({"failure": "a\u{1b}[2J\nb"}), None, Some("a [2J b")),
        (json!([3]), None, None),
        (json!("failed"), None, None),
        (Value::Null, None, None),
    ] {
        let expected = Report { exit_code, failure: failure.map(str::to_owned) };
        assert_eq!(Report::of(&Value::Null, &result), expected, "{result}");
    }
    let long = json!({"message": "é".repeat(FAILURE_CHARS_MAX + 1)});
    let long = Report::of(&long, &Value::Null).failure.unwrap();
    assert_eq!(long.chars().count(), FAILURE_CHARS_MAX + 1, "cut between characters, with an ellipsis");
}

#[test]
fn failure_is_shown_with_its_kind_once() {
    for (failure, exit_code, line) in [
        (json!({"message": "killed by signal 9", "exitCode": -9}), Some(-9), Some("killed by signal 9")),
        (json!({"message": "bad port", "kind": "ValueError"}), None, Some("ValueError: bad port")),
        (json!({"message": "ValueError: bad port", "kind": "ValueError"}), None, Some("ValueError: bad port")),
        (json!({"message": " \n", "exitCode": 3}), Some(3), None),
    ] {
        let expected = Report { exit_code, failure: line.map(str::to_owned) };
        assert_eq!(Report::of(&failure, &json!({"failure": "of the result"})), expected, "{failure}");
    }
}

#[test]
fn ended_task_is_described_as_rest_of_sentence() {
    for (state, reason, words) in [
        (RunState::Failed, Some(ReasonResolved::Failed), "failed"),
        (RunState::Completed, Some(ReasonResolved::Completed), "was completed"),
        (RunState::Exception, Some(ReasonResolved::Canceled), "was cancelled"),
        (RunState::Exception, Some(ReasonResolved::DeadlineExceeded), "missed its deadline"),
        (RunState::Exception, Some(ReasonResolved::ClaimExpired), "ended as exception (claim-expired)"),
        (RunState::Exception, None, "ended as exception"),
        (RunState::Running, None, "has not ended"),
    ] {
        assert_eq!(ended(state, reason), words);
    }
}

#[test]
fn spans_are_shown_in_their_two_largest_units() {
    for (seconds, text) in [
        (0, "0 s"),
        (59, "59 s"),
        (60, "1 m"),
        (200, "3 m 20 s"),
        (3_600, "1 h"),
        (3_725, "1 h 2 m"),
        (86_400, "1 d"),
        (100_000, "1 d 3 h"),
        (-200, "3 m 20 s"),
    ] {
        assert_eq!(span(TimeDelta::seconds(seconds)), text);
    }
}
