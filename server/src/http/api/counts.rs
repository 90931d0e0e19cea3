//! pendingTasks, taskQueueCounts, taskQueueCountsBatch.

use std::sync::Arc;

use axum::response::Response;
use serde::Serialize;
use tenure_api::bodies::{COUNTS_BATCH_MAX, CountsBatchRequest};
use tenure_api::errors::ErrorCode;
use tenure_api::ids::TaskQueueId;
use utoipa::ToSchema;

use super::ok;
use crate::domain::scopes::Expression;
use crate::http::app::App;
use crate::http::call::Call;
use crate::http::error::ApiError;
use crate::store::counters::{self, Counts};

/// How many tasks a queue has.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = TaskQueueCounts)]
pub(in crate::http) struct CountsBody<'a> {
    provisioner_id: &'a str,
    worker_type: &'a str,
    task_queue_id: &'a TaskQueueId,
    pending_tasks: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    claimed_tasks: Option<i64>,
}

/// How many tasks a queue has, among others.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = TaskQueueCountsEntry)]
struct BatchEntry<'a> {
    task_queue_id: &'a TaskQueueId,
    pending_tasks: i64,
    claimed_tasks: i64,
}

/// How many tasks several queues have.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = TaskQueueCountsBatch)]
pub(in crate::http) struct BatchBody<'a> {
    task_queue_counts: Vec<BatchEntry<'a>>,
}

/// `GET /pending/:taskQueueId`
pub async fn pending_tasks(app: App, call: Arc<Call>) -> Result<Response, ApiError> {
    call.authorize(&Expression::from(format!("queue:pending-count:{}", call.task_queue_text())))?;
    let queue = call.task_queue_id()?;
    call.no_query()?;
    let counts = one(&app, &queue).await?;
    ok(&body(&queue, counts, None))
}

/// `GET /task-queues/:taskQueueId/counts`
pub async fn task_queue_counts(app: App, call: Arc<Call>) -> Result<Response, ApiError> {
    call.authorize(&both(&call.task_queue_text()))?;
    let queue = call.task_queue_id()?;
    call.no_query()?;
    let counts = one(&app, &queue).await?;
    ok(&body(&queue, counts, Some(counts.claimed)))
}

/// `POST /task-queues/counts`
pub async fn task_queue_counts_batch(app: App, call: Arc<Call>) -> Result<Response, ApiError> {
    call.no_query()?;
    let CountsBatchRequest { mut task_queue_ids } = call.json()?;
    if task_queue_ids.len() > COUNTS_BATCH_MAX {
        let message = format!("the body: `taskQueueIds` must have at most {COUNTS_BATCH_MAX} items");
        return Err(ApiError::new(ErrorCode::InputValidationError, message));
    }
    call.authorize(&Expression::all_of(task_queue_ids.iter().map(|queue| both(queue.as_str()))))?;
    task_queue_ids.sort();
    task_queue_ids.dedup();
    let mut conn = app.engine.pool.acquire().await?;
    let counts = counters::get_counts(&mut conn, &task_queue_ids).await?;
    let entry = |(task_queue_id, counts): (_, Counts)| BatchEntry {
        task_queue_id,
        pending_tasks: counts.pending,
        claimed_tasks: counts.claimed,
    };
    ok(&BatchBody { task_queue_counts: task_queue_ids.iter().zip(counts).map(entry).collect() })
}

fn both(queue: &str) -> Expression {
    Expression::all_of([format!("queue:pending-count:{queue}"), format!("queue:claimed-count:{queue}")])
}

async fn one(app: &App, queue: &TaskQueueId) -> Result<Counts, ApiError> {
    let mut conn = app.engine.pool.acquire().await?;
    let counts = counters::get_counts(&mut conn, std::slice::from_ref(queue)).await?;
    let counts = counts.first().copied().unwrap_or_default();
    #[cfg(feature = "test-util")]
    if crate::breakage::is_on(crate::breakage::Breakage::CountOffByOne) {
        return Ok(Counts { pending: counts.pending + 1, ..counts });
    }
    Ok(counts)
}

fn body(queue: &TaskQueueId, counts: Counts, claimed_tasks: Option<i64>) -> CountsBody<'_> {
    CountsBody {
        provisioner_id: queue.provisioner_id(),
        worker_type: queue.worker_type(),
        task_queue_id: queue,
        pending_tasks: counts.pending,
        claimed_tasks,
    }
}
