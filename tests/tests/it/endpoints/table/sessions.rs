//! Sessions of workers.

use serde_json::{Value, json};
use tenure_api::errors::ErrorCode::{
    InputError, InputValidationError, InvalidRequestArguments, PolicyMismatch, RequestConflict, ResourceNotFound,
    SessionEnded, SessionExists,
};

use crate::endpoints::row::{OperationRows, Row, State, operation, refused, succeeds, with};

pub fn entries() -> Vec<OperationRows> {
    vec![starting(), reading_the_inbox(), renewing(), ending(), reading(), commanding(), listing()]
}

fn worker() -> Value {
    json!({"taskQueueId": "<taskQueueId>", "workerGroup": "group", "workerId": "worker"})
}

fn of_a_session(entry: OperationRows) -> OperationRows {
    entry.row(refused(ResourceNotFound, "a session that does not exist")).row(
        refused(InvalidRequestArguments, "an id without its hyphens")
            .with("sessionId", "b4cf1f7d1b1c4a8b9d3f5f0f4d6f2a10"),
    )
}

fn refusing(entry: OperationRows, state: State, schema: &[(&str, Value)], rules: &[(&str, Value)]) -> OperationRows {
    let row = |code, (case, body): &(&str, Value)| -> Row { refused(code, *case).on(state).body(body.clone()) };
    let schema = schema.iter().map(|one| row(InputValidationError, one));
    schema.chain(rules.iter().map(|one| row(InputError, one))).fold(entry, OperationRows::row)
}

fn starting() -> OperationRows {
    let but = |field: &str, value: Value| with(worker(), json!({field: value}));
    let entry =
        operation("startSession", State::Nothing)
            .takes(worker())
            .gives("/policyVersion", 0)
            .row(succeeds("all that it takes").body(with(
                worker(),
                json!({"ttl": 15, "weight": 0, "capacity": 0, "takeover": true, "policyVersion": 0}),
            )))
            .row(
                succeeds("the most that it takes")
                    .body(with(worker(), json!({"ttl": 3600, "weight": 65_535, "capacity": 1000}))),
            )
            .row(succeeds("another worker of the queue").on(State::Session).body(but("workerId", "other".into())))
            .row(
                succeeds("the same worker in another queue")
                    .on(State::Session)
                    .body(but("taskQueueId", "other/<workerType>".into())),
            )
            .row(succeeds("after the end of the last one").on(State::SessionEnded))
            .row(refused(SessionExists, "the worker has one").on(State::Session))
            .row(refused(PolicyMismatch, "another version of the policy").body(but("policyVersion", 1.into())));
    let schema = [
        ("no queue", json!({"workerGroup": "group", "workerId": "worker"})),
        ("no group", json!({"taskQueueId": "<taskQueueId>", "workerId": "worker"})),
        ("no worker", json!({"taskQueueId": "<taskQueueId>", "workerGroup": "group"})),
        ("a queue that cannot be one", but("taskQueueId", "p_w".into())),
        ("a group that cannot be one", but("workerGroup", "a b".into())),
        ("a worker that cannot be one", but("workerId", "".into())),
        ("seconds as text", but("ttl", "60".into())),
        ("half a second", but("ttl", 60.5.into())),
        ("a null", but("weight", Value::Null)),
        ("a capacity in words", but("capacity", "many".into())),
        ("a takeover as text", but("takeover", "yes".into())),
        ("a version as text", but("policyVersion", "1".into())),
    ];
    let rules = [
        ("14 seconds", but("ttl", 14.into())),
        ("over an hour", but("ttl", 3_601.into())),
        ("a weight below 0", but("weight", (-1).into())),
        ("a weight of 65,536", but("weight", 65_536.into())),
        ("a capacity below 0", but("capacity", (-1).into())),
        ("a capacity of 1,001", but("capacity", 1_001.into())),
        ("a version below 0", but("policyVersion", (-1).into())),
    ];
    refusing(entry, State::Nothing, &schema, &rules)
}

