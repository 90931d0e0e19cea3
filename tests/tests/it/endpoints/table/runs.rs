//! Runs: claiming, renewing, reporting.

use serde_json::{Value, json};
use tenure_api::errors::ErrorCode::{
    InputError, InputValidationError, RequestConflict, ResourceNotFound, SessionEnded, StalePartition,
};

use crate::endpoints::row::{OperationRows, State, operation, refused, succeeds, with};

pub fn entries() -> Vec<OperationRows> {
    [claiming(), reporting(), vec![progressing(), commanding()]].concat()
}

fn in_session(body: Value) -> Value {
    with(body, json!({"sessionId": "<sessionId>"}))
}

fn claiming() -> Vec<OperationRows> {
    let worker = json!({"workerGroup": "group", "workerId": "worker"});
    let other = json!({"workerGroup": "group", "workerId": "other"});
    let asking = |tasks: u32| json!({"workerGroup": "group", "workerId": "worker", "tasks": tasks});
    vec![
        operation("claimWork", State::Pending)
            .takes(asking(32))
            .gives("/tasks/0/status/taskId", "<taskId>")
            .gives("/tasks/0/runId", 0)
            .gives("/tasks/0/workerGroup", "group")
            .gives("/tasks/0/task/taskQueueId", "<taskQueueId>")
            .gives("/tasks/1", serde_json::Value::Null)
            .row(succeeds("there is nothing to do").gives("/tasks", json!([])))
            .row(
                succeeds("another spelling of the media type")
                    .on(State::Pending)
                    .bytes(
                        "Application/JSON; charset=utf-8",
                        br#"{"workerGroup":"group","workerId":"worker","tasks":1}"#,
                    )
                    .gives("/tasks/0/status/taskId", "<taskId>"),
            )
            .row(refused(InputValidationError, "no tasks").body(asking(0)))
            .row(refused(InputValidationError, "33 tasks").body(asking(33)))
            .row(refused(InputValidationError, "no worker").body(json!({"tasks": 1})))
            .row(
                succeeds("with its session")
                    .on(State::Session)
                    .body(in_session(asking(1)))
                    .gives("/tasks/0/status/taskId", "<taskId>"),
            )
            .row(refused(InputValidationError, "a bad session").body(with(asking(1), json!({"sessionId": "x"}))))
            .elsewhere(StalePartition, "member_with_older_map_claims_nothing")
            .row(refused(ResourceNotFound, "a session that does not exist").body(in_session(asking(1))))
            .row(
                refused(InputError, "the session of another worker").on(State::Session).body(in_session(other.clone())),
            )
            .row(refused(SessionEnded, "the session has ended").on(State::SessionEnded).body(in_session(asking(1)))),
        operation("claimTask", State::Pending)
            .takes(worker.clone())
            .gives("/status/state", "running")
            .gives("/workerId", "worker")
            .row(succeeds("the same worker again").on(State::Claimed).gives("/runId", 0))
            .row(refused(ResourceNotFound, "the task does not exist"))
            .row(refused(ResourceNotFound, "the run does not exist").on(State::Pending).with("runId", "1"))
            .row(refused(RequestConflict, "another worker has it").on(State::Claimed).body(other.clone()))
            .row(refused(RequestConflict, "the run has ended").on(State::Completed))
            .row(refused(RequestConflict, "the deadline has passed").on(State::Overdue))
            .row(
                succeeds("with its session")
                    .on(State::Session)
                    .body(in_session(worker.clone()))
                    .gives("/status/state", "running"),
            )
            .row(refused(InputValidationError, "a bad session").body(with(worker.clone(), json!({"sessionId": 1}))))
            .row(
                refused(ResourceNotFound, "a session that does not exist")
                    .on(State::Pending)
                    .body(in_session(worker.clone())),
            )
            .row(refused(InputError, "the session of another worker").on(State::Session).body(in_session(other)))
            .row(refused(SessionEnded, "the session has ended").on(State::SessionEnded).body(in_session(worker))),
        operation("reclaimTask", State::Claimed)
            .gives("/status/state", "running")
            .gives("/task", serde_json::Value::Null)
            .row(refused(ResourceNotFound, "the task does not exist"))
            .row(refused(ResourceNotFound, "the run does not exist").on(State::Claimed).with("runId", "1"))
            .row(refused(RequestConflict, "the run is pending").on(State::Pending))
            .row(refused(RequestConflict, "the run has ended").on(State::Completed))
            .row(refused(RequestConflict, "the deadline has passed").on(State::Overdue)),
    ]
}

