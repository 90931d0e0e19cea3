//! task.

use std::sync::Arc;

use axum::response::Response;

use super::raw;
use crate::domain::scopes::Expression;
use crate::http::app::App;
use crate::http::call::Call;
use crate::http::error::ApiError;
use crate::ops::OpError;
use crate::store::tasks;

/// `GET /task/:taskId`
pub async fn task(app: App, call: Arc<Call>) -> Result<Response, ApiError> {
    let id = call.task_id()?;
    call.no_query()?;
    call.authorize(&Expression::from(format!("queue:get-task:{id}")))?;
    let mut conn = app.pool.acquire().await?;
    let definition = tasks::find_definition(&mut conn, id.uuid()).await?;
    Ok(raw(definition.ok_or_else(|| OpError::NotFound(format!("task {id} does not exist")))?))
}
