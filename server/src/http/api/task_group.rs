//! getTaskGroup, sealTaskGroup, cancelTaskGroup.

use std::sync::Arc;

use axum::response::Response;
use serde::Serialize;
use tenure_api::dates::Timestamp;
use tenure_api::ids::{TaskGroupId, TaskId};
use utoipa::ToSchema;

use super::ok;
use crate::domain::scopes::Expression;
use crate::domain::task::Group;
use crate::http::app::App;
use crate::http::call::Call;
use crate::http::error::ApiError;
use crate::ops::task_group;

/// A group as the wire shows it.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = TaskGroup)]
pub struct GroupBody {
    /// The group.
    pub(super) task_group_id: TaskGroupId,
    /// Who owns it.
    pub(super) scheduler_id: String,
    /// When it is forgotten.
    pub(super) expires: Timestamp,
    /// Since when no task can be added; absent if it is not sealed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) sealed: Option<Timestamp>,
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

/// A group that was cancelled.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = CancelledTaskGroup)]
pub(in crate::http) struct CancelledBody {
    /// The group.
    task_group_id: TaskGroupId,
    /// How many tasks it has.
    task_group_size: i64,
    /// How many of them were cancelled now.
    cancelled_count: usize,
    /// Which ones.
    task_ids: Vec<TaskId>,
}

/// `GET /task-group/:taskGroupId`
pub async fn get_task_group(app: App, call: Arc<Call>) -> Result<Response, ApiError> {
    call.authorize(&Expression::from(format!("queue:list-task-group:{}", call.text_param("taskGroupId"))))?;
    let id = call.task_group_id()?;
    call.no_query()?;
    ok(&GroupBody::from(task_group::get(&mut *app.engine.pool.acquire().await?, id).await?))
}

/// `POST /task-group/:taskGroupId/seal`
pub async fn seal_task_group(app: App, call: Arc<Call>) -> Result<Response, ApiError> {
    let id = call.task_group_id()?;
    call.no_query()?;
    let group = task_group::get(&mut *app.engine.pool.acquire().await?, id).await?;
    call.authorize(&Expression::from(format!("queue:seal-task-group:{}/{id}", group.scheduler)))?;
    ok(&GroupBody::from(task_group::seal(&app.engine.pool, id).await?))
}

/// `POST /task-group/:taskGroupId/cancel`
pub async fn cancel_task_group(app: App, call: Arc<Call>) -> Result<Response, ApiError> {
    let id = call.task_group_id()?;
    call.no_query()?;
    let group = task_group::get(&mut *app.engine.pool.acquire().await?, id).await?;
    task_group::check_sealed(&group)?;
    call.authorize(&Expression::from(format!("queue:cancel-task-group:{}/{id}", group.scheduler)))?;
    let cancelled = task_group::cancel(&app.engine.pool, &app.engine.bells, id).await?;
    ok(&CancelledBody {
        task_group_id: id,
        task_group_size: cancelled.size,
        cancelled_count: cancelled.tasks.len(),
        task_ids: cancelled.tasks.into_iter().filter_map(TaskId::from_uuid).collect(),
    })
}
