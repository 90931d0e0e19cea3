//! Waiting until a task is resolved.

use std::sync::Arc;
use std::time::Duration;

use axum::response::Response;
use serde::Serialize;
use tenure_api::bodies::Status;
use utoipa::ToSchema;

use super::ok;
use crate::domain::scopes::Expression;
use crate::http::app::App;
use crate::http::call::Call;
use crate::http::error::ApiError;
use crate::ops::wait::{PATIENCE_DEFAULT, PATIENCE_MAX, wait};

/// A task after the wait.
#[derive(Serialize, ToSchema)]
#[schema(as = Waited)]
pub(in crate::http) struct Body {
    /// How it is.
    status: Status,
    /// Whether it is resolved; if not, the time was up, or the server is stopping.
    resolved: bool,
}

/// `GET /api/tenure/v1/tasks/:taskId/wait?seconds=`
pub async fn wait_for_task(app: App, call: Arc<Call>) -> Result<Response, ApiError> {
    call.authorize(&Expression::from(format!("queue:status:{}", call.text_param("taskId"))))?;
    let id = call.task_id()?;
    let patience = patience(&call)?;
    let waited = wait(&app.engine.status, &app.engine.bells, &app.drain, id, patience).await?;
    ok(&Body { status: waited.task.status(), resolved: waited.resolved })
}

fn patience(call: &Call) -> Result<Duration, ApiError> {
    let Some((_, value)) = call.query(&["seconds"])?.pop() else { return Ok(PATIENCE_DEFAULT) };
    let digits = !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit());
    let seconds = if digits { value.parse().ok() } else { None };
    seconds.map(Duration::from_secs).filter(|patience| *patience <= PATIENCE_MAX).ok_or_else(|| {
        let most = PATIENCE_MAX.as_secs();
        ApiError::arguments(format!("the query parameter `seconds` must be a whole number from 0 to {most}"))
    })
}
