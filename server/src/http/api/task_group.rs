//! getTaskGroup, sealTaskGroup, cancelTaskGroup.

use std::sync::Arc;

use axum::response::Response;
use serde::Serialize;
use tenure_api::dates::Timestamp;
use tenure_api::ids::{TaskGroupId, TaskId};

use super::ok;
use crate::domain::scopes::Expression;
use crate::domain::task::Group;
use crate::http::app::App;
use crate::http::call::Call;
use crate::http::error::ApiError;
use crate::ops::task_group;

/// A group as the wire shows it.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct GroupBody {
    task_group_id: TaskGroupId,
    scheduler_id: String,
    expires: Timestamp,
    #[serde(skip_serializing_if = "Option::is_none")]
    sealed: Option<Timestamp>,
}

impl From<Group> for GroupBody {
    fn from(group: Group) -> Self {
        Self {
            task_group_id: group.id,
            scheduler_id: group.scheduler,
            expires: group.expires.into(),
            sealed: group.sealed.map(Timestamp::new),
        }
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct CancelledBody {
    task_group_id: TaskGroupId,
    task_group_size: i64,
    cancelled_count: usize,
    task_ids: Vec<TaskId>,
}

/// `GET /task-group/:taskGroupId`
pub async fn get_task_group(app: App, call: Arc<Call>) -> Result<Response, ApiError> {
    let id = call.task_group_id()?;
    call.no_query()?;
    call.authorize(&Expression::from(format!("queue:list-task-group:{id}")))?;
    ok(&GroupBody::from(task_group::get(&mut *app.pool.acquire().await?, id).await?))
}

/// `POST /task-group/:taskGroupId/seal`
pub async fn seal_task_group(app: App, call: Arc<Call>) -> Result<Response, ApiError> {
    let id = call.task_group_id()?;
    call.no_query()?;
    let group = task_group::get(&mut *app.pool.acquire().await?, id).await?;
    call.authorize(&Expression::from(format!("queue:seal-task-group:{}/{id}", group.scheduler)))?;
    ok(&GroupBody::from(task_group::seal(&app.pool, id).await?))
}

/// `POST /task-group/:taskGroupId/cancel`
pub async fn cancel_task_group(app: App, call: Arc<Call>) -> Result<Response, ApiError> {
    let id = call.task_group_id()?;
    call.no_query()?;
    let group = task_group::get(&mut *app.pool.acquire().await?, id).await?;
    task_group::check_sealed(&group)?;
    call.authorize(&Expression::from(format!("queue:cancel-task-group:{}/{id}", group.scheduler)))?;
    let cancelled = task_group::cancel(&app.pool, &app.passes.bells, id).await?;
    ok(&CancelledBody {
        task_group_id: id,
        task_group_size: cancelled.size,
        cancelled_count: cancelled.tasks.len(),
        task_ids: cancelled.tasks.into_iter().filter_map(TaskId::from_uuid).collect(),
    })
}
