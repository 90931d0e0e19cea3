//! reportCompleted, reportFailed, reportException.

use std::sync::Arc;

use axum::response::Response;
use serde::Deserialize;
use tenure_api::bodies::ReportExceptionRequest;
use tenure_api::states::ExceptionReason;

use super::{StatusBody, ok};
use crate::domain::lifecycle::Report;
use crate::domain::scopes::Expression;
use crate::http::app::App;
use crate::http::call::Call;
use crate::http::error::ApiError;
use crate::ops::report::{Request, stop_waiting};

/// What old workers send with reportCompleted.
#[derive(Deserialize)]
struct Legacy {
    #[serde(default = "yes")]
    success: bool,
}

fn yes() -> bool {
    true
}

impl Default for Legacy {
    fn default() -> Self {
        Self { success: true }
    }
}

/// `POST /task/:taskId/runs/:runId/completed`
pub async fn completed(app: App, call: Arc<Call>) -> Result<Response, ApiError> {
    // The operation has no input, so that a body that is not the legacy one is ignored.
    let legacy: Legacy = call.json_or_default().unwrap_or_default();
    report(app, call, if legacy.success { Report::Completed } else { Report::Failed }).await
}

/// `POST /task/:taskId/runs/:runId/failed`
pub async fn failed(app: App, call: Arc<Call>) -> Result<Response, ApiError> {
    report(app, call, Report::Failed).await
}

/// `POST /task/:taskId/runs/:runId/exception`
pub async fn exception(app: App, call: Arc<Call>) -> Result<Response, ApiError> {
    authorize(&call)?;
    let body: ReportExceptionRequest = call.json()?;
    if body.reason == ExceptionReason::WorkerShutdown {
        let known = app.engine.status.submit(call.task_id()?).await?;
        stop_waiting(&app.engine.pool, &app.engine.queues, &app.engine.bells, &known, call.run_id()?).await?;
    }
    report(app, call, Report::Exception(body.reason)).await
}

/// What each of them requires.
pub fn authorize(call: &Call) -> Result<(), ApiError> {
    call.authorize(&Expression::from(format!("queue:resolve-task:{}", call.run_text())))
}

async fn report(app: App, call: Arc<Call>, report: Report) -> Result<Response, ApiError> {
    authorize(&call)?;
    let (task, run) = (call.task_id()?, call.run_id()?);
    call.no_query()?;
    let task = app.engine.report.submit(Request { task, run, report }).await?;
    ok(&StatusBody { status: &task.status() })
}
