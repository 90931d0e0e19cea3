//! listQueues: all of them with their counts.

use std::sync::Arc;

use axum::response::Response;
use serde::Serialize;
use serde_json::json;
use utoipa::ToSchema;

use super::ok;
use crate::http::app::App;
use crate::http::call::Call;
use crate::http::docs::Sample;
use crate::http::docs::operation::Operation;
use crate::http::docs::sample::QUEUE;
use crate::http::endpoint::Endpoint;
use crate::http::error::ApiError;
use crate::http::scopes::Template::{self, Scope};
use tenure_store::counters;

/// Every queue.
#[derive(Serialize, ToSchema)]
#[schema(as = Queues)]
struct Body {
    /// By name.
    queues: Vec<QueueBody>,
}

/// A queue with its counts.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Queue)]
struct QueueBody {
    /// Its name.
    task_queue_id: String,
    /// Runs that wait for a worker.
    pending_tasks: i64,
    /// Runs that a worker holds.
    claimed_tasks: i64,
}

/// `GET /api/tenure/v1/queues`: every queue that ever had a task pending, by name.
pub fn endpoint() -> Endpoint {
    Endpoint::get("listQueues", list_queues).scopes(SCOPES).described(
        "tenure",
        "List all queues with their counts",
        describe,
    )
}

const SCOPES: Template = Scope("queue:list-task-queues");

fn describe(operation: Operation, _: &Sample) -> Operation {
    operation.about("Every queue that ever had a task pending.").answers::<Body>(
        "The queues, by name",
        &json!({"queues": [{"taskQueueId": QUEUE, "pendingTasks": 1, "claimedTasks": 0}]}),
    )
}

async fn list_queues(app: App, call: Arc<Call>) -> Result<Response, ApiError> {
    call.authorize_by_path()?;
    call.no_query()?;
    let sequenced = app.engine.sequencer.reached();
    let mut counts = counters::list_counts(&mut *app.engine.pool.acquire().await?, sequenced).await?;
    counts.sort_by(|(one, _), (other, _)| one.cmp(other));
    let queue = |(task_queue_id, counts): (String, counters::Counts)| QueueBody {
        task_queue_id,
        pending_tasks: counts.pending,
        claimed_tasks: counts.claimed,
    };
    ok(&Body { queues: counts.into_iter().map(queue).collect() })
}
