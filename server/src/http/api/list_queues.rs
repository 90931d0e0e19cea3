//! listQueues: all queues with their counts.

use tenure_domain::policy::counts::shown;
use tenure_store::queue_counts::{self, ListedQueue, Listing};

use crate::http::api::prelude::*;

/// All queues.
#[derive(Serialize, ToSchema)]
#[schema(as = Queues)]
struct Body {
    /// Ordered by name.
    queues: Vec<QueueBody>,
}

/// A queue with its counts.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Queue)]
struct QueueBody {
    /// Name of the queue.
    task_queue_id: String,
    /// Runs that wait for a worker.
    pending_tasks: i64,
    /// Runs that a worker holds.
    claimed_tasks: i64,
    /// Pending runs that no worker can claim before a set time; not part of `pendingTasks`.
    delayed_tasks: i64,
    /// Runs that would start now, given enough workers; 0 while the queue is paused.
    runnable_tasks: i64,
    /// Start of the pause; absent if the queue is not paused.
    #[serde(skip_serializing_if = "Option::is_none")]
    paused: Option<Timestamp>,
}

/// Every queue that is paused or ever had a pending task, by name.
pub fn endpoint() -> Endpoint {
    Endpoint::get("listQueues", list_queues).scopes(Scope("queue:list-task-queues")).described(
        "tenure",
        "List all queues with their counts",
        describe,
    )
}

fn describe(operation: Operation, _: &Sample) -> Operation {
    operation.about("Every queue that has ever had a pending task, or is paused.").answers::<Body>(
        "The queues, by name",
        &json!({"queues": [
            {"taskQueueId": QUEUE, "pendingTasks": 1, "claimedTasks": 0, "delayedTasks": 0, "runnableTasks": 1},
        ]}),
    )
}

async fn list_queues(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    call.authorize_by_path()?;
    call.no_query()?;
    let sequenced = app.engine.sequencer.reached();
    let marks = app.engine.admission_marks.all();
    let mut conn = app.engine.pool.acquire().await?;
    let listed = queue_counts::list(&mut conn, sequenced, Listing::All, &marks).await?;
    drop(conn);
    let queue = |queue: ListedQueue| {
        let counts = shown(queue.counted, queue.assigned, queue.admissible, queue.paused.is_some());
        QueueBody {
            task_queue_id: queue.name,
            pending_tasks: counts.pending,
            claimed_tasks: counts.claimed,
            delayed_tasks: counts.delayed,
            runnable_tasks: counts.runnable,
            paused: queue.paused.map(Timestamp::new),
        }
    };
    ok(&Body { queues: listed.into_iter().map(queue).collect() })
}
