//! Records of queues, provisioners and workers, and quarantine.

use serde_json::{Value, json};
use tenure_api::errors::ErrorCode::{InputValidationError, InvalidRequestArguments, ResourceNotFound};

use crate::endpoints::row::{OperationRows, State, operation, refused, succeeds};

pub fn entries() -> Vec<OperationRows> {
    [queues(), workers()].concat()
}

fn queues() -> Vec<OperationRows> {
    let unseen = || refused(ResourceNotFound, "a queue that no worker has asked").on(State::Pending);
    let unseen_provisioner = "a provisioner whose queues no worker has asked";
    let page = || succeeds("a page").on(State::Claimed).query("limit=1");
    vec![
        operation("listTaskQueues", State::Claimed)
            .gives("/taskQueues/0/stability", "experimental")
            .row(page().gives("/taskQueues/1", Value::Null)),
        operation("getTaskQueue", State::Claimed)
            .gives("/taskQueueId", "<taskQueueId>")
            .gives("/stability", "experimental")
            .gives("/description", "")
            .row(unseen()),
        operation("listProvisioners", State::Claimed)
            .gives("/provisioners/0/stability", "experimental")
            .row(page().gives("/provisioners/1", Value::Null)),
        operation("getProvisioner", State::Claimed)
            .gives("/provisionerId", "<provisionerId>")
            .gives("/stability", "experimental")
            .row(refused(ResourceNotFound, unseen_provisioner).with("provisionerId", "nobody")),
        operation("listWorkerTypes", State::Claimed)
            .gives("/workerTypes/0/provisionerId", "<provisionerId>")
            .row(page().gives("/workerTypes/1", Value::Null))
            .row(succeeds(unseen_provisioner).with("provisionerId", "nobody").gives("/workerTypes", json!([]))),
        operation("getWorkerType", State::Claimed)
            .gives("/taskQueueId", "<taskQueueId>")
            .gives("/provisionerId", "<provisionerId>")
            .gives("/workerType", "<workerType>")
            .row(unseen()),
    ]
}

fn workers() -> Vec<OperationRows> {
    let run = json!({"taskId": "<taskId>", "runId": 0});
    let listed = |case, query| succeeds(case).on(State::Claimed).query(query);
    let of_one = |name| {
        operation(name, State::Claimed)
            .gives("/taskQueueId", "<taskQueueId>")
            .gives("/workerGroup", "group")
            .gives("/workerId", "worker")
            .gives("/recentTasks", json!([run]))
            .row(refused(ResourceNotFound, "there is no such worker"))
    };
    let long = json!({"quarantineUntil": "<expires>", "quarantineInfo": "x".repeat(4_001)});
    vec![
        operation("listWorkers", State::Claimed)
            .gives("/workers/0/workerGroup", "group")
            .gives("/workers/0/workerId", "worker")
            .gives("/workers/0/latestTask", run.clone())
            .gives("/workers/0/quarantineUntil", Value::Null)
            .gives("/workers/1", Value::Null)
            .row(listed("those that are quarantined", "quarantined=true").gives("/workers", json!([])))
            .row(listed("those that are not", "quarantined=false").gives("/workers/0/workerId", "worker"))
            .row(succeeds("a queue that was never used").gives("/workers", json!([])))
            .row(refused(InvalidRequestArguments, "`quarantined=maybe`").query("quarantined=maybe")),
        of_one("getWorker").gives("/quarantineUntil", Value::Null).gives("/quarantineDetails", json!([])),
        of_one("quarantineWorker")
            .takes(json!({"quarantineUntil": "<expires>", "quarantineInfo": "its disk is full"}))
            .gives("/quarantineUntil", "<expires>")
            .gives("/quarantineDetails/0/quarantineInfo", "its disk is full")
            .row(
                succeeds("a date in the past, which lifts it, and no reason")
                    .on(State::Claimed)
                    .body(json!({"quarantineUntil": "<past>"}))
                    .gives("/quarantineUntil", "<past>")
                    .gives("/quarantineDetails/0/quarantineInfo", "[unspecified]"),
            )
            .row(refused(InputValidationError, "no date").on(State::Claimed).body(json!({})))
            .row(refused(InputValidationError, "a reason over 4,000 characters").on(State::Claimed).body(long)),
        operation("declareWorker", State::Nothing)
            .takes(json!({"expires": "<expires>"}))
            .gives("/taskQueueId", "<taskQueueId>")
            .gives("/workerId", "worker")
            .gives("/expires", "<expires>")
            .gives("/recentTasks", json!([]))
            .row(succeeds("a worker that has claimed").on(State::Claimed).gives("/recentTasks", json!([run])))
            .row(refused(InputValidationError, "no date").body(json!({}))),
    ]
}
