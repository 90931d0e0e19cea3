//! reclaimTask.

use std::sync::Arc;

use axum::response::Response;

use super::{claim_json, raw};
use crate::domain::scopes::Expression;
use crate::http::app::App;
use crate::http::call::Call;
use crate::http::error::ApiError;
use crate::ops::reclaim::Request;

/// `POST /task/:taskId/runs/:runId/reclaim`
pub async fn reclaim_task(app: App, call: Arc<Call>) -> Result<Response, ApiError> {
    authorize(&call)?;
    let (task, run) = (call.task_id()?, call.run_id()?);
    call.no_query()?;
    let granted = app.engine.reclaim.submit(Request { task, run }).await?;
    Ok(raw(claim_json(&app, &granted)?))
}

/// What it requires.
pub fn authorize(call: &Call) -> Result<(), ApiError> {
    call.authorize(&Expression::from(format!("queue:reclaim-task:{}", call.run_text())))
}
