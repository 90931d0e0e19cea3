//! listTaskGroup.

use tenure_api::ids::TaskGroupId;

use super::{GroupBody, NO_GROUP, a_group};
use crate::http::api::listed_task::{Entry, entries};
use crate::http::api::prelude::*;
use tenure_engine::ops::list_tasks;

/// A page of a group's tasks.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = TaskGroupTasks)]
struct TaskGroupBody {
    /// The group.
    task_group_id: TaskGroupId,
    /// Who owns it.
    scheduler_id: String,
    /// When it is forgotten.
    expires: Timestamp,
    /// Since when no task can be added; absent if it is not sealed.
    #[serde(skip_serializing_if = "Option::is_none")]
    sealed: Option<Timestamp>,
    /// The tasks, in the order of their ids.
    tasks: Vec<Entry>,
    /// For the next page; absent on the last one.
    #[serde(skip_serializing_if = "Option::is_none")]
    continuation_token: Option<TaskId>,
}

/// `GET /task-group/:taskGroupId/list`
pub fn endpoint() -> Endpoint {
    Endpoint::get("listTaskGroup", list_task_group)
        .scopes(Scope("queue:list-task-group:<taskGroupId>"))
        .large_answer()
        .described("queue", "List the tasks of a group", describe)
}

fn describe(operation: Operation, sample: &Sample) -> Operation {
    let mut group = a_group(sample);
    group["tasks"] = json!([{"status": sample.status("pending"), "task": sample.definition()}]);
    paged(operation)
        .answers::<TaskGroupBody>("A page, in the order of the ids; with a token if there are more", &group)
        .refuses(ResourceNotFound, NO_GROUP)
}

async fn list_task_group(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    call.authorize(&Values::of_path())?;
    let id = call.task_group_id()?;
    let cursor = call.page()?;
    let (group, page) = list_tasks::list_group(&app.engine.pool, id, cursor).await?;
    let GroupBody { task_group_id, scheduler_id, expires, sealed } = group.into();
    ok(&TaskGroupBody {
        task_group_id,
        scheduler_id,
        expires,
        sealed,
        tasks: entries(page.tasks)?,
        continuation_token: page.next,
    })
}
