//! tasks, statuses: many tasks in one call.

use std::sync::Arc;

use axum::response::Response;
use serde::Serialize;
use serde_json::value::RawValue;
use tenure_api::bodies::{Status, TASK_IDS_MAX, TaskDefinition, TaskIdsRequest};
use tenure_api::ids::TaskId;
use utoipa::ToSchema;

use super::ok;
use crate::domain::scopes::Expression;
use crate::http::app::App;
use crate::http::call::Call;
use crate::http::error::ApiError;
use crate::ops::list_tasks;

/// The definition of a task, among others.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = TasksEntry)]
struct TaskEntry {
    /// The task.
    task_id: TaskId,
    /// As it was created.
    #[schema(value_type = TaskDefinition<'static>)]
    task: Box<RawValue>,
}

/// The definitions of several tasks.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Tasks)]
pub(in crate::http) struct TasksBody {
    /// Those that exist, each once, in the order of their ids.
    tasks: Vec<TaskEntry>,
    /// For the next page; absent on the last one.
    #[serde(skip_serializing_if = "Option::is_none")]
    continuation_token: Option<TaskId>,
}

/// The status of a task, among others.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = StatusesEntry)]
struct StatusEntry {
    /// The task.
    task_id: TaskId,
    /// How it is.
    status: Status,
}

/// The statuses of several tasks.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Statuses)]
pub(in crate::http) struct StatusesBody {
    /// Those that exist, each once, in the order of their ids.
    statuses: Vec<StatusEntry>,
    /// For the next page; absent on the last one.
    #[serde(skip_serializing_if = "Option::is_none")]
    continuation_token: Option<TaskId>,
}

/// `POST /tasks`
pub async fn tasks(app: App, call: Arc<Call>) -> Result<Response, ApiError> {
    let wanted = wanted(&call, "queue:get-task")?;
    let page = list_tasks::list_named(&app.engine.pool, &wanted, call.page()?).await?;
    let unfit = |_| ApiError::internal("a stored definition is not JSON");
    let tasks = page.tasks.into_iter().map(|(task, definition)| {
        Ok(TaskEntry { task_id: task.id, task: RawValue::from_string(definition).map_err(unfit)? })
    });
    ok(&TasksBody { tasks: tasks.collect::<Result<_, ApiError>>()?, continuation_token: page.next })
}

/// `POST /tasks/status`
pub async fn statuses(app: App, call: Arc<Call>) -> Result<Response, ApiError> {
    let wanted = wanted(&call, "queue:status")?;
    let (tasks, continuation_token) = list_tasks::list_statuses(&app.engine.pool, &wanted, call.page()?).await?;
    let statuses = tasks.iter().map(|task| StatusEntry { task_id: task.id, status: task.status() }).collect();
    ok(&StatusesBody { statuses, continuation_token })
}

/// The tasks that the body names, if the caller has the scope for each name. A name that no task can have is dropped.
fn wanted(call: &Call, scope: &str) -> Result<Vec<TaskId>, ApiError> {
    call.page()?;
    let TaskIdsRequest { task_ids } = call.json()?;
    if task_ids.len() > TASK_IDS_MAX {
        return Err(ApiError::body(format_args!("`taskIds` must have at most {TASK_IDS_MAX} items")));
    }
    call.authorize(&Expression::all_of(task_ids.iter().map(|id| format!("{scope}:{id}"))))?;
    Ok(task_ids.iter().filter_map(|id| id.parse().ok()).collect())
}