fn reading_the_inbox() -> OperationRows {
    let wrong = [
        "wait=31",
        "wait=-1",
        "wait=1.5",
        "wait=",
        "wait=1&wait=1",
        "after=-1",
        "after=x",
        "after=9223372036854775808",
    ];
    let entry = of_a_session(operation("sessionInbox", State::Session))
        .query("wait=0")
        .gives("/items", json!([]))
        .gives("/policyVersion", 0)
        .row(succeeds("with what is acknowledged").on(State::Session).query("wait=0&after=9223372036854775807"))
        .row(refused(SessionEnded, "the session has ended").on(State::SessionEnded));
    let rows =
        wrong.map(|query| refused(InvalidRequestArguments, format!("`{query}`")).on(State::Session).query(query));
    rows.into_iter().fold(entry, OperationRows::row)
}

fn renewing() -> OperationRows {
    let entry = of_a_session(operation("renewSession", State::Session))
        .takes(json!({"weight": 65_535, "capacity": 1000, "frozen": true}))
        .row(succeeds("nothing has changed").on(State::Session).body(json!({})))
        .row(refused(SessionEnded, "the session has ended").on(State::SessionEnded));
    let schema = [
        ("a weight as text", json!({"weight": "1"})),
        ("a null", json!({"frozen": null})),
        ("frozen as a number", json!({"frozen": 1})),
        ("another `ttl`", json!({"ttl": 60})),
    ];
    let rules = [
        ("a weight of 65,536", json!({"weight": 65_536})),
        ("a weight below 0", json!({"weight": -1})),
        ("a capacity of 1,001", json!({"capacity": 1_001})),
        ("a capacity below 0", json!({"capacity": -1})),
    ];
    refusing(entry, State::Session, &schema, &rules)
}

fn ending() -> OperationRows {
    of_a_session(operation("endSession", State::Session))
        .gives("/returned", 0)
        .row(succeeds("again").on(State::SessionEnded).gives("/returned", 0))
}

fn reading() -> OperationRows {
    of_a_session(operation("getSession", State::Session))
        .gives("/sessionId", "<sessionId>")
        .gives("/taskQueueId", "<taskQueueId>")
        .gives("/workerGroup", "group")
        .gives("/workerId", "worker")
        .gives("/ttl", 3600)
        .gives("/weight", 1)
        .gives("/capacity", 1)
        .gives("/frozen", false)
        .gives("/running", 0)
        .gives("/ended", Value::Null)
        .row(succeeds("it has ended").on(State::SessionEnded).gives("/endedBy", "closed"))
}

fn commanding() -> OperationRows {
    let entry = of_a_session(operation("commandSession", State::Session))
        .takes(json!({"command": "freeze"}))
        .row(succeeds("a task to stop").on(State::Session).body(json!({"command": "stop-task", "taskId": "<taskId>"})))
        .row(refused(ResourceNotFound, "the session has ended").on(State::SessionEnded))
        .elsewhere(RequestConflict, "a_hundred_commands_wait_for_a_worker_and_no_more");
    let entry = ["unfreeze", "balance", "shutdown"]
        .map(|command| succeeds(format!("`{command}`")).on(State::Session).body(json!({"command": command})))
        .into_iter()
        .fold(entry, OperationRows::row);
    let schema = [
        ("no command", json!({})),
        ("an unknown command", json!({"command": "reboot"})),
        ("a command as a number", json!({"command": 1})),
        ("a task that cannot be one", json!({"command": "stop-task", "taskId": "short"})),
        ("a null", json!({"command": "freeze", "taskId": null})),
    ];
    let rules = [
        ("no task to stop", json!({"command": "stop-task"})),
        ("a task for another command", json!({"command": "freeze", "taskId": "<taskId>"})),
    ];
    refusing(entry, State::Session, &schema, &rules)
}

fn listing() -> OperationRows {
    operation("listQueueWorkers", State::Session)
        .gives("/workers/0/sessionId", "<sessionId>")
        .gives("/workers/0/workerId", "worker")
        .gives("/workers/0/running", 0)
        .gives("/workers/0/assigned", 0)
        .gives("/workers/1", Value::Null)
        .row(succeeds("its only session has ended").on(State::SessionEnded).gives("/workers", json!([])))
        .row(succeeds("a queue that was never used").gives("/workers", json!([])))
}
