//! Results and claims in one request.

use serde_json::{Value, json};
use tenure_api::errors::ErrorCode::{InputError, InputValidationError, ResourceNotFound, SessionEnded, StalePartition};

use crate::endpoints::row::{OperationRows, Row, State, of_share, operation, refused, succeeds, with};

pub fn entries() -> Vec<OperationRows> {
    vec![not_working(working())]
}

fn asking(mut fields: Value) -> Value {
    let mut body = json!({"taskQueueId": "<taskQueueId>", "workerGroup": "group", "workerId": "worker"});
    body.as_object_mut().unwrap().append(fields.as_object_mut().unwrap());
    body
}

fn result(mut fields: Value) -> Value {
    let mut result = json!({"taskId": "<taskId>", "runId": 0, "outcome": "completed"});
    result.as_object_mut().unwrap().append(fields.as_object_mut().unwrap());
    result
}

fn reporting(fields: Value) -> Value {
    asking(json!({"results": [result(fields)]}))
}

#[expect(clippy::too_many_lines, reason = "one entry, one row a line")]
fn working() -> OperationRows {
    let done = || reporting(json!({}));
    let item_refused = |code: &'static str, case: &str| -> Row {
        succeeds(case).gives("/results/0/error/code", code).gives("/results/0/status", Value::Null)
    };
    let another = |field: &str, value: &str| {
        let mut body = done();
        body[field] = value.into();
        body
    };
    let retried = json!({"outcome": "exception", "reason": "intermittent-task"});
    operation("work", State::Claimed)
        .takes(done())
        .gives("/results/0/taskId", "<taskId>")
        .gives("/results/0/runId", 0)
        .gives("/results/0/status/state", "completed")
        .gives("/results/0/error", Value::Null)
        .gives("/tasks", json!([]))
        .row(succeeds("neither results nor a claim").body(asking(json!({}))).gives("/results", json!([])))
        .row(
            succeeds("a claim")
                .on(State::Pending)
                .body(asking(json!({"claim": 100, "wait": 20})))
                .gives("/tasks/0/status/taskId", "<taskId>")
                .gives("/tasks/0/workerId", "worker")
                .gives("/tasks/0/task/taskQueueId", "<taskQueueId>")
                .gives("/tasks/1", Value::Null),
        )
        .row(
            refused(InputError, "a share of a queue without a partition group")
                .body(of_share(asking(json!({"claim": 1, "wait": 0})))),
        )
        .elsewhere(StalePartition, "member_with_older_map_claims_nothing")
        .row(succeeds("nothing to claim").body(asking(json!({"claim": 1, "wait": 0}))).gives("/tasks", json!([])))
        .row(
            succeeds("a failure")
                .on(State::Claimed)
                .body(reporting(json!({"outcome": "failed"})))
                .gives("/results/0/status/state", "failed"),
        )
        .row(
            succeeds("a failure")
                .on(State::Claimed)
                .body(reporting(json!({"outcome": "failed", "failure": {"message": "exit code 7", "exitCode": 7}})))
                .gives("/results/0/status/state", "failed"),
        )
        .row(
            succeeds("a reason to try again")
                .on(State::Claimed)
                .body(reporting(retried))
                .gives("/results/0/status/state", "pending")
                .gives("/results/0/status/retriesLeft", 4),
        )
        .row(
            succeeds("a release")
                .on(State::Claimed)
                .body(reporting(json!({"outcome": "released"})))
                .gives("/results/0/status/state", "pending")
                .gives("/results/0/status/retriesLeft", 5),
        )
        .row(succeeds("the same result again").on(State::Completed).gives("/results/0/status/state", "completed"))
        .row(item_refused("ResourceNotFound", "a task that does not exist"))
        .row(
            item_refused("ResourceNotFound", "a run that does not exist")
                .on(State::Claimed)
                .body(reporting(json!({"runId": 1}))),
        )
        .row(item_refused("RequestConflict", "a run that is pending").on(State::Pending))
        .row(
            item_refused("InputError", "a result that is too large")
                .on(State::Claimed)
                .body(reporting(json!({"result": "x".repeat(65_535)}))),
        )
        .row(
            item_refused("InputError", "a failure without a message")
                .on(State::Claimed)
                .body(reporting(json!({"outcome": "failed", "failure": {"message": ""}}))),
        )
        .row(item_refused("RequestConflict", "a run that has ended in another way").on(State::Cancelled))
        .row(
            item_refused("RequestConflict", "a run that was completed")
                .on(State::Completed)
                .body(reporting(json!({"outcome": "failed"}))),
        )
        .row(
            item_refused("InsufficientScopes", "a run of another worker")
                .on(State::Claimed)
                .body(another("workerId", "other")),
        )
        .row(
            item_refused("InsufficientScopes", "a run of another worker group")
                .on(State::Completed)
                .body(another("workerGroup", "other")),
        )
        .row(
            item_refused("InsufficientScopes", "a run of another queue")
                .on(State::Claimed)
                .body(another("taskQueueId", "endpoints/other")),
        )
}

