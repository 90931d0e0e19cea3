//! task.

use std::sync::Arc;

use axum::response::Response;

use super::raw;
use crate::domain::create::shown_definition;
use crate::domain::scopes::Expression;
use crate::http::app::App;
use crate::http::call::Call;
use crate::http::error::ApiError;
use crate::ops::OpError;
use crate::store::tasks;

/// `GET /task/:taskId`
pub async fn task(app: App, call: Arc<Call>) -> Result<Response, ApiError> {
    call.authorize(&Expression::from(format!("queue:get-task:{}", call.text_param("taskId"))))?;
    let id = call.task_id()?;
    call.no_query()?;
    let mut conn = app.engine.pool.acquire().await?;
    let found = tasks::find_definition_and_priority(&mut conn, id.uuid()).await?;
    let (definition, priority) = found.ok_or_else(|| OpError::NotFound(format!("task {id} does not exist")))?;
    Ok(raw(shown_definition(definition, priority)))
}
