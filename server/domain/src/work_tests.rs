use chrono::{DateTime, Utc};
use serde_json::json;
use tenure_api::states::{Priority, ReasonCreated, ReasonResolved, RunState};

use super::*;
use crate::task::{EndedRun, OpenRun};

const NOW: DateTime<Utc> = DateTime::from_timestamp(1_800_000_000, 0).unwrap();
const TASK: &str = "fN1SbArXTPSVFNUvaOlinQ";

fn run(number: u16) -> RunId {
    RunId::new(number).unwrap()
}

fn holder(queue: &str, group: &str, id: &str) -> Holder {
    Holder { queue: queue.parse().unwrap(), group: group.into(), id: id.into() }
}

fn open(number: u16) -> OpenRun {
    OpenRun { run: run(number), reason: ReasonCreated::Scheduled, scheduled: DateTime::UNIX_EPOCH }
}

fn tenancy(group: &str, id: &str) -> Tenancy {
    let start: DateTime<Utc> = DateTime::UNIX_EPOCH;
    Tenancy { worker_group: group.into(), worker_id: id.into(), started: start, taken_until: start }
}

fn ended(number: u16, tenancy: Option<Tenancy>) -> EndedRun {
    EndedRun {
        run: open(number),
        state: RunState::Exception,
        reason: ReasonResolved::ClaimExpired,
        ended_by: None,
        resolved: DateTime::UNIX_EPOCH,
        tenancy,
    }
}

fn task(last: Last, ended: Vec<EndedRun>) -> Task {
    let id: TaskId = TASK.parse().unwrap();
    Task {
        id,
        seq: 1,
        queue: "acme/linux".parse().unwrap(),
        scheduler: "-".into(),
        project: "none".into(),
        group: id,
        priority: Priority::Lowest,
        deadline: DateTime::UNIX_EPOCH,
        expires: DateTime::UNIX_EPOCH,
        retries_left: 1,
        last,
        ended,
    }
}

#[test]
fn only_claiming_worker_may_report_run() {
    let mine = holder("acme/linux", "g", "w");
    let others = [holder("acme/mac", "g", "w"), holder("acme/linux", "h", "w"), holder("acme/linux", "g", "v")];
    let before = || vec![ended(0, Some(tenancy("g", "w")))];
    for (name, task, named) in [
        ("running", task(Last::Running(open(0), tenancy("g", "w")), Vec::new()), run(0)),
        ("ended, then pending", task(Last::Pending(open(1)), before()), run(0)),
        ("ended, then with another worker", task(Last::Running(open(1), tenancy("g", "v")), before()), run(0)),
        ("ended last", task(Last::Ended, before()), run(0)),
    ] {
        assert!(mine.may_report(&task, named), "{name}");
        for other in &others {
            assert!(!other.may_report(&task, named), "{name}: {other:?}");
        }
    }
    let since = task(Last::Running(open(1), tenancy("g", "v")), before());
    assert!(!mine.may_report(&since, run(1)));
    assert!(others[2].may_report(&since, run(1)));
}

#[test]
fn unclaimed_run_in_own_queue_is_left_to_state_rules() {
    let (mine, elsewhere) = (holder("acme/linux", "g", "w"), holder("acme/mac", "g", "w"));
    for (name, task, named) in [
        ("unscheduled", task(Last::Unscheduled, Vec::new()), run(0)),
        ("pending", task(Last::Pending(open(0)), Vec::new()), run(0)),
        ("cancelled before a claim", task(Last::Ended, vec![ended(0, None)]), run(0)),
        ("no such run", task(Last::Running(open(0), tenancy("h", "v")), Vec::new()), run(1)),
    ] {
        assert!(mine.may_report(&task, named), "{name}");
        assert!(!elsewhere.may_report(&task, named), "{name}");
    }
}

fn request(fields: &serde_json::Value) -> WorkRequest {
    let mut body = json!({"taskQueueId": "acme/linux", "workerGroup": "g", "workerId": "w"});
    for (name, value) in fields.as_object().unwrap() {
        body[name] = value.clone();
    }
    serde_json::from_value(body).unwrap()
}

