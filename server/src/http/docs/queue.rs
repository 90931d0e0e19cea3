//! The Taskcluster Queue API, described.

use serde_json::{Value, json};
use tenure_api::bodies::{
    Claim, ClaimTaskRequest, ClaimWorkRequest, CountsBatchRequest, CreateTaskRequest, ReportExceptionRequest,
    TaskDefinition,
};
use tenure_api::errors::ErrorCode::{InputError, RequestConflict, ResourceNotFound};

use super::operation::{self, Operation};
use super::sample::{QUEUE, Sample};
use crate::http::api::counts::{BatchBody, CountsBody};
use crate::http::api::{StatusBody, poll_task_urls};

/// Every operation.
pub(super) fn operations(sample: &Sample) -> Vec<Operation> {
    [tasks(sample), claims(sample), reports(sample), queues(sample)].concat()
}

fn operation(name: &'static str, summary: &'static str) -> Operation {
    operation::operation("queue", name, summary)
}

fn tasks(sample: &Sample) -> Vec<Operation> {
    vec![
        operation("createTask", "Create a task")
            .about(
                "The caller chooses the id. Sending the same request again answers with the task as it is, so that a lost \
                 answer does no harm. The queue is named by `taskQueueId`, or by `provisionerId` and `workerType`, or by \
                 all three if they agree. `created` must be within 15 minutes of now, and `deadline` within five days. A task \
                 with `dependencies` is unscheduled until these are resolved as `requires` says.",
            )
            .scopes(creating())
            .takes::<CreateTaskRequest<'_>>(&sample.new_task())
            .names(&[
                ("taskId", "$response.body#/status/taskId"),
                ("taskGroupId", "$response.body#/status/taskGroupId"),
                ("runId", "$response.body#/status/runs/0/runId"),
                ("taskQueueId", "$response.body#/status/taskQueueId"),
                ("provisionerId", "$response.body#/status/provisionerId"),
                ("workerType", "$response.body#/status/workerType"),
            ])
            .answers::<StatusBody<'_>>("The task as it is now", &json!({"status": sample.status("pending")}))
            .refuses(InputError, "dates that contradict each other or are too far from now, two different queues, a scope that ends in `**`, \
                 dependencies that do not exist or expire before the deadline")
            .refuses(RequestConflict, "the task exists with another definition, or its group belongs to another schedulerId or is sealed"),

        operation("task", "Read a task's definition")
            .about("As it was created, with every default filled in. Of it only the priority can change.")
            .scopes("queue:get-task:<taskId>")
            .answers::<TaskDefinition<'_>>("The definition", &sample.definition())
            .refuses(ResourceNotFound, "the task does not exist"),
        operation("status", "Read a task's status")
            .scopes("queue:status:<taskId>")
            .answers::<StatusBody<'_>>("The status", &json!({"status": sample.status("pending")}))
            .refuses(ResourceNotFound, "the task does not exist"),
    ]
}

/// What creating a task takes.
pub(super) fn creating() -> Value {
    json!({"AllOf": [
        {"for": "scope", "in": "scopes", "each": "<scope>"},
        {"for": "route", "in": "routes", "each": "queue:route:<route>"},
        {"AnyOf": [
            {"AllOf": [
                "queue:create-task:project:<projectId>",
                "queue:scheduler-id:<schedulerId>",
                {"AnyOf": [{
                    "for": "priority",
                    "in": "prioritiesFromHighestToThatOfTheTask",
                    "each": "queue:create-task:<priority>:<taskQueueId>",
                }]},
            ]},
            {"if": "priorityIsLowest", "then": {"AnyOf": [
                "queue:create-task:<taskQueueId>",
                {"AllOf": [
                    "queue:define-task:<taskQueueId>",
                    "queue:task-group-id:<schedulerId>/<taskGroupId>",
                    "queue:schedule-task:<schedulerId>/<taskGroupId>/<taskId>",
                ]},
            ]}},
        ]},
    ]})
}

