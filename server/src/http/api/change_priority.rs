//! changeTaskPriority, changeTaskGroupPriority.

use std::sync::Arc;

use axum::response::Response;
use serde::Serialize;
use tenure_api::bodies::ChangePriorityRequest;
use tenure_api::ids::{TaskGroupId, TaskId};
use tenure_api::states::Priority;
use utoipa::ToSchema;

use super::{StatusBody, ok};
use crate::domain::scopes::Expression;
use crate::http::app::App;
use crate::http::call::Call;
use crate::http::error::ApiError;
use crate::ops::{change_priority, task_group};

/// A group whose priority was changed.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = ChangedTaskGroup)]
pub(in crate::http) struct GroupBody {
    /// The group.
    task_group_id: TaskGroupId,
    /// Who owns it.
    scheduler_id: String,
    /// The priority that was asked for.
    new_priority: Priority,
    /// How many tasks had another one.
    tasks_affected: usize,
    /// Which ones.
    task_ids: Vec<TaskId>,
}

/// `POST /task/:taskId/priority`
pub async fn change_task_priority(app: App, call: Arc<Call>) -> Result<Response, ApiError> {
    let id = call.task_id()?;
    call.no_query()?;
    let ChangePriorityRequest { new_priority } = call.json()?;
    let known = app.engine.status.submit(id).await?;
    call.authorize(&Expression::any_of([
        format!("queue:change-task-priority:{id}"),
        format!("queue:change-task-priority-in-queue:{}", known.queue),
    ]))?;
    let task = change_priority::change_task(&app.engine.pool, &app.engine.bells, id, new_priority).await?;
    ok(&StatusBody { status: &task.status() })
}

/// `POST /task-group/:taskGroupId/priority`
pub async fn change_task_group_priority(app: App, call: Arc<Call>) -> Result<Response, ApiError> {
    let id = call.task_group_id()?;
    call.no_query()?;
    let ChangePriorityRequest { new_priority } = call.json()?;
    let group = task_group::get(&mut *app.engine.pool.acquire().await?, id).await?;
    call.authorize(&Expression::from(format!("queue:change-task-group-priority:{}/{id}", group.scheduler)))?;
    let affected = change_priority::change_group(&app.engine.pool, &app.engine.bells, id, new_priority).await?;
    ok(&GroupBody {
        task_group_id: id,
        scheduler_id: group.scheduler,
        new_priority,
        tasks_affected: affected.len(),
        task_ids: affected.into_iter().filter_map(TaskId::from_uuid).collect(),
    })
}
