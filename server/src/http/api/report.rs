//! reportCompleted, reportFailed, reportException.

use std::sync::Arc;

use axum::response::Response;
use serde::Deserialize;
use serde_json::json;
use tenure_api::bodies::ReportExceptionRequest;
use tenure_api::errors::ErrorCode::{RequestConflict, ResourceNotFound};
use tenure_api::states::ExceptionReason;

use super::{StatusBody, ok};
use crate::http::app::App;
use crate::http::call::Call;
use crate::http::docs::Sample;
use crate::http::docs::operation::Operation;
use crate::http::endpoint::Endpoint;
use crate::http::error::ApiError;
use crate::http::scopes::Template::{self, Scope};
use tenure_domain::lifecycle::Report;
use tenure_engine::ops::report::{RunReport, stop_waiting};

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

const SCOPES: Template = Scope("queue:resolve-task:<taskId>/<runId>");
const REPEATS: &str = "The credentials of a claim are good for this call, which may be repeated.";

/// `POST /task/:taskId/runs/:runId/completed`
pub fn report_completed() -> Endpoint {
    Endpoint::post("reportCompleted", completed).scopes(SCOPES).early_check(Call::authorize_by_path).described(
        "queue",
        "Report that a run succeeded",
        |operation, sample| described(operation, sample, "completed").about(REPEATS),
    )
}

/// `POST /task/:taskId/runs/:runId/failed`
pub fn report_failed() -> Endpoint {
    Endpoint::post("reportFailed", failed).scopes(SCOPES).early_check(Call::authorize_by_path).described(
        "queue",
        "Report that a run failed",
        |operation, sample| described(operation, sample, "failed").about(REPEATS),
    )
}

/// `POST /task/:taskId/runs/:runId/exception`
pub fn report_exception() -> Endpoint {
    Endpoint::post("reportException", exception).scopes(SCOPES).early_check(Call::authorize_by_path).described(
        "queue",
        "Report that a run could not be done",
        |operation, sample| {
            described(operation, sample, "exception")
                .about(&format!(
                    "{REPEATS} `worker-shutdown` and `intermittent-task` lead to another try while retries are left."
                ))
                .takes::<ReportExceptionRequest>(&json!({"reason": "malformed-payload"}))
        },
    )
}

fn described(operation: Operation, sample: &Sample, state: &str) -> Operation {
    operation
        .answers::<StatusBody<'_>>("The status after it", &json!({"status": sample.status(state)}))
        .refuses(ResourceNotFound, "the task or the run does not exist")
        .refuses(RequestConflict, "the run is not running: it was never claimed, or it has ended in another way")
}

async fn completed(app: App, call: Arc<Call>) -> Result<Response, ApiError> {
    // The operation has no input, so that a body that is not the legacy one is ignored.
    let legacy: Legacy = call.json_or_default().unwrap_or_default();
    report(app, call, if legacy.success { Report::Completed } else { Report::Failed }).await
}

async fn failed(app: App, call: Arc<Call>) -> Result<Response, ApiError> {
    report(app, call, Report::Failed).await
}

async fn exception(app: App, call: Arc<Call>) -> Result<Response, ApiError> {
    call.authorize_by_path()?;
    let body: ReportExceptionRequest = call.json()?;
    if body.reason == ExceptionReason::WorkerShutdown {
        let status = app.engine.status.submit(call.task_id()?).await?;
        stop_waiting(&app.engine.pool, &app.engine.queues, &app.engine.notifiers, &status, call.run_id()?).await?;
    }
    report(app, call, Report::Exception(body.reason)).await
}

async fn report(app: App, call: Arc<Call>, report: Report) -> Result<Response, ApiError> {
    call.authorize_by_path()?;
    let (task, run) = (call.task_id()?, call.run_id()?);
    call.no_query()?;
    let task = app.engine.report.submit(RunReport { task, run, report, holder: None }).await?;
    ok(&StatusBody { status: &task.status() })
}
