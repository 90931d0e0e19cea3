//! putQueuePolicy.

use tenure_api::policy::{PolicyOfQueue, QueuePolicy};

use super::{CHANGING, OTHER_VERSION, body, client_id, example, example_policy, if_match, with_if_match};
use crate::http::api::prelude::*;
use tenure_domain::policy::document::Policy;
use tenure_engine::ops::queue_policy as ops;

/// `PUT /queues/:taskQueueId/policy`
pub fn endpoint() -> Endpoint {
    Endpoint::put("putQueuePolicy", put_queue_policy).scopes(CHANGING).described(
        "tenure",
        "Replace the policy of a queue",
        describe,
    )
}

fn describe(operation: Operation, sample: &Sample) -> Operation {
    with_if_match(operation)
        .about(
            "The whole policy: what is left out has its default. The queue need not exist yet. The same policy again \
             changes nothing, its version neither. All times are whole seconds.",
        )
        .takes::<QueuePolicy>(&example_policy())
        .answers::<PolicyOfQueue>("The policy as it is now", &example(sample))
        .refuses(InputError, "a number is out of its range, or a field is not built yet; the message names it")
        .refuses(RequestConflict, OTHER_VERSION)
}

async fn put_queue_policy(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    call.authorize_by_path()?;
    let queue = call.task_queue_id()?;
    call.no_query()?;
    let replaces = if_match(&call)?;
    let sent: QueuePolicy = call.json()?;
    let policy = Policy::from_request(&sent)?;
    let put = ops::Put { sent, policy, replaces, client_id: client_id(&call)? };
    let stored = ops::put(app.engine.queue_parts(), &queue, put).await?;
    ok(&body(queue, stored)?)
}
