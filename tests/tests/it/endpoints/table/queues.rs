//! Queues: counts, lists, signed URLs.

use serde_json::{Value, json};
use tenure_api::errors::ErrorCode::{InputValidationError, RequestConflict};

use crate::endpoints::row::{OperationRows, State, operation, refused, succeeds};

pub fn entries() -> Vec<OperationRows> {
    let empty = |name| {
        let nothing = succeeds("a queue that was never used").gives("/tasks", json!([]));
        let token = succeeds("a token that is none begins at the start").query("continuationToken=*");
        operation(name, State::Nothing).row(nothing).row(token)
    };
    let claimed = OperationRows { usual: operation("", State::Claimed).usual, ..empty("listClaimedTasks") };
    let pending = OperationRows { usual: operation("", State::Pending).usual, ..empty("listPendingTasks") };
    let many = json!({"taskQueueIds": vec!["endpoints/x"; 1_001]});
    vec![
        operation("pendingTasks", State::Pending)
            .gives("/pendingTasks", 1)
            .gives("/taskQueueId", "<taskQueueId>")
            .gives("/claimedTasks", Value::Null)
            .row(succeeds("a queue that was never used").gives("/pendingTasks", 0)),
        operation("taskQueueCounts", State::Claimed)
            .gives("/pendingTasks", 0)
            .gives("/claimedTasks", 1)
            .gives("/workerType", "<workerType>")
            .row(succeeds("a queue that was never used").gives("/claimedTasks", 0)),
        operation("taskQueueCountsBatch", State::Pending)
            .takes(json!({"taskQueueIds": ["<taskQueueId>", "endpoints/none", "<taskQueueId>"]}))
            .gives("/taskQueueCounts/0", json!({"taskQueueId": "endpoints/none", "pendingTasks": 0, "claimedTasks": 0}))
            .gives("/taskQueueCounts/1", json!({"taskQueueId": "<taskQueueId>", "pendingTasks": 1, "claimedTasks": 0}))
            .gives("/taskQueueCounts/2", Value::Null)
            .row(succeeds("no queues").body(json!({"taskQueueIds": []})).gives("/taskQueueCounts", json!([])))
            .row(refused(InputValidationError, "1,001 queues").body(many))
            .row(refused(InputValidationError, "a bad queue").body(json!({"taskQueueIds": ["noslash"]})))
            .row(refused(InputValidationError, "no field").body(json!({}))),
        pending
            .gives("/tasks/0/taskId", "<taskId>")
            .gives("/tasks/0/runId", 0)
            .gives("/tasks/0/task/taskQueueId", "<taskQueueId>")
            .gives("/tasks/1", Value::Null)
            .gives("/continuationToken", Value::Null)
            .row(succeeds("nothing waits").on(State::Claimed).gives("/tasks", json!([]))),
        claimed
            .gives("/tasks/0/taskId", "<taskId>")
            .gives("/tasks/0/runId", 0)
            .gives("/tasks/0/workerGroup", "group")
            .gives("/tasks/0/workerId", "worker")
            .gives("/tasks/0/task/taskQueueId", "<taskQueueId>")
            .gives("/tasks/1", Value::Null)
            .row(succeeds("nothing is claimed").on(State::Pending).gives("/tasks", json!([]))),
        operation("pollTaskUrls", State::Nothing)
            .gives("/queues/7", Value::Null)
            .row(refused(RequestConflict, "polls find nothing in a queue with limits").on(State::Limited)),
    ]
}
