//! listDependentTasks.

use super::listed_task::{ListedTask, listed_tasks};
use crate::http::api::prelude::*;
use tenure_engine::ops::list_tasks;

/// A page of the tasks that depend on a task, or did.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = DependentTasks)]
struct DependentsBody {
    /// The task that they depend on.
    task_id: TaskId,
    /// Dependent tasks, ordered by id.
    tasks: Vec<ListedTask>,
    /// Token for the next page; absent on the last one.
    #[serde(skip_serializing_if = "Option::is_none")]
    continuation_token: Option<TaskId>,
}

/// `GET /task/:taskId/dependents`
pub fn endpoint() -> Endpoint {
    Endpoint::get("listDependentTasks", list_dependent_tasks)
        .scopes(Scope("queue:list-dependent-tasks:<taskId>"))
        .large_answer()
        .described("queue", "List the tasks that depend on a task", describe)
}

fn describe(operation: Operation, sample: &Sample) -> Operation {
    paged(operation)
        .about("Includes tasks that no longer wait for it.")
        .answers::<DependentsBody>(
            "A page, sorted by id; with a token if there are more",
            &json!({"taskId": sample.task, "tasks": []}),
        )
        .refuses(ResourceNotFound, "the task does not exist")
}

async fn list_dependent_tasks(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    call.authorize(&Values::of_path())?;
    let id = call.task_id()?;
    let cursor = call.page()?;
    let page = list_tasks::list_dependents(&app.engine.pool, id, cursor).await?;
    ok(&DependentsBody { task_id: id, tasks: listed_tasks(page.tasks)?, continuation_token: page.next })
}
