//! deleteQueuePolicy.

use super::{CHANGING, OTHER_VERSION, client_id, if_match, with_if_match};
use crate::http::api::prelude::*;
use tenure_engine::ops::queue_policy as ops;

/// `DELETE /queues/:taskQueueId/policy`
pub fn endpoint() -> Endpoint {
    Endpoint::delete("deleteQueuePolicy", delete_queue_policy).scopes(CHANGING).described(
        "tenure",
        "Remove the policy of a queue",
        describe,
    )
}

fn describe(operation: Operation, _: &Sample) -> Operation {
    with_if_match(operation)
        .about("Whether there is one or not. Afterwards the queue is as if it never had one.")
        .answers_with(
            200,
            "The queue has no policy any more",
            "application/json",
            &json!({"type": "object", "maxProperties": 0}),
            &json!({}),
        )
        .refuses(InputError, "`If-Match` is not a version in quotes")
        .refuses(RequestConflict, OTHER_VERSION)
}

async fn delete_queue_policy(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    call.authorize_by_path()?;
    let queue = call.task_queue_id()?;
    call.no_query()?;
    ops::delete(app.engine.queue_parts(), &queue, if_match(&call)?, client_id(&call)?).await?;
    Ok(raw("{}"))
}
