//! status.

use std::sync::Arc;

use axum::response::Response;

use super::{StatusBody, ok};
use crate::domain::scopes::Expression;
use crate::http::app::App;
use crate::http::call::Call;
use crate::http::error::ApiError;

/// `GET /task/:taskId/status`
pub async fn status(app: App, call: Arc<Call>) -> Result<Response, ApiError> {
    call.authorize(&Expression::from(format!("queue:status:{}", call.text_param("taskId"))))?;
    let id = call.task_id()?;
    call.no_query()?;
    let task = app.engine.status.submit(id).await?;
    ok(&StatusBody { status: &task.status() })
}
