//! queuePolicy.

use tenure_api::policy::PolicyOfQueue;

use super::{READING, body, example};
use crate::http::api::prelude::*;
use tenure_engine::ops::queue_policy as ops;

/// `GET /queues/:taskQueueId/policy`
pub fn endpoint() -> Endpoint {
    Endpoint::get("queuePolicy", queue_policy).scopes(READING).described(
        "tenure",
        "Read the policy of a queue",
        describe,
    )
}

fn describe(operation: Operation, sample: &Sample) -> Operation {
    operation
        .answers::<PolicyOfQueue>("The policy", &example(sample))
        .refuses(ResourceNotFound, "the queue has no policy")
}

async fn queue_policy(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    call.authorize_by_path()?;
    let queue = call.task_queue_id()?;
    call.no_query()?;
    let stored = ops::get(app.engine.queue_parts(), &queue).await?;
    ok(&body(queue, stored)?)
}
