//! Many tasks in one answer: those that the caller names, and those of a queue, described.

use serde_json::{Value, json};
use tenure_api::bodies::{TASK_IDS_MAX, TaskIdsRequest};

use super::operation::{self, Operation};
use super::parameters::{paged, paged_from_anywhere};
use super::sample::Sample;
use crate::http::api::queue_lists::{ClaimedBody, PendingBody};
use crate::http::api::task_batches::{StatusesBody, TasksBody};

const A_PAGE: &str = "A page; with a token if there are more";

/// Every operation.
pub(super) fn operations(sample: &Sample) -> Vec<Operation> {
    [named(sample), of_queues(sample)].concat()
}

fn operation(name: &'static str, summary: &'static str) -> Operation {
    operation::operation("queue", name, summary)
}

fn named(sample: &Sample) -> Vec<Operation> {
    let about = format!(
        "Up to {TASK_IDS_MAX} of them. Each that exists is in the answer once, in the order of their ids; what does not \
         exist is left out. Send the same body with the token of an answer for the next page."
    );
    let many = |operation: Operation, scope: &str| {
        paged(operation)
            .about(&about)
            .scopes(json!({"for": "taskId", "in": "taskIds", "each": format!("queue:{scope}:<taskId>")}))
            .takes::<TaskIdsRequest>(&json!({"taskIds": [sample.task]}))
    };
    vec![
        many(operation("tasks", "Read the definitions of several tasks"), "get-task").answers::<TasksBody>(
            "A page of the definitions; with a token if there are more",
            &json!({"tasks": [{"taskId": sample.task, "task": sample.definition()}]}),
        ),
        many(operation("statuses", "Read the statuses of several tasks"), "status").answers::<StatusesBody>(
            "A page of the statuses; with a token if there are more",
            &json!({"statuses": [{"taskId": sample.task, "status": sample.status("pending")}]}),
        ),
    ]
}

fn of_queues(sample: &Sample) -> Vec<Operation> {
    let mut run = json!({"taskId": sample.task, "runId": 0, "task": sample.definition()});
    let mut waiting = run.clone();
    waiting["inserted"] = sample.after(0);
    run["workerGroup"] = "rack-1".into();
    run["workerId"] = "worker-1".into();
    run["claimed"] = sample.after(1);
    let page = |run: Value| json!({"tasks": [run]});
    vec![
        paged_from_anywhere(operation("listPendingTasks", "List a queue's pending tasks"))
            .about(
                "In the order in which they became pending, which is not that in which they are claimed: priorities do not \
                 count here. Those whose message a poller hides are among them. A token that is none begins at the start.",
            )
            .scopes("queue:pending-list:<taskQueueId>")
            .answers::<PendingBody>(A_PAGE, &page(waiting)),
        paged_from_anywhere(operation("listClaimedTasks", "List a queue's claimed tasks"))
            .about("In the order in which they were claimed. A token that is none begins at the start.")
            .scopes("queue:claimed-list:<taskQueueId>")
            .answers::<ClaimedBody>(A_PAGE, &page(run)),
    ]
}
