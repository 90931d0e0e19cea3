//! waitForTask.

use std::time::Duration;

use serde_json::value::RawValue;
use tenure_api::bodies::Status;
use tenure_api::policy::Failure;
use tenure_api::states::EndedBy;

use super::task_result::{Returned, for_caller};
use crate::http::api::prelude::*;
use crate::http::declaration::ANSWER_MAX;
use tenure_engine::ops::wait::{WAIT_TIMEOUT_DEFAULT, WAIT_TIMEOUT_MAX, wait};

/// A task after the wait.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Waited)]
struct Body {
    /// Current status.
    status: Status,
    /// True if the task is resolved. If false, the wait timed out or the server is stopping.
    resolved: bool,
    /// Cause of the last run's end, if `reasonResolved` does not state it; as in `why`.
    #[serde(skip_serializing_if = "Option::is_none")]
    ended_by: Option<EndedBy>,
    /// Result of the last run. Absent if there is none, and without the scope
    /// `tenure:get-result:<taskQueueId>`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    result: Option<Box<RawValue>>,
    /// Why the last run failed, if its worker reported it; with the same scope.
    #[serde(skip_serializing_if = "Option::is_none")]
    failure: Option<Failure>,
}

/// `GET /api/tenure/v1/tasks/:taskId/wait?seconds=`
pub fn endpoint() -> Endpoint {
    Endpoint::get("waitForTask", wait_for_task)
        .no_pool()
        .scopes(Scope("queue:status:<taskId>"))
        .waits(|_| ANSWER_MAX + WAIT_TIMEOUT_MAX)
        .described("tenure", "Wait until a task is resolved", describe)
}

fn describe(operation: Operation, sample: &Sample) -> Operation {
    let seconds = json!({
        "type": "integer",
        "minimum": 0,
        "maximum": WAIT_TIMEOUT_MAX.as_secs(),
        "default": WAIT_TIMEOUT_DEFAULT.as_secs(),
    });
    operation
        .about(
            "Returns when the task is resolved or the time is up, with the result and the failure of the last run if \
             there are any and the caller has `tenure:get-result:<taskQueueId>`.",
        )
        .query("seconds", "How long to wait", &seconds, &json!(5))
        .answers::<Body>(
            "The task; `resolved` is true if it is resolved",
            &json!({"status": sample.status("completed"), "resolved": true}),
        )
        .refuses(ResourceNotFound, "the task does not exist")
}

async fn wait_for_task(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    call.authorize_by_path()?;
    let id = call.task_id()?;
    let wait_timeout = wait_timeout(&call)?;
    let (engine, caller) = (&app.engine, call.caller());
    let waiting = wait(&engine.status, &engine.task_waits, &app.drain, id, caller, wait_timeout);
    let waited = call.wait_for(&app.intake, &Values::of_path(), waiting).await?;
    call.note_wait(waited.waited);
    // `waited` holds a permit, so waiting callers read one after the other.
    let Returned { result, failure } =
        if waited.resolved { for_caller(&app, &call, &waited.task).await? } else { Returned::default() };
    let ended_by = waited.task.ended.last().filter(|_| waited.resolved).and_then(|run| run.ended_by);
    ok(&Body { status: waited.task.status(), resolved: waited.resolved, ended_by, result, failure })
}

fn wait_timeout(call: &Call) -> Result<Duration, ApiError> {
    let Some((_, value)) = call.query(&["seconds"])?.pop() else { return Ok(WAIT_TIMEOUT_DEFAULT) };
    let digits = !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit());
    let seconds = if digits { value.parse().ok() } else { None };
    seconds.map(Duration::from_secs).filter(|wait_timeout| *wait_timeout <= WAIT_TIMEOUT_MAX).ok_or_else(|| {
        let most = WAIT_TIMEOUT_MAX.as_secs();
        ApiError::arguments(format!("the query parameter `seconds` must be a whole number from 0 to {most}"))
    })
}
