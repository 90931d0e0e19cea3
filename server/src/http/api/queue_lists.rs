//! listPendingTasks, listClaimedTasks.

use std::sync::Arc;

use axum::response::Response;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use chrono::DateTime;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use tenure_api::bodies::TaskDefinition;
use tenure_api::dates::Timestamp;
use tenure_api::ids::{RunId, TaskId};
use utoipa::ToSchema;

use super::{ok, to_json};
use crate::domain::scopes::Expression;
use crate::http::app::App;
use crate::http::call::Call;
use crate::http::error::ApiError;
use crate::ops::list_runs;

/// A run that waits.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = PendingTask)]
struct Pending {
    /// The task.
    task_id: TaskId,
    /// The run.
    run_id: RunId,
    /// The task as it was created.
    #[schema(value_type = TaskDefinition<'static>)]
    task: Box<RawValue>,
    /// Since when the run waits.
    inserted: Timestamp,
}

/// A page of a queue's pending runs.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = PendingTasks)]
pub(in crate::http) struct PendingBody {
    /// In the order in which they became pending, whatever their priorities.
    tasks: Vec<Pending>,
    /// For the next page; absent on the last one.
    #[serde(skip_serializing_if = "Option::is_none")]
    continuation_token: Option<String>,
}

/// A run that a worker holds.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = ClaimedTask)]
struct Claimed {
    /// The task.
    task_id: TaskId,
    /// The run.
    run_id: RunId,
    /// Who holds it.
    worker_group: String,
    /// See `workerGroup`.
    worker_id: String,
    /// Since when.
    claimed: Timestamp,
    /// The task as it was created.
    #[schema(value_type = TaskDefinition<'static>)]
    task: Box<RawValue>,
}

/// A page of a queue's claimed runs.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = ClaimedTasks)]
pub(in crate::http) struct ClaimedBody {
    /// In the order in which they were claimed.
    tasks: Vec<Claimed>,
    /// For the next page; absent on the last one.
    #[serde(skip_serializing_if = "Option::is_none")]
    continuation_token: Option<String>,
}

/// `GET /task-queues/:taskQueueId/pending`
pub async fn list_pending_tasks(app: App, call: Arc<Call>) -> Result<Response, ApiError> {
    call.authorize(&Expression::from(format!("queue:pending-list:{}", call.task_queue_text())))?;
    let queue = call.task_queue_id()?;
    let (limit, token) = call.page_and_token()?;
    let Some(key) = app.engine.queues.find_key(&app.engine.pool, &queue).await? else {
        return ok(&PendingBody { tasks: Vec::new(), continuation_token: None });
    };
    let page = list_runs::list_pending(&app.engine.pool, key, place(token), limit).await?;
    let tasks = page.runs.into_iter().map(|(run, definition)| {
        Ok(Pending { task_id: run.task, run_id: run.run, task: json(definition)?, inserted: run.scheduled.into() })
    });
    ok(&PendingBody {
        tasks: tasks.collect::<Result<_, ApiError>>()?,
        continuation_token: page.next.map(|next| to_token(&next)).transpose()?,
    })
}

/// `GET /task-queues/:taskQueueId/claimed`
pub async fn list_claimed_tasks(app: App, call: Arc<Call>) -> Result<Response, ApiError> {
    call.authorize(&Expression::from(format!("queue:claimed-list:{}", call.task_queue_text())))?;
    let queue = call.task_queue_id()?;
    let (limit, token) = call.page_and_token()?;
    let Some(key) = app.engine.queues.find_key(&app.engine.pool, &queue).await? else {
        return ok(&ClaimedBody { tasks: Vec::new(), continuation_token: None });
    };
    let after = place(token).and_then(|(micros, seq)| Some((DateTime::from_timestamp_micros(micros)?, seq)));
    let page = list_runs::list_claimed(&app.engine.pool, key, after, limit).await?;
    let tasks = page.runs.into_iter().map(|(run, definition)| {
        Ok(Claimed {
            task_id: run.task,
            run_id: run.run,
            worker_group: run.worker_group,
            worker_id: run.worker_id,
            claimed: run.started.into(),
            task: json(definition)?,
        })
    });
    let next = page.next.map(|(started, seq)| to_token(&(started.timestamp_micros(), seq)));
    ok(&ClaimedBody { tasks: tasks.collect::<Result<_, ApiError>>()?, continuation_token: next.transpose()? })
}

fn json(definition: String) -> Result<Box<RawValue>, ApiError> {
    RawValue::from_string(definition).map_err(|_| ApiError::internal("a stored definition is not JSON"))
}

fn to_token(place: &impl Serialize) -> Result<String, ApiError> {
    Ok(URL_SAFE_NO_PAD.encode(to_json(place)?))
}

/// Where the page begins. A token that is none of this list's begins at the start, as it does in Taskcluster's.
fn place<T: DeserializeOwned>(token: Option<String>) -> Option<T> {
    serde_json::from_slice(&URL_SAFE_NO_PAD.decode(token?).ok()?).ok()
}