fn not_working(entry: OperationRows) -> OperationRows {
    let many: Vec<Value> = (0..101).map(|run| result(json!({"runId": run}))).collect();
    let of_schema = [
        ("101 results", asking(json!({"results": many}))),
        ("101 tasks", asking(json!({"claim": 101}))),
        ("21 seconds", asking(json!({"wait": 21}))),
        ("half a second", asking(json!({"wait": 0.5}))),
        ("a number in words", asking(json!({"claim": "1"}))),
        ("results that are no list", asking(json!({"results": {}}))),
        ("a result that is no object", asking(json!({"results": [["<taskId>", 0, "completed"]]}))),
        ("an unknown outcome", reporting(json!({"outcome": "done"}))),
        ("the number of a run as text", reporting(json!({"runId": "0"}))),
        ("run 1,001", reporting(json!({"runId": 1_001}))),
        ("a reason of the server's", reporting(json!({"outcome": "exception", "reason": "claim-expired"}))),
        ("an unknown field of a result", reporting(json!({"priority": "high"}))),
        ("a session that cannot be one", asking(json!({"sessionId": "s"}))),
        ("an unknown field", asking(json!({"unheard": 1}))),
        ("no queue", json!({"workerGroup": "group", "workerId": "worker"})),
        ("no worker", json!({"taskQueueId": "<taskQueueId>", "workerGroup": "group"})),
        ("a queue that cannot be one", json!({"taskQueueId": "p_w", "workerGroup": "group", "workerId": "worker"})),
    ];
    let of_rules = [
        ("an exception without a reason", reporting(json!({"outcome": "exception"}))),
        ("a success with a reason", reporting(json!({"reason": "internal-error"}))),
        ("a success with `retryAfter`", reporting(json!({"retryAfter": 1}))),
        ("a success with a delay", reporting(json!({"delay": 1}))),
        ("one run twice", asking(json!({"results": [result(json!({})), result(json!({"outcome": "failed"}))]}))),
        (
            "a shutdown with a claim",
            asking(json!({
                "results": [result(json!({"outcome": "exception", "reason": "worker-shutdown"}))],
                "claim": 1,
            })),
        ),
    ];
    let rows = of_schema.map(|(case, body)| refused(InputValidationError, case).body(body));
    let rules = of_rules.map(|(case, body)| refused(InputError, case).body(body));
    let session = || asking(json!({"claim": 1, "wait": 0, "sessionId": "<sessionId>"}));
    let of_sessions = [
        refused(ResourceNotFound, "a session that does not exist").body(session()),
        refused(InputError, "the session of another worker")
            .on(State::Session)
            .body(with(session(), json!({"workerId": "other"}))),
        refused(InputError, "the session of another queue")
            .on(State::Session)
            .body(with(session(), json!({"taskQueueId": "endpoints/other"}))),
        refused(SessionEnded, "the session has ended").on(State::SessionEnded).body(session()),
        succeeds("with its session").on(State::Session).body(session()).gives("/tasks/0/status/taskId", "<taskId>"),
    ];
    rows.into_iter().chain(rules).chain(of_sessions).fold(entry, OperationRows::row)
}