fn progressing() -> OperationRows {
    let entry = operation("putCheckpoint", State::Claimed)
        .takes(json!({"checkpoint": {"done": 3, "of": 12}}))
        .row(succeeds("a null").on(State::Claimed).body(json!({"checkpoint": null})))
        .row(
            succeeds("a command that is not there any more")
                .on(State::Claimed)
                .body(json!({"checkpoint": 1, "commandId": 1})),
        )
        .row(refused(ResourceNotFound, "the task does not exist"))
        .row(refused(ResourceNotFound, "the run does not exist").on(State::Claimed).with("runId", "1"))
        .row(refused(RequestConflict, "the run is pending").on(State::Pending))
        .row(refused(RequestConflict, "the run has ended").on(State::Completed));
    let schema = [
        ("no checkpoint", json!({})),
        ("the id of a command as text", json!({"checkpoint": 1, "commandId": "1"})),
        ("an unknown field", json!({"checkpoint": 1, "unheard": 1})),
    ];
    let rules = [
        ("a checkpoint that is too large", json!({"checkpoint": "x".repeat(65_535)})),
        ("an id that is none of a command", json!({"checkpoint": 1, "commandId": 0})),
    ];
    let of_schema = schema.map(|(case, body)| refused(InputValidationError, case).on(State::Claimed).body(body));
    let of_rules = rules.map(|(case, body)| refused(InputError, case).on(State::Claimed).body(body));
    of_schema.into_iter().chain(of_rules).fold(entry, OperationRows::row)
}

fn commanding() -> OperationRows {
    let entry = operation("putTaskCommand", State::Claimed)
        .takes(json!({"command": "pause"}))
        .gives("/taskId", "<taskId>")
        .gives("/command", "pause")
        .row(succeeds("a task that waits for a worker").on(State::Pending).gives("/command", "pause"))
        .row(succeeds("a task that waits for others").on(State::Unscheduled).gives("/command", "pause"))
        .row(
            succeeds("`sleep`")
                .on(State::Claimed)
                .body(json!({"command": "sleep", "until": "2030-01-01T00:00:00.000Z"}))
                .gives("/until", "2030-01-01T00:00:00.000Z"),
        )
        .row(refused(ResourceNotFound, "the task does not exist"))
        .row(refused(RequestConflict, "the task is resolved").on(State::Completed));
    let entry = ["run", "kill", "error", "complete", "checkpoint", "release"]
        .map(|word| succeeds(format!("`{word}`")).on(State::Claimed).body(json!({"command": word})))
        .into_iter()
        .fold(entry, OperationRows::row);
    let schema = [
        ("no command", json!({})),
        ("an unknown command", json!({"command": "freeze"})),
        ("a command as a number", json!({"command": 1})),
        ("a date that is none", json!({"command": "sleep", "until": "soon"})),
        ("a null", json!({"command": "run", "until": null})),
    ];
    let rules = [
        ("no end of the sleep", json!({"command": "sleep"})),
        ("an end of what is no sleep", json!({"command": "run", "until": "2030-01-01T00:00:00.000Z"})),
    ];
    let of_schema = schema.map(|(case, body)| refused(InputValidationError, case).on(State::Claimed).body(body));
    let of_rules = rules.map(|(case, body)| refused(InputError, case).on(State::Claimed).body(body));
    of_schema.into_iter().chain(of_rules).fold(entry, OperationRows::row)
}

