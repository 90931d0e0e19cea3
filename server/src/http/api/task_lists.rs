//! listTaskGroup, listDependentTasks.

use std::sync::Arc;

use axum::response::Response;
use serde::Serialize;
use serde_json::value::RawValue;
use tenure_api::bodies::Status;
use tenure_api::ids::TaskId;

use super::ok;
use super::task_group::GroupBody;
use crate::domain::scopes::Expression;
use crate::domain::task::Task;
use crate::http::app::App;
use crate::http::call::Call;
use crate::http::error::ApiError;
use crate::ops::list_tasks::{self, Page};

#[derive(Serialize)]
struct Entry {
    status: Status,
    task: Box<RawValue>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct PageBody {
    tasks: Vec<Entry>,
    /// Where the next page begins; absent, not null, when there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    continuation_token: Option<TaskId>,
}

impl PageBody {
    fn new(page: Page) -> Result<Self, ApiError> {
        let tasks = page.tasks.into_iter().map(entry).collect::<Result<_, _>>()?;
        Ok(Self { tasks, continuation_token: page.next })
    }
}

fn entry((task, definition): (Task, String)) -> Result<Entry, ApiError> {
    let unfit = |_| ApiError::internal("a stored definition is not JSON");
    Ok(Entry { status: task.status(), task: RawValue::from_string(definition).map_err(unfit)? })
}

#[derive(Serialize)]
struct TaskGroupBody {
    #[serde(flatten)]
    group: GroupBody,
    #[serde(flatten)]
    page: PageBody,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct DependentsBody {
    task_id: TaskId,
    #[serde(flatten)]
    page: PageBody,
}

/// `GET /task-group/:taskGroupId/list`
pub async fn list_task_group(app: App, call: Arc<Call>) -> Result<Response, ApiError> {
    let id = call.task_group_id()?;
    let cursor = call.page()?;
    call.authorize(&Expression::from(format!("queue:list-task-group:{id}")))?;
    let (group, page) = list_tasks::list_group(&app.pool, id, cursor).await?;
    ok(&TaskGroupBody { group: group.into(), page: PageBody::new(page)? })
}

/// `GET /task/:taskId/dependents`
pub async fn list_dependent_tasks(app: App, call: Arc<Call>) -> Result<Response, ApiError> {
    let id = call.task_id()?;
    let cursor = call.page()?;
    call.authorize(&Expression::from(format!("queue:list-dependent-tasks:{id}")))?;
    let page = list_tasks::list_dependents(&app.pool, id, cursor).await?;
    ok(&DependentsBody { task_id: id, page: PageBody::new(page)? })
}
