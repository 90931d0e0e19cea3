//! cancelTaskGroup.

use tenure_api::ids::TaskGroupId;

use super::NO_GROUP;
use crate::http::api::prelude::*;
use tenure_engine::ops::task_group;

/// A group that was cancelled.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = CancelledTaskGroup)]
struct CancelledBody {
    /// The group.
    task_group_id: TaskGroupId,
    /// How many tasks it has.
    task_group_size: i64,
    /// How many of them were cancelled now.
    cancelled_count: usize,
    /// Which ones.
    task_ids: Vec<TaskId>,
}

/// `POST /task-group/:taskGroupId/cancel`
pub fn endpoint() -> Endpoint {
    Endpoint::post("cancelTaskGroup", cancel_task_group)
        .scopes(Scope("queue:cancel-task-group:<schedulerId>/<taskGroupId>"))
        .described("queue", "Cancel every task of a sealed group", describe)
}

fn describe(operation: Operation, sample: &Sample) -> Operation {
    operation
        .experimental()
        .about(
            "Those that are not resolved. It works in slices: after an error some tasks may have been cancelled; send \
             it again.",
        )
        .answers::<CancelledBody>(
            "What was cancelled now",
            &json!({
                "taskGroupId": sample.task,
                "taskGroupSize": 1,
                "cancelledCount": 1,
                "taskIds": [sample.task],
            }),
        )
        .refuses(ResourceNotFound, NO_GROUP)
        .refuses(RequestConflict, "the group is not sealed")
}

async fn cancel_task_group(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    let id = call.task_group_id()?;
    call.no_query()?;
    let group = task_group::get(&mut *app.engine.pool.acquire().await?, id).await?;
    task_group::check_sealed(&group)?;
    call.authorize(&Values::of_path().text("schedulerId", group.scheduler.as_str()))?;
    let cancelled = task_group::cancel(&app.engine.pool, &app.engine.notifiers, id).await?;
    ok(&CancelledBody {
        task_group_id: id,
        task_group_size: cancelled.size,
        cancelled_count: cancelled.tasks.len(),
        task_ids: cancelled.tasks.into_iter().filter_map(TaskId::from_uuid).collect(),
    })
}
