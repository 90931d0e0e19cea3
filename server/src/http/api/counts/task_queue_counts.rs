//! taskQueueCounts.

use super::{CountsBody, body, example, one};
use crate::http::api::prelude::*;
use crate::http::api::queue_views::get_task_queue::unless_queue;

/// `GET /task-queues/:taskQueueId/counts`
pub fn endpoint() -> Endpoint {
    Endpoint::get("taskQueueCounts", unless_queue("counts", task_queue_counts))
        .scopes(AllOf(&[Scope("queue:pending-count:<taskQueueId>"), Scope("queue:claimed-count:<taskQueueId>")]))
        .described("queue", "Count a queue's pending and claimed tasks", describe)
}

fn describe(operation: Operation, _: &Sample) -> Operation {
    let mut counts = example();
    counts["claimedTasks"] = 0.into();
    operation.answers::<CountsBody<'_>>("The numbers", &counts)
}

async fn task_queue_counts(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    call.authorize_by_path()?;
    let queue = call.task_queue_id()?;
    call.no_query()?;
    let counts = one(&app, &queue).await?;
    ok(&body(&queue, counts, Some(counts.claimed)))
}
