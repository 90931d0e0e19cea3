//! changeTaskGroupPriority.

use tenure_api::bodies::ChangePriorityRequest;
use tenure_api::ids::TaskGroupId;
use tenure_api::states::Priority;

use tenure_engine::ops::{change_priority, task_group};

use crate::http::api::prelude::*;

/// A task group after a change of priority.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = ChangedTaskGroup)]
struct GroupBody {
    /// Id of the group.
    task_group_id: TaskGroupId,
    /// Scheduler that owns the group.
    scheduler_id: String,
    /// The requested priority.
    new_priority: Priority,
    /// Number of changed tasks.
    tasks_affected: usize,
    /// Ids of the changed tasks.
    task_ids: Vec<TaskId>,
}

/// `POST /task-group/:taskGroupId/priority`
pub fn endpoint() -> Endpoint {
    Endpoint::post("changeTaskGroupPriority", change_task_group_priority)
        .scopes(Scope("queue:change-task-group-priority:<schedulerId>/<taskGroupId>"))
        .described("queue", "Change the priority of a group's tasks", describe)
}

fn describe(operation: Operation, sample: &Sample) -> Operation {
    operation
        .experimental()
        .about(
            "Changes tasks that were never resolved, in slices: after an error some tasks may have been changed; \
             send the request again.",
        )
        .takes::<ChangePriorityRequest>(&json!({"newPriority": "high"}))
        .answers::<GroupBody>(
            "The number of tasks whose priority changed",
            &json!({
                "taskGroupId": sample.task,
                "schedulerId": "-",
                "newPriority": "high",
                "tasksAffected": 1,
                "taskIds": [sample.task],
            }),
        )
        .refuses(ResourceNotFound, "the group does not exist")
}

async fn change_task_group_priority(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    let id = call.task_group_id()?;
    call.no_query()?;
    let ChangePriorityRequest { new_priority } = call.json()?;
    let group = task_group::get(&mut *app.engine.pool.acquire().await?, id).await?;
    call.authorize(&Values::of_path().text("schedulerId", group.scheduler.as_str()))?;
    let (pool, notifiers) = (&app.engine.pool, &app.engine.notifiers);
    let affected = change_priority::change_group(pool, notifiers, &call.actor()?, id, new_priority).await?;
    ok(&GroupBody {
        task_group_id: id,
        scheduler_id: group.scheduler,
        new_priority,
        tasks_affected: affected.len(),
        task_ids: affected.into_iter().filter_map(TaskId::from_uuid).collect(),
    })
}
