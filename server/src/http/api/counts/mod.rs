//! How many tasks queues have: pendingTasks, taskQueueCounts, taskQueueCountsBatch.

pub mod pending_tasks;
pub mod task_queue_counts;
pub mod task_queue_counts_batch;

use tenure_store::counters::{self, Counts};

use crate::http::api::prelude::*;

/// How many tasks a queue has.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = TaskQueueCounts)]
struct CountsBody<'a> {
    provisioner_id: &'a str,
    worker_type: &'a str,
    task_queue_id: &'a TaskQueueId,
    pending_tasks: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    claimed_tasks: Option<i64>,
}

/// The numbers of the examples.
fn example() -> Value {
    json!({"provisionerId": "acme", "workerType": "linux", "taskQueueId": QUEUE, "pendingTasks": 1})
}

async fn one(app: &Api, queue: &TaskQueueId) -> Result<Counts, ApiError> {
    let mut conn = app.engine.pool.acquire().await?;
    let counts = counters::get_counts(&mut conn, app.engine.sequencer.reached(), std::slice::from_ref(queue)).await?;
    let counts = counts.first().copied().unwrap_or_default();
    #[cfg(feature = "test-util")]
    if tenure_store::breakage::is_on(tenure_store::breakage::Breakage::CountOffByOne) {
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