fn result(run: u16, outcome: &str, reason: Option<&str>) -> serde_json::Value {
    let mut result = json!({"taskId": TASK, "runId": run, "outcome": outcome});
    if let Some(reason) = reason {
        result["reason"] = reason.into();
    }
    result
}

fn with(result: &serde_json::Value, field: &str, value: serde_json::Value) -> serde_json::Value {
    let mut result = result.clone();
    result[field] = value;
    json!({"results": [result]})
}

#[test]
fn fields_of_outcome_are_read_as_in_report() {
    let read = |result: &serde_json::Value, field, value| {
        let reported = results(&request(&with(result, field, value)), NOW).unwrap().remove(0).unwrap();
        (reported.result.map(|result| result.text().to_owned()), reported.start)
    };
    let (completed, released) = (result(0, "completed", None), result(0, "released", None));
    assert_eq!(read(&completed, "result", json!({"a": [1]})), (Some(r#"{"a":[1]}"#.to_owned()), None));
    let later = result(0, "exception", Some("intermittent-task"));
    let after = |seconds| (None, Some(Start::After(chrono::TimeDelta::seconds(seconds))));
    assert_eq!(read(&later, "retryAfter", json!(9)), after(9));
    assert_eq!(read(&released, "delay", json!(7)), after(7));
    let date = DateTime::UNIX_EPOCH;
    assert_eq!(read(&released, "notBefore", json!("1970-01-01T00:00:00Z")), (None, Some(Start::At(date))));
}

#[test]
fn failure_and_retry_are_read_with_their_outcomes() {
    let sent = json!({"message": "exit code 7", "exitCode": 7});
    for outcome in [result(0, "failed", None), result(0, "exception", Some("malformed-payload"))] {
        let reported = results(&request(&with(&outcome, "failure", sent.clone())), NOW).unwrap().remove(0).unwrap();
        assert_eq!(reported.failure.unwrap().text(), r#"{"message":"exit code 7","exitCode":7}"#);
    }
    for (retry, report) in [(true, Report::Failed), (false, Report::FailedForGood)] {
        let failed = with(&result(0, "failed", None), "retry", json!(retry));
        let reported = results(&request(&failed), NOW).unwrap().remove(0).unwrap();
        assert_eq!(reported.ending, Ending::Reported(report));
    }
}

#[test]
fn outcome_maps_to_report_of_same_name() {
    let all = request(&json!({"results": [
        result(0, "completed", None),
        result(1, "failed", None),
        result(2, "exception", Some("intermittent-task")),
        result(3, "exception", Some("worker-shutdown")),
        result(4, "released", None),
    ]}));
    let reports: Vec<Ending> = results(&all, NOW).unwrap().into_iter().map(|result| result.unwrap().ending).collect();
    let exception = |reason| Ending::Reported(Report::Exception(reason));
    assert_eq!(
        reports,
        [
            Ending::Reported(Report::Completed),
            Ending::Reported(Report::Failed),
            exception(ExceptionReason::IntermittentTask),
            exception(ExceptionReason::WorkerShutdown),
            Ending::Released,
        ]
    );
    let most: Vec<_> = (0..100).map(|run| result(run, "failed", None)).collect();
    assert_eq!(results(&request(&json!({"results": most, "claim": 100, "wait": 20})), NOW).unwrap().len(), RESULTS_MAX);
}

const FREE: &str = "`claim` must be 0 with `results[0].outcome` `released` without a delay: the run keeps its place, and may be \
                    claimed again at once";

#[test]
fn invalid_field_is_refused_by_name() {
    let schema = |text: &str| Unacceptable::Schema(text.into());
    let rule = |text: &str| Unacceptable::Rule(text.into());
    let too_many: Vec<_> = (0..101).map(|run| result(run, "failed", None)).collect();
    let (fine, shutdown) = (result(0, "failed", None), result(1, "exception", Some("worker-shutdown")));
    for (fields, refusal) in [
        (json!({"claim": 101}), schema("`claim` must be from 0 to 100")),
        (json!({"wait": 21}), schema("`wait` must be from 0 to 20 seconds")),
        (json!({"results": too_many}), schema("`results` must have at most 100 entries")),
        (
            json!({"results": [fine, result(1, "exception", None)]}),
            rule("`results[1].reason` must be there with the outcome `exception`"),
        ),
        (
            json!({"results": [result(0, "completed", Some("internal-error"))]}),
            rule("`results[0].reason` must be absent: only the outcome `exception` has one"),
        ),
        (
            json!({"results": [fine, shutdown, result(0, "completed", None)]}),
            rule("`results[2]`: run 0 of task fN1SbArXTPSVFNUvaOlinQ is named twice"),
        ),
        (
            json!({"results": [fine, shutdown], "claim": 1}),
            rule(
                "`claim` must be 0 with `results[1].reason` `worker-shutdown`: a worker that shuts down takes no tasks",
            ),
        ),
        (json!({"results": [result(0, "released", None)], "claim": 1}), rule(FREE)),
        (
            json!({"results": [with(&result(0, "released", None), "delay", json!(0))["results"][0]], "claim": 1}),
            rule(FREE),
        ),
        (
            json!({"results": [with(&result(0, "released", None), "notBefore", json!("2000-01-01T00:00:00Z"))["results"][0]], "claim": 1}),
            rule(FREE),
        ),
        (
            with(&result(0, "released", None), "result", json!(1)),
            rule("`results[0].result` must be absent: only the outcomes `completed` and `failed` have one"),
        ),
        (
            with(&result(0, "completed", None), "failure", json!({"message": "m"})),
            rule("`results[0].failure` must be absent: only the outcomes `failed` and `exception` have one"),
        ),
        (
            with(&result(0, "released", None), "failure", json!({"message": "m"})),
            rule("`results[0].failure` must be absent: only the outcomes `failed` and `exception` have one"),
        ),
        (
            with(&result(0, "completed", None), "retry", json!(true)),
            rule("`results[0].retry` must be absent: only the outcome `failed` has one"),
        ),
        (
            with(&result(0, "exception", Some("internal-error")), "retry", json!(false)),
            rule("`results[0].retry` must be absent: only the outcome `failed` has one"),
        ),
        (
            with(&result(0, "failed", None), "retryAfter", json!(1)),
            rule("`results[0].retryAfter` must be absent: only the outcome `exception` has one"),
        ),
        (
            with(&result(0, "failed", None), "delay", json!(1)),
            rule("`results[0].delay` must be absent: only the outcome `released` has one"),
        ),
    ] {
        assert_eq!(results(&request(&fields), NOW), Err(refusal), "{fields}");
    }
}

#[test]
fn value_beyond_limit_affects_only_its_result() {
    let rule = |text: &str| Unacceptable::Rule(text.into());
    for (fields, refusal) in [
        (
            with(&result(0, "exception", Some("internal-error")), "retryAfter", json!(1)),
            rule(
                "`results[0]`: `retryAfter` is only for the reason intermittent-task, not for internal-error: leave it out",
            ),
        ),
        (
            with(&result(0, "released", None), "delay", json!(-1)),
            rule("`results[0]`: `delay` must be from 0 to 31622400 seconds"),
        ),
        (
            with(&result(0, "failed", None), "failure", json!({"message": ""})),
            rule("`results[0]`: `failure.message` must have from 1 to 4096 bytes; it has 0"),
        ),
        (
            with(&result(0, "completed", None), "result", json!("x".repeat(65_535))),
            rule(
                "`results[0]`: `result` must have at most 65536 bytes as compact JSON; it has 65537: make an artifact of it",
            ),
        ),
    ] {
        let mut both = request(&fields);
        both.results.push(serde_json::from_value(result(1, "completed", None)).unwrap());
        let judged = results(&both, NOW).unwrap();
        assert_eq!(judged[0], Err(refusal), "{fields}");
        assert_eq!(judged[1].as_ref().unwrap().run, run(1));
    }
}
