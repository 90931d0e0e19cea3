//! Groups of tasks.

use serde_json::json;
use tenure_api::errors::ErrorCode::{InputValidationError, RequestConflict, ResourceNotFound};

use crate::endpoints::row::{OperationRows, State, operation, refused, succeeds};

pub fn entries() -> Vec<OperationRows> {
    let on_group = |name, state| operation(name, state).row(refused(ResourceNotFound, "the group does not exist"));
    vec![
        on_group("getTaskGroup", State::Pending)
            .gives("/schedulerId", "-")
            .gives("/sealed", serde_json::Value::Null)
            .row(succeeds("a sealed group").on(State::Sealed).gives("/taskGroupId", "<taskGroupId>")),
        on_group("listTaskGroup", State::Pending)
            .gives("/tasks/0/status/taskId", "<taskId>")
            .gives("/tasks/0/task/taskGroupId", "<taskGroupId>")
            .gives("/continuationToken", serde_json::Value::Null)
            .row(
                succeeds("after the last task")
                    .on(State::Pending)
                    .query("limit=9999&continuationToken=<taskId>")
                    .gives("/tasks", json!([])),
            ),
        on_group("sealTaskGroup", State::Pending)
            .gives("/taskGroupId", "<taskGroupId>")
            .row(succeeds("a sealed group").on(State::Sealed).gives("/schedulerId", "-")),
        on_group("cancelTaskGroup", State::Sealed)
            .gives("/taskGroupSize", 1)
            .gives("/cancelledCount", 1)
            .gives("/taskIds", json!(["<taskId>"]))
            .row(refused(RequestConflict, "the group is not sealed").on(State::Pending)),
        on_group("changeTaskGroupPriority", State::Pending)
            .takes(json!({"newPriority": "high"}))
            .gives("/tasksAffected", 1)
            .gives("/taskIds", json!(["<taskId>"]))
            .row(
                succeeds("they have this priority already")
                    .on(State::Pending)
                    .body(json!({"newPriority": "lowest"}))
                    .gives("/tasksAffected", 0),
            )
            .row(refused(InputValidationError, "the priority `normal`").body(json!({"newPriority": "normal"}))),
    ]
}
