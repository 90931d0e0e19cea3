//! listTaskGroup, listDependentTasks.

use std::sync::Arc;

use axum::response::Response;
use serde::Serialize;
use serde_json::value::RawValue;
use tenure_api::bodies::{Status, TaskDefinition};
use tenure_api::dates::Timestamp;
use tenure_api::ids::{TaskGroupId, TaskId};
use utoipa::ToSchema;

use super::ok;
use super::task_group::GroupBody;
use crate::domain::scopes::Expression;
use crate::domain::task::Task;
use crate::http::app::App;
use crate::http::call::Call;
use crate::http::error::ApiError;
use crate::ops::list_tasks;

/// A task with its definition.
#[derive(Serialize, ToSchema)]
#[schema(as = ListedTask)]
struct Entry {
    /// How it is.
    status: Status,
    /// As it was created, with the priority that it has now.
    #[schema(value_type = TaskDefinition<'static>)]
    task: Box<RawValue>,
}

fn entries(tasks: Vec<(Task, String)>) -> Result<Vec<Entry>, ApiError> {
    let unfit = |_| ApiError::internal("a stored definition is not JSON");
    let entry = |(task, definition): (Task, String)| {
        Ok(Entry { status: task.status(), task: RawValue::from_string(definition).map_err(unfit)? })
    };
    tasks.into_iter().map(entry).collect()
}

/// A page of a group's tasks.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = TaskGroupTasks)]
pub(in crate::http) struct TaskGroupBody {
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

/// A page of the tasks that wait, or waited, for a task.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = DependentTasks)]
pub(in crate::http) struct DependentsBody {
    /// The task that they wait for.
    task_id: TaskId,
    /// The tasks, in the order of their ids.
    tasks: Vec<Entry>,
    /// For the next page; absent on the last one.
    #[serde(skip_serializing_if = "Option::is_none")]
    continuation_token: Option<TaskId>,
}

/// `GET /task-group/:taskGroupId/list`
pub async fn list_task_group(app: App, call: Arc<Call>) -> Result<Response, ApiError> {
    call.authorize(&Expression::from(format!("queue:list-task-group:{}", call.text_param("taskGroupId"))))?;
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

/// `GET /task/:taskId/dependents`
pub async fn list_dependent_tasks(app: App, call: Arc<Call>) -> Result<Response, ApiError> {
    call.authorize(&Expression::from(format!("queue:list-dependent-tasks:{}", call.text_param("taskId"))))?;
    let id = call.task_id()?;
    let cursor = call.page()?;
    let page = list_tasks::list_dependents(&app.engine.pool, id, cursor).await?;
    ok(&DependentsBody { task_id: id, tasks: entries(page.tasks)?, continuation_token: page.next })
}
