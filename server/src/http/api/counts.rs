//! Numbers of tasks in queues: pendingTasks, taskQueueCounts, taskQueueCountsBatch.

use tenure_api::bodies::{COUNTS_BATCH_MAX, CountsBatchRequest};

use crate::http::api::prelude::*;
use crate::http::api::queue_views::unless_queue;
use tenure_store::counters::{self, Counts};

/// Numbers of a queue's pending and claimed tasks.
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

/// `GET /pending/:taskQueueId`
pub fn pending_tasks() -> Endpoint {
    Endpoint::get("pendingTasks", handle_pending_tasks).scopes(Scope("queue:pending-count:<taskQueueId>")).described(
        "queue",
        "Count a queue's pending tasks",
        describe_pending_tasks,
    )
}

fn describe_pending_tasks(operation: Operation, _: &Sample) -> Operation {
    operation
        .deprecated()
        .about("A queue that was never used has none.")
        .answers::<CountsBody<'_>>("The number; `claimedTasks` is left out", &example())
}

async fn handle_pending_tasks(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    let queue = call.only_task_queue()?;
    let counts = one(&app, &queue).await?;
    ok(&body(&queue, counts, None))
}

/// `GET /task-queues/:taskQueueId/counts`
pub fn task_queue_counts() -> Endpoint {
    Endpoint::get("taskQueueCounts", unless_queue("counts", handle_task_queue_counts))
        .scopes(AllOf(&[Scope("queue:pending-count:<taskQueueId>"), Scope("queue:claimed-count:<taskQueueId>")]))
        .described("queue", "Count a queue's pending and claimed tasks", describe_task_queue_counts)
}

fn describe_task_queue_counts(operation: Operation, _: &Sample) -> Operation {
    let mut counts = example();
    counts["claimedTasks"] = 0.into();
    operation.answers::<CountsBody<'_>>("The numbers", &counts)
}

async fn handle_task_queue_counts(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    let queue = call.only_task_queue()?;
    let counts = one(&app, &queue).await?;
    ok(&body(&queue, counts, Some(counts.claimed)))
}

/// Numbers of one queue's tasks, in a batch.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = TaskQueueCountsEntry)]
struct BatchEntry<'a> {
    task_queue_id: &'a TaskQueueId,
    pending_tasks: i64,
    claimed_tasks: i64,
}

/// Numbers of several queues' tasks.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = TaskQueueCountsBatch)]
struct BatchBody<'a> {
    task_queue_counts: Vec<BatchEntry<'a>>,
}

/// `POST /task-queues/counts`
pub fn task_queue_counts_batch() -> Endpoint {
    Endpoint::post("taskQueueCountsBatch", handle_task_queue_counts_batch)
        .reads()
        .scopes(AllOf(&[ForEach {
            item: "taskQueueId",
            list: "taskQueueIds",
            scopes: &["queue:pending-count:<taskQueueId>", "queue:claimed-count:<taskQueueId>"],
        }]))
        .long_lists()
        .described("queue", "Count the tasks of up to 1000 queues", describe_task_queue_counts_batch)
}

fn describe_task_queue_counts_batch(operation: Operation, _: &Sample) -> Operation {
    operation.experimental().takes::<CountsBatchRequest>(&json!({"taskQueueIds": [QUEUE]})).answers::<BatchBody<'_>>(
        "The counts, each queue once, sorted by name",
        &json!({"taskQueueCounts": [{"taskQueueId": QUEUE, "pendingTasks": 1, "claimedTasks": 0}]}),
    )
}

async fn handle_task_queue_counts_batch(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
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
