//! queueKey.

use tenure_api::queue_keys::QueueKey;

use super::{BAD_KEY, READING, example_key, key};
use crate::http::api::prelude::*;
use tenure_engine::ops::queue_keys as ops;

/// `GET /queues/:taskQueueId/keys/:key`
pub fn endpoint() -> Endpoint {
    Endpoint::get("queueKey", queue_key).scopes(READING).described(
        "tenure",
        "Read what holds for one key of a queue",
        describe,
    )
}

fn describe(operation: Operation, _: &Sample) -> Operation {
    operation
        .about("With the number of its runs, each counted up to 10,000. Keys without rules of their own are in listQueueKeys.")
        .answers::<QueueKey>("The key", &example_key())
        .refuses(InputError, BAD_KEY)
        .refuses(ResourceNotFound, "the key has no rules of its own")
}

async fn queue_key(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    call.authorize_by_path()?;
    let queue = call.task_queue_id()?;
    call.no_query()?;
    ok(&ops::get(app.engine.queue_parts(), &queue, &key(&call)?).await?)
}
