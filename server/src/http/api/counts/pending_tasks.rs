//! pendingTasks.

use super::{CountsBody, body, example, one};
use crate::http::api::prelude::*;

/// `GET /pending/:taskQueueId`
pub fn endpoint() -> Endpoint {
    Endpoint::get("pendingTasks", pending_tasks).scopes(Scope("queue:pending-count:<taskQueueId>")).described(
        "queue",
        "Count a queue's pending tasks",
        describe,
    )
}

fn describe(operation: Operation, _: &Sample) -> Operation {
    operation
        .deprecated()
        .about("A queue that was never used has none.")
        .answers::<CountsBody<'_>>("The number; `claimedTasks` is left out", &example())
}

async fn pending_tasks(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    call.authorize_by_path()?;
    let queue = call.task_queue_id()?;
    call.no_query()?;
    let counts = one(&app, &queue).await?;
    ok(&body(&queue, counts, None))
}
