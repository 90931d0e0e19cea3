//! Tasks that were enqueued from SQL and refused.

use crate::http::api::prelude::*;
use crate::http::docs::parameters::page_of;
use tenure_engine::ops::OpError;
use tenure_store::enqueued::{self, Refused};

/// A task that was enqueued from SQL and refused.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = RefusedEnqueue)]
struct RefusedBody {
    /// Id of the task, which does not exist.
    task_id: TaskId,
    /// The queue.
    task_queue_id: String,
    /// The database role that enqueued it.
    role: String,
    /// Time of the enqueueing transaction.
    enqueued: Timestamp,
    /// Reason of the refusal.
    error: String,
}

fn shown(row: Refused) -> Option<RefusedBody> {
    Some(RefusedBody {
        task_id: TaskId::from_uuid(row.task)?,
        task_queue_id: row.queue,
        role: row.role,
        enqueued: Timestamp::new(row.at),
        error: row.error,
    })
}

/// `GET /api/tenure/v1/enqueued/refused`
pub fn list_refused() -> Endpoint {
    Endpoint::get("listRefusedEnqueues", handle_list_refused).scopes(Scope("tenure:list-enqueued")).described(
        "tenure",
        "List tasks that were enqueued from SQL and refused",
        describe_list_refused,
    )
}

fn describe_list_refused(operation: Operation, sample: &Sample) -> Operation {
    let refused = json!({
        "taskId": sample.task,
        "taskQueueId": QUEUE,
        "role": "shop",
        "enqueued": sample.after(0),
        "error": "client shop lacks a scope",
    });
    paged(operation)
        .about("Oldest first. A refused task is kept for 30 days; at most the newest 10,000 are.")
        .with_schema::<RefusedBody>()
        .answers_with(
            200,
            "A page; with a token if there are more",
            "application/json",
            &page_of("refused", &json!({"$ref": "#/components/schemas/RefusedEnqueue"})),
            &json!({"refused": [refused]}),
        )
}

async fn handle_list_refused(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct Body {
        refused: Vec<RefusedBody>,
        #[serde(skip_serializing_if = "Option::is_none")]
        continuation_token: Option<String>,
    }
    call.authorize_by_path()?;
    let page = Page::read(&call.query(&["continuationToken", "limit"])?)?;
    let after = page.after.as_deref().map(str::parse::<i64>).transpose().map_err(|_| ApiError::unknown_token())?;
    let limit = page.limit.unwrap_or(PAGE_MAX);
    let mut rows = enqueued::list_refused(&app.engine.pool, after, Page::rows(limit)).await?;
    let is_last = rows.len() <= limit;
    rows.truncate(limit);
    let last = rows.last().filter(|_| !is_last);
    let continuation_token = last.map(|last| Page::token(&last.id.to_string()));
    ok(&Body { refused: rows.into_iter().filter_map(shown).collect(), continuation_token })
}

/// `POST /api/tenure/v1/enqueued/:taskId/retry`
pub fn retry() -> Endpoint {
    Endpoint::post("retryEnqueue", handle_retry).scopes(Scope("tenure:manage-enqueued")).described(
        "tenure",
        "Try to create a refused task again",
        describe_retry,
    )
}

fn describe_retry(operation: Operation, _: &Sample) -> Operation {
    operation
        .about("For a task that was enqueued from SQL and refused, after its cause was removed. It is tried within a second.")
        .answers_with(
            200,
            "The task is tried again",
            "application/json",
            &json!({"type": "object", "maxProperties": 0}),
            &json!({}),
        )
        .refuses(ResourceNotFound, "no task with this id was refused, or it was purged")
}

async fn handle_retry(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    call.authorize_by_path()?;
    let id = call.task_id()?;
    call.no_query()?;
    if !enqueued::retry(&app.engine.pool, id.uuid()).await? {
        return Err(OpError::NotFound(format!("task {id} was not refused")).into());
    }
    Ok(raw("{}"))
}
