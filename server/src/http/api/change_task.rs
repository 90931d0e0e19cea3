//! scheduleTask, rerunTask, cancelTask.

use super::StatusBody;
use crate::http::api::prelude::*;
use tenure_api::errors::ErrorCode::DuplicateTask;
use tenure_domain::task::Task;
use tenure_engine::ops::change_task::{Change, change};

/// For the task itself, its project, or its scheduler and group. `$more` are further alternatives.
macro_rules! scopes {
    ($verb:literal $(, $more:expr)?) => {
        AnyOf(&[
            Scope(concat!("queue:", $verb, ":<schedulerId>/<taskGroupId>/<taskId>")),
            Scope(concat!("queue:", $verb, "-in-project:<projectId>")),
            AllOf(&[Scope(concat!("queue:", $verb)), Scope("assume:scheduler-id:<schedulerId>/<taskGroupId>")]),
            $($more,)?
        ])
    };
}

pub(in crate::http) const RERUNNING: Template = scopes!("rerun-task", Scope("tenure:rerun-task:<taskQueueId>"));
pub(in crate::http) const CANCELLING: Template = scopes!("cancel-task", Scope("tenure:cancel-task:<taskQueueId>"));

/// `POST /task/:taskId/schedule`
pub fn schedule_task() -> Endpoint {
    let handler = |app, call| change_task(app, call, Change::Schedule);
    Endpoint::post("scheduleTask", handler).scopes(scopes!("schedule-task")).described(
        "queue",
        "Run a task without waiting for its dependencies",
        |operation, sample| {
            described(operation, &sample.status("pending"))
                .about("A task that is already scheduled is returned unchanged.")
        },
    )
}

/// `POST /task/:taskId/rerun`
pub fn rerun_task() -> Endpoint {
    let handler = |app, call| change_task(app, call, Change::Rerun);
    Endpoint::post("rerunTask", handler).scopes(RERUNNING).described(
        "queue",
        "Run a task once more",
        |operation, sample| {
            described(operation, &sample.status("pending"))
                .about(
                    "It gets its full number of retries again. A pending or running task is returned unchanged; a \
                     task that waits for dependencies stops waiting.",
                )
                .refuses(
                    RequestConflict,
                    "the task has reached the maximum number of runs, or waits for its unique name",
                )
                .refuses(DuplicateTask, "another unresolved task has its unique name")
        },
    )
}

/// `POST /task/:taskId/cancel`
pub fn cancel_task() -> Endpoint {
    let handler = |app, call| change_task(app, call, Change::Cancel);
    Endpoint::post("cancelTask", handler).scopes(CANCELLING).described(
        "queue",
        "End a task that is not resolved",
        |operation, sample| {
            let mut cancelled = sample.status("exception");
            cancelled["runs"][0]["reasonResolved"] = "canceled".into();
            described(operation, &cancelled).about(
                "Its run ends as `exception` with the reason `canceled`. The worker that holds it learns this within \
                 a second from the inbox of its session, or otherwise at its next reclaimTask or report. A resolved \
                 task is returned unchanged.",
            )
        },
    )
}

fn described(operation: Operation, after: &Value) -> Operation {
    operation
        .answers::<StatusBody<'_>>("The new status", &json!({"status": after}))
        .refuses(ResourceNotFound, "the task does not exist")
        .refuses(RequestConflict, "the task's deadline has passed")
}

async fn change_task(app: Api, call: Arc<Call>, transition: Change) -> Result<Response, ApiError> {
    let id = call.task_id()?;
    call.no_query()?;
    // The scopes contain the task's scheduler, group, project and queue.
    let task = app.engine.status.submit(id).await?;
    call.authorize(&values(&task))?;
    let task = change(&app.engine.pool, &app.engine.notifiers, &call.actor()?, id, transition).await?;
    ok(&StatusBody { status: &task.status() })
}

/// Values that are not in the path.
pub(in crate::http) fn values(task: &Task) -> Values<'_> {
    Values::of_path()
        .text("schedulerId", task.scheduler.as_str())
        .text("taskGroupId", task.group.to_string())
        .text("projectId", task.project.as_str())
        .text("taskQueueId", task.queue.as_str())
}
