//! changeTaskPriority.

use tenure_api::bodies::ChangePriorityRequest;

use super::StatusBody;
use crate::http::api::prelude::*;
use tenure_engine::ops::change_priority;

pub(in crate::http) const SCOPES: Template =
    AnyOf(&[Scope("queue:change-task-priority:<taskId>"), Scope("queue:change-task-priority-in-queue:<taskQueueId>")]);

/// `POST /task/:taskId/priority`
pub fn endpoint() -> Endpoint {
    Endpoint::post("changeTaskPriority", change_task_priority).scopes(SCOPES).described(
        "queue",
        "Change a task's priority",
        describe,
    )
}

fn describe(operation: Operation, sample: &Sample) -> Operation {
    let mut raised = sample.status("pending");
    raised["priority"] = "high".into();
    operation
        .experimental()
        .about("A pending run keeps its age: it precedes runs of the new priority that have waited for less time.")
        .takes::<ChangePriorityRequest>(&json!({"newPriority": "high"}))
        .answers::<StatusBody<'_>>("The new status", &json!({"status": raised}))
        .refuses(ResourceNotFound, "the task does not exist")
        .refuses(RequestConflict, "the task was resolved, or its deadline has passed")
}

async fn change_task_priority(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    let id = call.task_id()?;
    call.no_query()?;
    let ChangePriorityRequest { new_priority } = call.json()?;
    let task = app.engine.status.submit(id).await?;
    call.authorize(&Values::of_path().text("taskQueueId", task.queue.as_str()))?;
    let (pool, notifiers) = (&app.engine.pool, &app.engine.notifiers);
    let task = change_priority::change_task(pool, notifiers, &call.actor()?, id, new_priority).await?;
    ok(&StatusBody { status: &task.status() })
}
