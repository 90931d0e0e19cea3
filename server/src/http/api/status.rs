//! status.

use std::sync::Arc;

use axum::response::Response;
use serde_json::json;
use tenure_api::errors::ErrorCode::ResourceNotFound;

use super::{StatusBody, ok};
use crate::http::api::state::{Api, Endpoint};
use crate::http::call::Call;
use crate::http::docs::operation::Operation;
use crate::http::docs::sample::Sample;
use crate::http::error::ApiError;
use crate::http::scopes::Template::{self, Scope};
use crate::http::scopes::Values;

/// `GET /task/:taskId/status`
pub fn endpoint() -> Endpoint {
    Endpoint::get("status", status).no_pool().scopes(SCOPES).described("queue", "Read a task's status", describe)
}

const SCOPES: Template = Scope("queue:status:<taskId>");

fn describe(operation: Operation, sample: &Sample) -> Operation {
    operation
        .answers::<StatusBody<'_>>("The status", &json!({"status": sample.status("pending")}))
        .refuses(ResourceNotFound, "the task does not exist")
}

async fn status(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    call.authorize(&Values::of_path())?;
    let id = call.task_id()?;
    call.no_query()?;
    let task = app.engine.status.submit(id).await?;
    ok(&StatusBody { status: &task.status() })
}