fn claims(sample: &Sample) -> Vec<Operation> {
    vec![
        operation("claimWork", "Claim up to 32 tasks of a queue")
            .about(
                "If there is nothing to do, it waits up to 20 seconds for work and then answers with an empty list. Each \
                 claim is good until `takenUntil`: renew it with reclaimTask before. A claim whose answer did not reach the \
                 worker is taken back. An answer has at most 16 MB of definitions; what has no room stays pending. The first \
                 task is always in it.",
            )
            .scopes(json!({"AllOf": ["queue:claim-work:<taskQueueId>", "queue:worker-id:<workerGroup>/<workerId>"]}))
            .takes::<ClaimWorkRequest>(&json!({"workerGroup": "rack-1", "workerId": "worker-1", "tasks": 1}))
            .names(&[("taskId", "$response.body#/tasks/0/status/taskId"), ("runId", "$response.body#/tasks/0/runId")])
            .answers_with(
                200,
                "The claims, most urgent first",
                "application/json",
                &json!({
                    "type": "object",
                    "required": ["tasks"],
                    "properties": {"tasks": {"type": "array", "items": {"$ref": "#/components/schemas/Claim"}}},
                }),
                &json!({"tasks": [sample.claim()]}),
            ),
        operation("claimTask", "Claim one run of a task")
            .deprecated()
            .about("For workers that found the run on the message plane. The worker that holds the claim gets it again.")
            .scopes(json!({"AnyOf": [
                {"AllOf": ["queue:claim-task:<taskQueueId>", "queue:worker-id:<workerGroup>/<workerId>"]},
                {"AllOf": [
                    "queue:claim-task",
                    "assume:worker-type:<taskQueueId>",
                    "assume:worker-id:<workerGroup>/<workerId>",
                ]},
            ]}))
            .takes::<ClaimTaskRequest>(&json!({"workerGroup": "rack-1", "workerId": "worker-1"}))
            .names(&[
                ("taskId", "$response.body#/status/taskId"),
                ("runId", "$response.body#/runId"),
                ("provisionerId", "$response.body#/status/provisionerId"),
                ("workerType", "$response.body#/status/workerType"),
                ("workerGroup", "$response.body#/workerGroup"),
                ("workerId", "$response.body#/workerId"),
            ])
            .answers::<Claim<'_>>("The claim", &sample.claim())
            .refuses(ResourceNotFound, "the task or the run does not exist")
            .refuses(RequestConflict, "somebody else holds the run, it has ended, the task's deadline has passed, or the worker is quarantined"),
        operation("reclaimTask", "Renew a claim")
            .about(
                "The answer has fresh credentials and the new `takenUntil`, never an earlier one than before, and no \
                 definition. The credentials of a claim are good for this call.",
            )
            .scopes("queue:reclaim-task:<taskId>/<runId>")
            .answers::<Claim<'_>>("The claim", &sample.renewed_claim())
            .refuses(ResourceNotFound, "the task or the run does not exist")
            .refuses(RequestConflict, "the run is not running any more, or the task's deadline has passed"),
    ]
}

fn reports(sample: &Sample) -> Vec<Operation> {
    let report = |name, summary, state| {
        operation(name, summary)
            .scopes("queue:resolve-task:<taskId>/<runId>")
            .answers::<StatusBody<'_>>("The status after it", &json!({"status": sample.status(state)}))
            .refuses(ResourceNotFound, "the task or the run does not exist")
            .refuses(RequestConflict, "the run is not running: it was never claimed, or it has ended in another way")
    };
    let repeats = "The credentials of a claim are good for this call, which may be repeated.";
    vec![
        report("reportCompleted", "Report that a run succeeded", "completed").about(repeats),
        report("reportFailed", "Report that a run failed", "failed").about(repeats),
        report("reportException", "Report that a run could not be done", "exception")
            .about(&format!(
                "{repeats} `worker-shutdown` and `intermittent-task` lead to another try while retries are left."
            ))
            .takes::<ReportExceptionRequest>(&json!({"reason": "malformed-payload"})),
    ]
}

fn queues(sample: &Sample) -> Vec<Operation> {
    let both = json!({"AllOf": ["queue:pending-count:<taskQueueId>", "queue:claimed-count:<taskQueueId>"]});
    let pending = json!({"provisionerId": "acme", "workerType": "linux", "taskQueueId": QUEUE, "pendingTasks": 1});
    let mut counts = pending.clone();
    counts["claimedTasks"] = 0.into();
    let url = "https://tenure.example.com/api/tenure/v1/messages/queue-1-4/messages";
    let urls = json!({
        "queues": [{
            "signedPollUrl": format!("{url}?visibilitytimeout=300&sv=...&sig=..."),
            "signedDeleteUrl": format!("{url}/{{{{messageId}}}}?popreceipt={{{{popReceipt}}}}&sv=...&sig=..."),
        }],
        "expires": sample.after(30),
    });
    vec![
        operation("pendingTasks", "Count a queue's pending tasks")
            .deprecated()
            .about("A queue that nobody has used has none.")
            .scopes("queue:pending-count:<taskQueueId>")
            .answers::<CountsBody<'_>>("The number; `claimedTasks` is left out", &pending),
        operation("taskQueueCounts", "Count a queue's pending and claimed tasks")
            .scopes(both)
            .answers::<CountsBody<'_>>("The numbers", &counts),
        operation("taskQueueCountsBatch", "Count the tasks of up to 1000 queues")
            .experimental()
            .scopes(json!({"AllOf": [
                {"for": "taskQueueId", "in": "taskQueueIds", "each": "queue:pending-count:<taskQueueId>"},
                {"for": "taskQueueId", "in": "taskQueueIds", "each": "queue:claimed-count:<taskQueueId>"},
            ]}))
            .takes::<CountsBatchRequest>(&json!({"taskQueueIds": [QUEUE]}))
            .answers::<BatchBody<'_>>(
                "The numbers, each queue once, in the order of the names",
                &json!({"taskQueueCounts": [{"taskQueueId": QUEUE, "pendingTasks": 1, "claimedTasks": 0}]}),
            ),
        operation("pollTaskUrls", "Get the signed URLs of a queue's messages")
            .about("Seven pairs, one for each priority, highest first. They are good for half an hour.")
            .scopes(json!({"AnyOf": [
                "queue:poll-task-urls:<taskQueueId>",
                {"AllOf": ["queue:poll-task-urls", "assume:worker-type:<taskQueueId>"]},
            ]}))
            .answers::<poll_task_urls::Body>("The URLs", &urls),
    ]
}
