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
use tenure_domain::policy::report::{self as rules, RunFailure, TaskResult};
use tenure_domain::task::Task;
use tenure_engine::engine::Engine;
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
const LATE: &str = "If the run was taken from its worker by its `completeTime`, or because the scheduler was replaced, \
                    and the queue's policy has `lateResult` `first-wins`, the report resolves a task that is \
                    unresolved: the open run ends as `superseded`, and a completed run is added.";
const FAILURES: &str = "The worker can say why in `failure`, which getTaskResult, waitForTask and whyTask show. A \
                        repeat with another failure is refused with 409; a repeat without one succeeds.";
const TOO_LARGE: &str = "`result` has more than 65,536 bytes as compact JSON";
const BAD_FIELD: &str = "`failure` or `retry` does not match its schema; the message names the field";
const BAD_FAILURE: &str = "`failure.message` has none or more than 4,096 bytes, `failure.kind` has none or more than \
                           255 characters, or one of them contains U+0000";

/// `POST /task/:taskId/runs/:runId/completed`
pub fn report_completed() -> Endpoint {
    Endpoint::post("reportCompleted", completed)
        .no_pool()
        .scopes(SCOPES)
        .early_check(Call::authorize_by_path)
        .described("queue", "Report that a run succeeded", |operation, sample| {
            described(operation, sample, "completed")
                .about(&format!("{REPEATS} {RESULTS} {LATE}"))
                .may_take_json::<ReportedResult<'_>>(&json!({"result": {"rows": 12}}))
                .refuses(InputError, TOO_LARGE)
                .refuses(InputError, "`failure` or `retry` is given: the run was completed")
                .refuses(ErrorCode::InputValidationError, BAD_FIELD)
        })
}

/// `POST /task/:taskId/runs/:runId/failed`
pub fn report_failed() -> Endpoint {
    Endpoint::post("reportFailed", failed).no_pool().scopes(SCOPES).early_check(Call::authorize_by_path).described(
        "queue",
        "Report that a run failed",
        |operation, sample| {
            described(operation, sample, "failed")
                .about(&format!("{REPEATS} {RESULTS} {FAILURES}"))
                .may_take_json::<ReportedResult<'_>>(&json!({"failure": {"message": "exit code 7", "exitCode": 7}}))
                .refuses(InputError, TOO_LARGE)
                .refuses(InputError, BAD_FAILURE)
                .refuses(ErrorCode::InputValidationError, BAD_FIELD)
        },
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
                     `intermittent-task` not before `retryAfter` seconds, if given. {FAILURES}"
                ))
                .takes::<ReportExceptionRequest>(&json!({"reason": "malformed-payload"}))
                .refuses(InputError, "`retryAfter` is out of range, or given with another reason")
                .refuses(InputError, BAD_FAILURE)
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

fn described(operation: Operation, sample: &Sample, state: &str) -> Operation {
    operation
        .answers::<StatusBody<'_>>("The new status", &json!({"status": sample.status(state)}))
        .refuses(ResourceNotFound, "the task or the run does not exist")
        .refuses(RequestConflict, "the run is not running: it was never claimed, or it has ended in another way")
}

async fn completed(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    // The operation once had no input: a body that is neither the legacy one nor contains a field of
    // `ReportedResult` is ignored.
    let legacy: Legacy = call.json_or_default().unwrap_or_default();
    if !legacy.success {
        return failed(app, call).await;
    }
    call.authorize_by_path()?;
    let ReportedResult { result, failure, retry } = reported(&call)?;
    rules::of_completed(failure.as_ref(), retry)?;
    let result = result.map(TaskResult::from_request).transpose()?;
    submit(app, call, |member| RunReport { result, ..member }).await
}

async fn failed(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    call.authorize_by_path()?;
    let ReportedResult { result, failure, retry } = reported(&call)?;
    let result = result.map(TaskResult::from_request).transpose()?;
    let failure = failure.as_ref().map(RunFailure::from_request).transpose()?;
    let failure = app.engine.gate.admit(failure).await?;
    let ending = Ending::Reported(rules::failed(retry));
    submit(app, call, |member| RunReport { ending, result, failure, ..member }).await
}

/// Parses the fields of a body, if any. Stock clients send no body or an empty object. An invalid
/// body is ignored, unless it contains one of the fields.
fn reported(call: &Call) -> Result<ReportedResult<'_>, ApiError> {
    const NAMES: [&str; 3] = ["result", "failure", "retry"];
    const QUOTED: [&[u8]; 3] = [b"\"result\"", b"\"failure\"", b"\"retry\""];
    // A key may contain escapes.
    let names = || serde_json::from_slice::<HashMap<String, IgnoredAny>>(&call.body);
    let has_field = QUOTED.iter().any(|quoted| call.body.windows(quoted.len()).any(|part| part == *quoted))
        || (call.body.contains(&b'\\')
            && names().is_ok_and(|names| NAMES.iter().any(|name| names.contains_key(*name))));
    if has_field { call.json() } else { Ok(ReportedResult::default()) }
}

async fn exception(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    call.authorize_by_path()?;
    let body: ReportExceptionRequest = call.json()?;
    let start = rules::retry_after(body.reason, body.retry_after)?;
    let failure = body.failure.as_ref().map(RunFailure::from_request).transpose()?;
    call.no_query()?;
    let failure = app.engine.gate.admit(failure).await?;
    if body.reason == ExceptionReason::WorkerShutdown {
        let status = app.engine.status.submit(call.task_id()?).await?;
        stop_waiting(&app.engine.pool, &app.engine.queues, &app.engine.notifiers, &status, call.run_id()?).await?;
    }
    let ending = Ending::Reported(Report::Exception(body.reason));
    submit(app, call, |member| RunReport { ending, failure, start, ..member }).await
}

async fn release(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    call.authorize_by_path()?;
    let sent: ReleaseRequest = call.json_or_default()?;
    let (task, run) = (call.task_id()?, call.run_id()?);
    call.no_query()?;
    let released = release_run(&app.engine, task, run, &sent).await?;
    ok(&StatusBody { status: &released.into_status() })
}

/// Releases a claimed run, for its worker or an operator.
pub(in crate::http) async fn release_run(
    engine: &Engine,
    task: TaskId,
    run: RunId,
    sent: &ReleaseRequest,
) -> Result<Task, ApiError> {
    let start = rules::release(sent)?;
    let member = RunReport::plain(task, run, Report::Completed);
    let released = engine.report.submit(RunReport { ending: Ending::Released, start, ..member }).await?;
    if start.is_some() {
        end_delay(&engine.pool, &engine.notifiers, task).await?;
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