fn reporting() -> Vec<OperationRows> {
    let report = |name| {
        operation(name, State::Claimed)
            .row(refused(ResourceNotFound, "the task does not exist"))
            .row(refused(ResourceNotFound, "the run does not exist").on(State::Claimed).with("runId", "1"))
            .row(refused(RequestConflict, "the run is pending").on(State::Pending))
            .row(refused(RequestConflict, "the run has ended in another way").on(State::Cancelled))
    };
    let (returning, too_large) = (json!({"result": {"rows": 12}}), json!({"result": "x".repeat(65_535)}));
    let (failing, no_message) = (json!({"failure": {"message": "m"}}), json!({"failure": {"message": ""}}));
    let not_typed = json!({"retry": "no"});
    vec![
        report("reportCompleted")
            .gives("/status/state", "completed")
            .row(succeeds("the same report again").on(State::Completed).gives("/status/state", "completed"))
            .row(
                succeeds("`success` is false, as old workers say")
                    .on(State::Claimed)
                    .body(json!({"success": false}))
                    .gives("/status/state", "failed"),
            )
            .row(
                succeeds("a body of another media type, which is ignored")
                    .on(State::Claimed)
                    .bytes("text/plain", b"success")
                    .gives("/status/state", "completed"),
            )
            .row(
                succeeds("a body that is no JSON, which is ignored")
                    .on(State::Claimed)
                    .bytes("application/json", b"no JSON")
                    .gives("/status/state", "completed"),
            )
            .row(succeeds("a result").on(State::Claimed).body(returning.clone()).gives("/status/state", "completed"))
            .row(refused(InputError, "a result that is too large").on(State::Claimed).body(too_large.clone()))
            .row(
                refused(RequestConflict, "the same report with another result")
                    .on(State::Completed)
                    .body(returning.clone()),
            )
            .row(refused(InputError, "a failure of a completed run").on(State::Claimed).body(failing.clone()))
            .row(refused(InputValidationError, "a `retry` that is a text").on(State::Claimed).body(not_typed.clone())),
        report("reportFailed")
            .gives("/status/state", "failed")
            .row(succeeds("a result").on(State::Claimed).body(returning).gives("/status/state", "failed"))
            .row(refused(InputError, "a result that is too large").on(State::Claimed).body(too_large))
            .row(succeeds("a failure").on(State::Claimed).body(failing).gives("/status/state", "failed"))
            .row(refused(InputError, "a failure without a message").on(State::Claimed).body(no_message))
            .row(refused(InputValidationError, "a `retry` that is a text").on(State::Claimed).body(not_typed))
            .row(refused(RequestConflict, "the run was completed").on(State::Completed)),
        exceptions(report("reportException")),
    ]
}

fn exceptions(entry: OperationRows) -> OperationRows {
    entry
        .takes(json!({"reason": "malformed-payload"}))
        .gives("/status/state", "exception")
        .gives("/status/runs/0/reasonResolved", "malformed-payload")
        .row(
            succeeds("a reason to try again")
                .on(State::Claimed)
                .body(json!({"reason": "worker-shutdown"}))
                .gives("/status/state", "pending")
                .gives("/status/retriesLeft", 4)
                .gives("/status/runs/1/reasonCreated", "retry"),
        )
        .row(
            succeeds("a task that failed by chance")
                .on(State::Claimed)
                .body(json!({"reason": "intermittent-task"}))
                .gives("/status/runs/1/reasonCreated", "task-retry"),
        )
        .row(
            succeeds("a failure")
                .on(State::Claimed)
                .body(json!({"reason": "malformed-payload", "failure": {"message": "m"}})),
        )
        .row(
            refused(InputError, "`retryAfter` with another reason")
                .on(State::Claimed)
                .body(json!({"reason": "internal-error", "retryAfter": 5})),
        )
        .row(refused(InputValidationError, "a reason of the server's").body(json!({"reason": "claim-expired"})))
        .row(refused(RequestConflict, "the run was completed").on(State::Completed))
}
