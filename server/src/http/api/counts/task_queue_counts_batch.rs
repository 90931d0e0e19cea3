//! taskQueueCountsBatch.

use tenure_api::bodies::{COUNTS_BATCH_MAX, CountsBatchRequest};

use tenure_store::counters::{self, Counts};

use crate::http::api::prelude::*;

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
struct BatchBody<'a> {
    task_queue_counts: Vec<BatchEntry<'a>>,
}

/// `POST /task-queues/counts`
pub fn endpoint() -> Endpoint {
    Endpoint::post("taskQueueCountsBatch", task_queue_counts_batch)
        .reads()
        .scopes(AllOf(&[ForEach {
            item: "taskQueueId",
            list: "taskQueueIds",
            scopes: &["queue:pending-count:<taskQueueId>", "queue:claimed-count:<taskQueueId>"],
        }]))
        .long_lists()
        .described("queue", "Count the tasks of up to 1000 queues", describe)
}

fn describe(operation: Operation, _: &Sample) -> Operation {
    operation.experimental().takes::<CountsBatchRequest>(&json!({"taskQueueIds": [QUEUE]})).answers::<BatchBody<'_>>(
        "The numbers, each queue once, in the order of the names",
        &json!({"taskQueueCounts": [{"taskQueueId": QUEUE, "pendingTasks": 1, "claimedTasks": 0}]}),
    )
}

async fn task_queue_counts_batch(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    call.no_query()?;
    let CountsBatchRequest { mut task_queue_ids } = call.json()?;
    if task_queue_ids.len() > COUNTS_BATCH_MAX {
        let message = format!("the body: `taskQueueIds` must have at most {COUNTS_BATCH_MAX} items");
        return Err(ApiError::new(ErrorCode::InputValidationError, message));
    }
    call.authorize(&Values::of_path().list("taskQueueIds", task_queue_ids.iter().map(TaskQueueId::as_str)))?;
    task_queue_ids.sort();
    task_queue_ids.dedup();
    let mut conn = app.engine.pool.acquire().await?;
    let counts = counters::get_counts(&mut conn, app.engine.sequencer.reached(), &task_queue_ids).await?;
    let entry = |(task_queue_id, counts): (_, Counts)| BatchEntry {
        task_queue_id,
        pending_tasks: counts.pending,
        claimed_tasks: counts.claimed,
    };
    ok(&BatchBody { task_queue_counts: task_queue_ids.iter().zip(counts).map(entry).collect() })
}
