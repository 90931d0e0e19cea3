//! reportCompleted, reportFailed, reportException, releaseTask.

use std::collections::HashMap;

use serde::Deserialize;
use serde::de::IgnoredAny;
use tenure_api::bodies::ReportExceptionRequest;
use tenure_api::policy::{ReleaseRequest, ReportedResult};
use tenure_api::states::ExceptionReason;

use super::StatusBody;
use crate::http::api::prelude::*;
use tenure_domain::lifecycle::Report;
use tenure_domain::policy::ending::Ending;
use tenure_domain::policy::report::{self as rules, TaskResult};
use tenure_engine::ops::report::{RunReport, stop_waiting};
use tenure_engine::ops::task_command::end_delay;

/// Body of reportCompleted from old workers.
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
const RELEASING: Template = Scope("queue:reclaim-task:<taskId>/<runId>");
const REPEATS: &str = "The credentials of a claim allow this call, which can be repeated.";
const RESULTS: &str = "A worker can return a `result`, which getTaskResult and waitForTask show. A repeat with \
                       another result is refused with 409; a repeat without one succeeds.";

/// `POST /task/:taskId/runs/:runId/completed`
pub fn report_completed() -> Endpoint {
    Endpoint::post("reportCompleted", completed)
        .no_pool()
        .scopes(SCOPES)
        .early_check(Call::authorize_by_path)
        .described("queue", "Report that a run succeeded", |operation, sample| {
            with_result(described(operation, sample, "completed"))
        })
}

/// `POST /task/:taskId/runs/:runId/failed`
pub fn report_failed() -> Endpoint {
    Endpoint::post("reportFailed", failed).no_pool().scopes(SCOPES).early_check(Call::authorize_by_path).described(
        "queue",
        "Report that a run failed",
        |operation, sample| with_result(described(operation, sample, "failed")),
    )
}

/// `POST /task/:taskId/runs/:runId/exception`
pub fn report_exception() -> Endpoint {
    Endpoint::post("reportException", exception)
        .no_pool()
        .scopes(SCOPES)
        .early_check(Call::authorize_by_path)
        .described("queue", "Report that a run could not be done", |operation, sample| {
            described(operation, sample, "exception")
                .about(&format!(
                    "{REPEATS} `worker-shutdown` and `intermittent-task` cause a retry while retries are left; after \
                     `intermittent-task` not before `retryAfter` seconds, if given."
                ))
                .takes::<ReportExceptionRequest>(&json!({"reason": "malformed-payload"}))
                .refuses(InputError, "`retryAfter` is out of range, or given with another reason")
        })
}

/// `POST /tasks/:taskId/runs/:runId/release`
pub fn release_task() -> Endpoint {
    Endpoint::post("releaseTask", release).no_pool().scopes(RELEASING).early_check(Call::authorize_by_path).described(
        "tenure",
        "Release a run that has not failed",
        |operation, sample| {
            let mut released = sample.status("exception");
            released["state"] = "pending".into();
            released["runs"][0]["reasonResolved"] = "worker-shutdown".into();
            operation
                .about(
                    "The run ends as `exception` with the reason `worker-shutdown`, and the next one is pending: \
                     with the position of the released run, or after `delay` seconds or `notBefore`, but at the \
                     deadline at the latest. This uses no retry; up to 200 runs of a task can be released. The \
                     credentials of a claim allow this call. A repeat for a released run returns the same.",
                )
                .may_take_json::<ReleaseRequest>(&json!({"delay": 60}))
                .checks_body()
                .answers::<StatusBody<'_>>("The new status", &json!({"status": released}))
                .refuses(ResourceNotFound, "the task or the run does not exist")
                .refuses(InputError, "`delay` is out of range, or both `delay` and `notBefore` are given")
                .refuses(
                    RequestConflict,
                    "the run is not running, or 200 runs of the task have ended without using a retry: the worker \
                     still holds the run",
                )
        },
    )
}

fn with_result(operation: Operation) -> Operation {
    operation
        .about(&format!("{REPEATS} {RESULTS}"))
        .may_take_json::<ReportedResult<'_>>(&json!({"result": {"rows": 12}}))
        .refuses(InputError, "`result` has more than 65,536 bytes as compact JSON")
}

fn described(operation: Operation, sample: &Sample, state: &str) -> Operation {
    operation
        .answers::<StatusBody<'_>>("The new status", &json!({"status": sample.status(state)}))
        .refuses(ResourceNotFound, "the task or the run does not exist")
        .refuses(RequestConflict, "the run is not running: it was never claimed, or it has ended in another way")
}

async fn completed(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    // The operation once had no input: a body that is neither the legacy one nor contains a result
    // is ignored.
    let legacy: Legacy = call.json_or_default().unwrap_or_default();
    returned(app, call, if legacy.success { Report::Completed } else { Report::Failed }).await
}

async fn failed(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    returned(app, call, Report::Failed).await
}

async fn returned(app: Api, call: Arc<Call>, report: Report) -> Result<Response, ApiError> {
    call.authorize_by_path()?;
    let result = result(&call)?;
    submit(app, call, |member| RunReport { ending: Ending::Reported(report), result, ..member }).await
}

/// Parses the result in a body, if any. Stock clients send no body or an empty object. An invalid
/// body is ignored, unless it contains a result.
fn result(call: &Call) -> Result<Option<TaskResult>, ApiError> {
    const FIELD: &[u8] = b"\"result\"";
    // The key may contain escapes.
    let names = || serde_json::from_slice::<HashMap<String, IgnoredAny>>(&call.body);
    let has_field = call.body.windows(FIELD.len()).any(|part| part == FIELD)
        || (call.body.contains(&b'\\') && names().is_ok_and(|names| names.contains_key("result")));
    if !has_field {
        return Ok(None);
    }
    let sent: ReportedResult<'_> = call.json()?;
    Ok(sent.result.map(TaskResult::from_request).transpose()?)
}

async fn exception(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    call.authorize_by_path()?;
    let body: ReportExceptionRequest = call.json()?;
    let start = rules::retry_after(body.reason, body.retry_after)?;
    call.no_query()?;
    if body.reason == ExceptionReason::WorkerShutdown {
        let status = app.engine.status.submit(call.task_id()?).await?;
        stop_waiting(&app.engine.pool, &app.engine.queues, &app.engine.notifiers, &status, call.run_id()?).await?;
    }
    let ending = Ending::Reported(Report::Exception(body.reason));
    submit(app, call, |member| RunReport { ending, start, ..member }).await
}

async fn release(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    call.authorize_by_path()?;
    let start = rules::release(&call.json_or_default::<ReleaseRequest>()?)?;
    let task = call.task_id()?;
    let released = submit(app.clone(), call, |member| RunReport { ending: Ending::Released, start, ..member }).await?;
    if start.is_some() {
        end_delay(&app.engine.pool, &app.engine.notifiers, task).await?;
    }
    Ok(released)
}

async fn submit(
    app: Api,
    call: Arc<Call>,
    complete: impl FnOnce(RunReport) -> RunReport,
) -> Result<Response, ApiError> {
    let (task, run) = (call.task_id()?, call.run_id()?);
    call.no_query()?;
    let member = complete(RunReport::plain(task, run, Report::Completed));
    let task = app.engine.report.submit(member).await?;
    ok(&StatusBody { status: &task.into_status() })
}
