//! Tasks: creating, reading, and changing them.

use serde_json::{Value, json};
use tenure_api::errors::ErrorCode::{
    BacklogLimitReached, DuplicateTask, InputError, InputValidationError, InsufficientScopes, MalformedPayload,
    RequestConflict, ResourceNotFound,
};

use crate::endpoints::row::{OperationRows, State, Who, a_task, a_task_with, operation, refused, succeeds};

pub fn entries() -> Vec<OperationRows> {
    [vec![not_creating(creating())], reading(), in_batches(), changing()].concat()
}

fn creating() -> OperationRows {
    let with = a_task_with;
    let mut nowhere = a_task();
    nowhere.as_object_mut().unwrap().remove("taskQueueId");
    let mut in_halves = nowhere;
    in_halves["provisionerId"] = "<provisionerId>".into();
    in_halves["workerType"] = "<workerType>".into();
    operation("createTask", State::Nothing)
        .takes(a_task())
        .gives("/status/state", "pending")
        .gives("/status/taskId", "<taskId>")
        .gives("/status/taskGroupId", "<taskId>")
        .gives("/status/taskQueueId", "<taskQueueId>")
        .gives("/status/schedulerId", "-")
        .gives("/status/projectId", "none")
        .gives("/status/priority", "lowest")
        .gives("/status/retriesLeft", 5)
        .elsewhere(DuplicateTask, "z1_fifty_creates_of_a_name_make_one_task")
        .elsewhere(BacklogLimitReached, "t14_queue_is_never_longer_than_its_limit")
        .gives("/status/runs/0/reasonCreated", "scheduled")
        .row(succeeds("the two halves of the queue's id").body(in_halves).gives("/status/taskQueueId", "<taskQueueId>"))
        .row(
            succeeds("a task that waits")
                .on(State::Required)
                .with("taskId", "<missing>")
                .body(with(json!({"dependencies": ["<required>"]})))
                .gives("/status/state", "unscheduled")
                .gives("/status/runs", json!([])),
        )
        .row(
            succeeds("all dependencies are satisfied")
                .on(State::Completed)
                .with("taskId", "<missing>")
                .body(with(json!({"dependencies": ["<taskId>"]})))
                .gives("/status/state", "pending"),
        )
        .row(succeeds("the same task again").on(State::Pending).gives("/status/state", "pending"))
        .row(
            succeeds("the same task again, when it is resolved")
                .on(State::Completed)
                .gives("/status/state", "completed"),
        )
        .row(
            succeeds("the same task again, when its group is sealed")
                .on(State::Sealed)
                .gives("/status/state", "pending"),
        )
        .row(
            succeeds("the same task again, when its deadline has passed")
                .on(State::Overdue)
                .body(with(json!({"deadline": "<soon>", "expires": "<expires>"})))
                .gives("/status/state", "exception"),
        )
}

fn not_creating(entry: OperationRows) -> OperationRows {
    let with = a_task_with;
    let mut nowhere = a_task();
    nowhere.as_object_mut().unwrap().remove("taskQueueId");
    entry
        .row(refused(InputValidationError, "the priority `normal`").body(with(json!({"priority": "normal"}))))
        .row(refused(InputValidationError, "50 retries").body(with(json!({"retries": 50}))))
        .row(
            refused(InputValidationError, "an unknown option").body(with(json!({"extra": {"tenure": {"unknown": 1}}}))),
        )
        .row(refused(InputError, "an option out of its range").body(with(json!({"extra": {"tenure": {"delay": -1}}}))))
        .row(
            refused(InputError, "a delay beyond the deadline")
                .body(with(json!({"extra": {"tenure": {"delay": 864_000}}}))),
        )
        .row(
            refused(MalformedPayload, "a payload that the worker would take for something else")
                .body(with(json!({"payload": {"env": {"$serde_json::private::Number": "abc"}}}))),
        )
        .row(refused(InputError, "no queue").body(nowhere))
        .row(
            refused(InputError, "two queues")
                .body(with(json!({"provisionerId": "other", "workerType": "<workerType>"}))),
        )
        .row(refused(InputError, "a deadline that has passed").body(with(json!({"deadline": "<past>"}))))
        .row(refused(InputError, "created an hour ago").body(with(json!({"created": "<past>"}))))
        .row(refused(InputError, "expires before the deadline").body(with(json!({"expires": "<soon>"}))))
        .row(refused(InputError, "a scope that ends in `**`").body(with(json!({"scopes": ["a**"]}))))
        .row(
            refused(InsufficientScopes, "dates that contradict each other, from a client without the scopes")
                .by(Who::WithoutScopes)
                .body(with(json!({"expires": "<soon>"}))),
        )
        .row(refused(InputError, "a dependency that does not exist").body(with(json!({"dependencies": ["<missing>"]}))))
        .row(
            refused(InputError, "a dependency that expires before the deadline")
                .on(State::Overdue)
                .with("taskId", "<missing>")
                .body(with(json!({"dependencies": ["<taskId>"], "deadline": "<in4Days>"}))),
        )
        .row(refused(RequestConflict, "another definition").on(State::Pending).body(with(json!({"retries": 4}))))
        .row(
            refused(RequestConflict, "a group of another scheduler")
                .on(State::Pending)
                .with("taskId", "<missing>")
                .body(with(json!({"taskGroupId": "<taskGroupId>", "schedulerId": "other"}))),
        )
        .row(
            refused(RequestConflict, "a sealed group")
                .on(State::Sealed)
                .with("taskId", "<missing>")
                .body(with(json!({"taskGroupId": "<taskGroupId>"}))),
        )
}

