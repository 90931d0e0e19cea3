//! What is known of queues, provisioners and workers, described.

use serde_json::{Value, json};
use tenure_api::errors::ErrorCode::ResourceNotFound;
use tenure_api::workers::{DeclareWorkerRequest, QuarantineWorkerRequest};

use super::operation::{self, Operation};
use super::parameters::paged;
use super::sample::{QUEUE, Sample};
use crate::http::api::queue_views::{ProvisionerBody, ProvisionersBody, QueueBody, QueuesBody, TypeBody, TypesBody};
use crate::http::api::workers::{ListBody, WorkerBody};

const DAY: i64 = 24 * 60;
const WORKER: &str = "<provisionerId>/<workerType>/<workerGroup>/<workerId>";
const NO_QUEUE: &str = "no worker has asked the queue lately";

/// Every operation.
pub(super) fn operations(sample: &Sample) -> Vec<Operation> {
    [queues(sample), by_provisioner(sample), workers(sample), changes(sample)].concat()
}

fn operation(name: &'static str, summary: &'static str) -> Operation {
    operation::operation("queue", name, summary)
}

fn times(sample: &Sample) -> Value {
    json!({
        "stability": "experimental",
        "description": "",
        "expires": sample.after(DAY),
        "lastDateActive": sample.after(0),
    })
}

fn joined(parts: impl IntoIterator<Item = Value>) -> Value {
    let fields = parts.into_iter().filter_map(|part| part.as_object().cloned()).flatten();
    Value::Object(fields.collect())
}

fn queues(sample: &Sample) -> Vec<Operation> {
    let queue = joined([json!({"taskQueueId": QUEUE}), times(sample)]);
    vec![
        paged(operation("listTaskQueues", "List the queues that workers ask"))
            .about(
                "A queue is shown from the first time that a worker asks it until a day after the last. Queues that only have \
                 tasks are not among them; `listQueues` has those too.",
            )
            .scopes("queue:list-task-queues")
            .answers::<QueuesBody>("A page, by name; with a token if there are more", &json!({"taskQueues": [queue]})),
        operation("getTaskQueue", "Read when workers asked a queue")
            .scopes("queue:get-task-queue:<taskQueueId>")
            .answers::<QueueBody>("The queue", &queue)
            .refuses(ResourceNotFound, NO_QUEUE),
    ]
}

fn by_provisioner(sample: &Sample) -> Vec<Operation> {
    let halves = json!({"provisionerId": "acme", "workerType": "linux", "taskQueueId": QUEUE});
    let actions = json!({"actions": []});
    let listed = joined([halves, times(sample)]);
    let provisioner = joined([json!({"provisionerId": "acme"}), times(sample), actions.clone()]);
    vec![
        paged(operation("listProvisioners", "List the first halves of the names of queues"))
            .about("Of the queues that workers ask. Taskcluster calls them provisioners.")
            .scopes("queue:list-provisioners")
            .answers::<ProvisionersBody>(
                "A page, by name; with a token if there are more",
                &json!({"provisioners": [provisioner]}),
            ),
        operation("getProvisioner", "Read when workers asked some queue of a provisioner")
            .scopes("queue:get-provisioner:<provisionerId>")
            .answers::<ProvisionerBody>("The provisioner", &provisioner)
            .refuses(ResourceNotFound, "no worker has asked any of its queues lately"),
        paged(operation("listWorkerTypes", "List the queues of a provisioner"))
            .about("Those that workers ask. A provisioner that is not known has none.")
            .scopes("queue:list-worker-types:<provisionerId>")
            .answers::<TypesBody>("A page, by name; with a token if there are more", &json!({"workerTypes": [listed]})),
        operation("getWorkerType", "Read when workers asked a queue, by the halves of its name")
            .scopes("queue:get-worker-type:<provisionerId>/<workerType>")
            .answers::<TypeBody>("The queue", &joined([listed, actions]))
            .refuses(ResourceNotFound, NO_QUEUE),
    ]
}

fn a_worker(sample: &Sample) -> Value {
    json!({
        "provisionerId": "acme",
        "workerType": "linux",
        "taskQueueId": QUEUE,
        "workerGroup": "rack-1",
        "workerId": "worker-1",
        "recentTasks": [{"taskId": sample.task, "runId": 0}],
        "expires": sample.after(DAY),
        "quarantineDetails": [],
        "firstClaim": sample.after(0),
        "lastDateActive": sample.after(1),
        "actions": [],
    })
}

fn workers(sample: &Sample) -> Vec<Operation> {
    let listed = json!({
        "workerGroup": "rack-1",
        "workerId": "worker-1",
        "firstClaim": sample.after(0),
        "lastDateActive": sample.after(1),
        "latestTask": {"taskId": sample.task, "runId": 0},
    });
    vec![
        paged(operation("listWorkers", "List the workers of a queue"))
            .about(
                "A worker is shown from the first time that it asks for work until a day after it was last seen, and for as \
                 long as it is quarantined. One that asks another server is shown here ten seconds later at most. A queue \
                 that is not known has no workers.",
            )
            .scopes("queue:list-workers:<provisionerId>/<workerType>")
            .query(
                "quarantined",
                "`true`: only those that are quarantined; `false`: only the others",
                &json!({"type": "string", "enum": ["true", "false"]}),
                &Value::Null,
            )
            .answers::<ListBody>("A page, by group and id; with a token if there are more", &json!({"workers": [listed]})),
        operation("getWorker", "Read a worker")
            .scopes(format!("queue:get-worker:{WORKER}"))
            .answers::<WorkerBody>("The worker", &a_worker(sample))
            .refuses(ResourceNotFound, "the worker is not known, or has expired"),
    ]
}

fn changes(sample: &Sample) -> Vec<Operation> {
    let mut quarantined = a_worker(sample);
    quarantined["quarantineUntil"] = sample.after(3 * DAY);
    quarantined["quarantineDetails"] = json!([{
        "clientId": "root",
        "updatedAt": sample.after(2),
        "quarantineUntil": sample.after(3 * DAY),
        "quarantineInfo": "its disk is full",
    }]);
    let mut declared = a_worker(sample);
    declared["expires"] = sample.after(30 * DAY);
    vec![
        operation("quarantineWorker", "Give a worker no work until a date")
            .about(
                "It goes on asking, and waits in vain; what it is at it may renew and report. A claimTask of it is refused \
                 with 409. This server gives it no work from the answer on, others half a second later at most. A date in the \
                 past lifts the quarantine. A worker that is quarantined does not expire.",
            )
            .scopes(format!("queue:quarantine-worker:{WORKER}"))
            .takes::<QuarantineWorkerRequest>(&json!({
                "quarantineUntil": sample.after(3 * DAY),
                "quarantineInfo": "its disk is full",
            }))
            .answers::<WorkerBody>("The worker after it", &quarantined)
            .refuses(ResourceNotFound, "the worker is not known, or has expired"),
        operation("declareWorker", "Say that there is a worker")
            .about(
                "It and its queue are shown until `expires`, or longer if they were to be shown longer. There is no need to \
                 declare a worker that asks for work.",
            )
            .scopes(format!("queue:declare-worker:{WORKER}#expires"))
            .takes::<DeclareWorkerRequest>(&json!({"expires": sample.after(30 * DAY)}))
            .answers::<WorkerBody>("The worker after it", &declared),
    ]
}
