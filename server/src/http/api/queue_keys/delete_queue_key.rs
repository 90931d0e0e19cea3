//! deleteQueueKey.

use super::{BAD_KEY, CHANGING, key};
use crate::http::api::prelude::*;
use tenure_engine::ops::queue_keys as ops;

/// `DELETE /queues/:taskQueueId/keys/:key`
pub fn endpoint() -> Endpoint {
    Endpoint::delete("deleteQueueKey", delete_queue_key).scopes(CHANGING).described(
        "tenure",
        "Delete what holds for one key of a queue",
        describe,
    )
}

fn describe(operation: Operation, _: &Sample) -> Operation {
    operation
        .about("Whether there is something or not. From then on the key is treated as the policy says; its runs stay.")
        .answers_with(
            200,
            "The key has no rules of its own any more",
            "application/json",
            &json!({"type": "object", "maxProperties": 0}),
            &json!({}),
        )
        .refuses(InputError, BAD_KEY)
}

async fn delete_queue_key(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    call.authorize_by_path()?;
    let queue = call.task_queue_id()?;
    call.no_query()?;
    ops::delete(app.engine.queue_parts(), &queue, &key(&call)?).await?;
    Ok(raw("{}"))
}
