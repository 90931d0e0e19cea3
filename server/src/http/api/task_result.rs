//! getTaskResult.

use serde::Deserialize;
use serde_json::value::RawValue;
use tenure_api::policy::{Failure, TaskResult};

use tenure_domain::task::Task;
use tenure_engine::ops::OpError;
use tenure_store::results::{self, Texts};

use crate::http::api::prelude::*;

/// `GET /tasks/:taskId/result`
pub fn endpoint() -> Endpoint {
    Endpoint::get("getTaskResult", get_task_result).scopes(SCOPES).described(
        "tenure",
        "Read the result and the failure of a run",
        describe,
    )
}

/// Separate, because a result is data, unlike a status that many may read.
const SCOPES: Template = Scope("tenure:get-result:<taskQueueId>");

fn describe(operation: Operation, sample: &Sample) -> Operation {
    let run = json!({"type": "integer", "minimum": 0, "maximum": RunId::MAX});
    operation
        .about(
            "The `result` that the worker reported with reportCompleted or reportFailed, as compact JSON, and the \
             `failure` that it reported with reportFailed or reportException.",
        )
        .query("runId", "The run; the last one by default", &run, &json!(null))
        .answers::<TaskResult<'_>>(
            "The result",
            &json!({"taskId": sample.task, "runId": 0, "state": "completed", "result": {"rows": 12}}),
        )
        .refuses(ResourceNotFound, "the task or the run does not exist, or the run has neither result nor failure")
}

async fn get_task_result(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    let id = call.task_id()?;
    // The scope contains the task's queue.
    let task = app.engine.status.submit(id).await?;
    call.authorize(&values(&task))?;
    let run = run_id(&call)?;
    let found = results::find(&mut *app.engine.pool.acquire().await?, id.uuid(), run).await?;
    let returned = found.ok_or_else(|| OpError::NotFound(missing(id, run)))?;
    let Texts { result, failure } = &returned.texts;
    let (result, failure) = (parsed(result.as_deref())?, parsed(failure.as_deref())?);
    ok(&TaskResult { task_id: id, run_id: returned.run, state: returned.state, result, failure })
}

fn values(task: &Task) -> Values<'_> {
    Values::of_path().text("taskQueueId", task.queue.as_str())
}

fn missing(task: TaskId, run: Option<RunId>) -> String {
    match run {
        Some(run) => format!("run {run} of task {task} has neither result nor failure"),
        None => format!("the last run of task {task} has neither result nor failure"),
    }
}

fn parsed<'t, T: Deserialize<'t>>(text: Option<&'t str>) -> Result<Option<T>, ApiError> {
    let parsed = text.map(serde_json::from_str).transpose();
    parsed.map_err(|_| ApiError::internal("a stored result or failure is not the JSON that was checked"))
}

fn run_id(call: &Call) -> Result<Option<RunId>, ApiError> {
    let Some((_, value)) = call.query(&["runId"])?.pop() else { return Ok(None) };
    let digits = !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit());
    let run = if digits { value.parse().ok().and_then(RunId::new) } else { None };
    run.map(Some).ok_or_else(|| {
        ApiError::arguments(format!("the query parameter `runId` must be a whole number from 0 to {}", RunId::MAX))
    })
}

/// Result and failure that the worker of a task's last run reported.
#[derive(Default)]
pub(super) struct Returned {
    pub result: Option<Box<RawValue>>,
    pub failure: Option<Failure>,
}

/// Empty if the caller may not read results.
pub(super) async fn for_caller(app: &Api, call: &Call, task: &Task) -> Result<Returned, ApiError> {
    if !call.is_allowed(&SCOPES, &values(task))? {
        return Ok(Returned::default());
    }
    // The caller has waited already. However many callers waited, they read one after the other.
    let _slot = app.intake.read_slots.queue(call.share()).await;
    let found = results::find(&mut *app.engine.pool.acquire().await?, task.id.uuid(), None).await?;
    let Some(found) = found else { return Ok(Returned::default()) };
    let Texts { result, failure } = &found.texts;
    Ok(Returned { result: parsed(result.as_deref())?, failure: parsed(failure.as_deref())? })
}

/// Why a run failed, if the caller may read results.
pub(super) async fn failure_for_caller(
    app: &Api,
    call: &Call,
    task: TaskId,
    run: Option<RunId>,
    queue: &TaskQueueId,
) -> Result<Option<Failure>, ApiError> {
    if !call.is_allowed(&SCOPES, &Values::of_path().text("taskQueueId", queue.as_str()))? {
        return Ok(None);
    }
    let found = results::find(&mut *app.engine.pool.acquire().await?, task.uuid(), run).await?;
    let text = found.and_then(|found| found.texts.failure);
    parsed(text.as_deref())
}
