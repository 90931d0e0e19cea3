//! createTask.

use tenure_api::bodies::CreateTaskRequest;
use tenure_api::errors::ErrorCode::{BacklogLimitReached, DuplicateTask};
use tenure_api::states::Priority;

use super::StatusBody;
use crate::http::api::prelude::*;
use crate::http::scopes::Template::If;
use tenure_domain::create::NewTask;
use tenure_domain::policy::options::Needs;
use tenure_domain::task::Task;
use tenure_engine::engine::Engine;

/// `PUT /task/:taskId`
pub fn endpoint() -> Endpoint {
    Endpoint::put("createTask", create_task).no_pool().scopes(SCOPES).described("queue", "Create a task", describe)
}

/// The task's own scopes, routes, project and scheduler, and its priority or a higher one in its
/// queue. The lowest priority accepts the scope of submitters from the time of signed URLs, too.
/// Options about the loss of a worker need a further scope.
pub(in crate::http) const SCOPES: Template = AllOf(&[
    ForEach { item: "scope", list: "scopes", scopes: &["<scope>"] },
    ForEach { item: "route", list: "routes", scopes: &["queue:route:<route>"] },
    If { condition: "optionsHaveDelivery", then: &Scope("tenure:task-options:<taskQueueId>") },
    AnyOf(&[
        AllOf(&[
            Scope("queue:create-task:project:<projectId>"),
            Scope("queue:scheduler-id:<schedulerId>"),
            AnyOf(&[ForEach {
                item: "priority",
                list: "prioritiesFromHighestToThatOfTheTask",
                scopes: &["queue:create-task:<priority>:<taskQueueId>"],
            }]),
        ]),
        If {
            condition: "priorityIsLowest",
            then: &AnyOf(&[
                Scope("queue:create-task:<taskQueueId>"),
                AllOf(&[
                    Scope("queue:define-task:<taskQueueId>"),
                    Scope("queue:task-group-id:<schedulerId>/<taskGroupId>"),
                    Scope("queue:schedule-task:<schedulerId>/<taskGroupId>/<taskId>"),
                ]),
            ]),
        },
    ]),
]);

fn describe(operation: Operation, sample: &Sample) -> Operation {
    operation
        .about(
            "The caller chooses the id. A repeat of the same request returns the task in its current state, so it is \
             safe to retry. The queue is named by `taskQueueId`, by `provisionerId` and `workerType`, or by all \
             three if they agree. `created` must be within 15 minutes of now, and `deadline` within five days. A \
             task with `dependencies` is unscheduled until they are resolved as `requires` demands. `tenure` in its \
             `extra` is an object of options that override the policy of the queue: when the first run may start, \
             what a lost worker costs, how long a claim may last and a retry waits, and a name that one unresolved \
             task may have.",
        )
        .takes::<CreateTaskRequest<'_>>(&sample.new_task())
        .names(&[
            ("taskId", "$response.body#/status/taskId"),
            ("taskGroupId", "$response.body#/status/taskGroupId"),
            ("runId", "$response.body#/status/runs/0/runId"),
            ("taskQueueId", "$response.body#/status/taskQueueId"),
            ("provisionerId", "$response.body#/status/provisionerId"),
            ("workerType", "$response.body#/status/workerType"),
        ])
        .answers::<StatusBody<'_>>("The current state of the task", &json!({"status": sample.status("pending")}))
        .refuses(
            InputError,
            "dates that contradict each other or are too far from now, two different queues, a scope that ends in \
             `**`, dependencies that do not exist or expire before the deadline, options that are out of range or \
             would have it start at its deadline or later",
        )
        .refuses(
            RequestConflict,
            "the task exists with another definition; its group belongs to another schedulerId or is sealed; or it has \
             the option `retryFailed` or `unique`, and a server of an older release is connected to the database; or it \
             is larger than `backlog.bytes` in the policy of its queue",
        )
        .refuses(
            DuplicateTask,
            "an unresolved task of the queue and schedulerId has the `unique` name, and `onDuplicate` is not `queue`",
        )
        .refuses(BacklogLimitReached, "the queue has as many pending tasks, or bytes of them, as its policy allows")
}

async fn create_task(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    let id = call.task_id()?;
    call.no_query()?;
    let requested = NewTask::from_request(id, &call.json::<CreateTaskRequest<'_>>()?)?;
    call.authorize(&values(requested.task()))?;
    let task = requested.accept()?;
    #[cfg(feature = "test-util")]
    if tenure_store::breakage::strikes(tenure_store::breakage::Breakage::LoseCreate) {
        return Ok(super::raw("{\"status\":{}}"));
    }
    ok(&StatusBody { status: &store(&app.engine, task).await?.into_status() })
}

/// Creates a task whose scopes were checked.
pub(in crate::http) async fn store(engine: &Engine, task: NewTask) -> Result<Task, ApiError> {
    if task.needs_gate() {
        engine.gate.open().await?;
    }
    Ok(engine.create_task(Arc::new(task)).await?)
}

pub(in crate::http) fn values(task: &NewTask) -> Values<'_> {
    let priorities = Priority::ALL.iter().filter(|&&priority| priority <= task.priority);
    Values::of_path()
        .list("scopes", task.scopes.iter().map(String::as_str))
        .list("routes", task.routes.iter().map(String::as_str))
        .text("projectId", task.project.as_str())
        .text("schedulerId", task.scheduler.as_str())
        .text("taskQueueId", task.queue.as_str())
        .text("taskGroupId", task.group.to_string())
        .text("taskId", task.id.to_string())
        .list("prioritiesFromHighestToThatOfTheTask", priorities.map(ToString::to_string))
        .condition("priorityIsLowest", task.priority == Priority::Lowest)
        .condition(
            "optionsHaveDelivery",
            task.options.as_ref().is_some_and(|options| options.needs() == Needs::TaskOptions),
        )
}