fn reading() -> Vec<OperationRows> {
    vec![
        operation("task", State::Pending)
            .gives("/taskQueueId", "<taskQueueId>")
            .gives("/workerType", "<workerType>")
            .gives("/deadline", "<deadline>")
            .gives("/requires", "all-completed")
            .row(refused(ResourceNotFound, "the task does not exist")),
        operation("status", State::Pending)
            .gives("/status/state", "pending")
            .row(succeeds("a task that waits").on(State::Unscheduled).gives("/status/state", "unscheduled"))
            .row(succeeds("a claimed task").on(State::Claimed).gives("/status/runs/0/workerId", "worker"))
            .row(succeeds("a resolved task").on(State::Completed).gives("/status/runs/0/reasonResolved", "completed"))
            .row(succeeds("a cancelled task").on(State::Cancelled).gives("/status/runs/0/reasonResolved", "canceled"))
            .row(
                succeeds("a task past its deadline")
                    .on(State::Overdue)
                    .gives("/status/state", "exception")
                    .gives("/status/runs/0/reasonResolved", "deadline-exceeded"),
            )
            .row(refused(ResourceNotFound, "the task does not exist")),
        operation("listDependentTasks", State::Required)
            .gives("/taskId", "<taskId>")
            .gives("/tasks/0/status/taskId", "<dependent>")
            .gives("/tasks/0/task/dependencies", json!(["<taskId>"]))
            .row(succeeds("no task waits").on(State::Pending).gives("/tasks", json!([])))
            .row(refused(ResourceNotFound, "the task does not exist")),
    ]
}

fn in_batches() -> Vec<OperationRows> {
    let many = json!({"taskIds": vec!["x"; 20_001]});
    let mixed = json!({"taskIds": ["<missing>", "<taskId>", "no slug", "", "<taskId>"]});
    let both = json!({"taskIds": ["<taskId>", "<required>"]});
    let batch = |name, list: &'static str, first: &'static str| {
        operation(name, State::Pending)
            .takes(mixed.clone())
            .gives(first, "<taskId>")
            .row(succeeds("no ids").body(json!({"taskIds": []})).gives(list, json!([])))
            .row(succeeds("no field").body(json!({})).gives(list, json!([])))
            .row(succeeds("nothing that exists").gives(list, json!([])))
            .row(
                succeeds("a page of two")
                    .on(State::Unscheduled)
                    .body(both.clone())
                    .query("limit=1")
                    .gives("/continuationToken", "<first>"),
            )
            .row(
                succeeds("the last page")
                    .on(State::Unscheduled)
                    .body(both.clone())
                    .query("limit=1&continuationToken=<first>")
                    .gives(first, "<second>")
                    .gives("/continuationToken", Value::Null),
            )
            .row(refused(InputValidationError, "20,001 ids").body(many.clone()))
            .row(refused(InputValidationError, "an id that is no text").body(json!({"taskIds": [1]})))
            .row(refused(InputValidationError, "`null`").body(json!({"taskIds": null})))
    };
    vec![batch("tasks", "/tasks", "/tasks/0/taskId"), batch("statuses", "/statuses", "/statuses/0/taskId")]
}

fn changing() -> Vec<OperationRows> {
    let change = |name| {
        operation(name, State::Unscheduled)
            .row(refused(ResourceNotFound, "the task does not exist"))
            .row(refused(RequestConflict, "the deadline has passed").on(State::Overdue))
    };
    vec![
        change("scheduleTask")
            .gives("/status/state", "pending")
            .row(succeeds("a pending task").on(State::Pending).gives("/status/state", "pending"))
            .row(succeeds("a claimed task").on(State::Claimed).gives("/status/state", "running"))
            .row(succeeds("a resolved task").on(State::Completed).gives("/status/state", "completed")),
        change("rerunTask")
            .gives("/status/state", "pending")
            .elsewhere(DuplicateTask, "z3_and_z12_name_is_free_after_the_end_and_events_tell_tasks_apart")
            .row(succeeds("a claimed task").on(State::Claimed).gives("/status/state", "running"))
            .row(
                succeeds("a resolved task")
                    .on(State::Completed)
                    .gives("/status/state", "pending")
                    .gives("/status/runs/1/reasonCreated", "rerun"),
            ),
        change("cancelTask")
            .gives("/status/state", "exception")
            .gives("/status/runs/0/reasonCreated", "exception")
            .gives("/status/runs/0/reasonResolved", "canceled")
            .row(succeeds("a claimed task").on(State::Claimed).gives("/status/runs/0/reasonResolved", "canceled"))
            .row(succeeds("a resolved task").on(State::Completed).gives("/status/state", "completed"))
            .row(succeeds("a cancelled task").on(State::Cancelled).gives("/status/state", "exception")),
        operation("changeTaskPriority", State::Pending)
            .takes(json!({"newPriority": "high"}))
            .gives("/status/priority", "high")
            .row(succeeds("a claimed task").on(State::Claimed).gives("/status/priority", "high"))
            .row(refused(InputValidationError, "the priority `normal`").body(json!({"newPriority": "normal"})))
            .row(refused(ResourceNotFound, "the task does not exist"))
            .row(refused(RequestConflict, "the task is resolved").on(State::Completed))
            .row(refused(RequestConflict, "the deadline has passed").on(State::Overdue)),
    ]
}
