//! listQueueKeys.

use tenure_api::queue_keys::QueueKeys;

use super::{READING, example_key};
use crate::http::api::prelude::*;
use crate::http::api::queue_lists::{place, to_token};
use crate::http::docs::parameters::paged_up_to;
use tenure_engine::ops::queue_keys as ops;

/// `GET /queues/:taskQueueId/keys`
pub fn endpoint() -> Endpoint {
    Endpoint::get("listQueueKeys", list_queue_keys).scopes(READING).large_answer().described(
        "tenure",
        "List the keys of a queue",
        describe,
    )
}

fn describe(operation: Operation, _: &Sample) -> Operation {
    paged_up_to(operation, ops::KEYS_PAGE_MAX.into())
        .about(
            "All that have runs which are waiting, assigned or claimed, and all that have rules of their own, by key. Runs are \
             counted up to 10,000. A page may have fewer keys than its limit, or none, and still a token: then there are more. A \
             token that is none begins at the start. A queue that does not exist yet has no keys.",
        )
        .answers::<QueueKeys>("A page; with a token if there may be more", &json!({"keys": [example_key()]}))
}

async fn list_queue_keys(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    call.authorize_by_path()?;
    let queue = call.task_queue_id()?;
    let (limit, token) = call.page_and_token()?;
    let after: Option<String> = place(token);
    // PostgreSQL's texts have no such character, and a token of ours neither.
    let after = after.filter(|after| !after.contains('\0'));
    let ops::Page { keys, next } = ops::list(app.engine.queue_parts(), &queue, after.as_deref(), limit).await?;
    ok(&QueueKeys { keys, continuation_token: next.map(|next| to_token(&next)).transpose()? })
}
