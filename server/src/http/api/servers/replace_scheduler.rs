//! replaceScheduler.

use tenure_api::servers::SchedulerReplaced;

use super::SERVER;
use crate::http::api::prelude::*;
use crate::http::api::queue_policy::{CHANGING, client_id};
use tenure_engine::ops::servers;

/// `POST /api/tenure/v1/queues/:taskQueueId/scheduler/replace`
pub fn endpoint() -> Endpoint {
    Endpoint::post("replaceScheduler", replace_scheduler).scopes(CHANGING).described(
        "tenure",
        "Replace the scheduler of a queue",
        describe,
    )
}

fn describe(operation: Operation, _: &Sample) -> Operation {
    operation
        .about(
            "Ends the term of the queue's scheduler as if its server were lost: with `onSchedulerLoss` `reassign` the tasks that it has \
             given out are given out again. The next scheduler is the live server of the greatest weight, which may be the same.",
        )
        .answers::<SchedulerReplaced>(
            "The new term",
            &json!({"taskQueueId": QUEUE, "term": 2, "serverId": SERVER}),
        )
        .refuses(RequestConflict, "the queue does not assign its tasks")
}

async fn replace_scheduler(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    call.authorize_by_path()?;
    let queue = call.task_queue_id()?;
    call.no_query()?;
    ok(&servers::replace_scheduler(app.engine.server_parts(), &queue, client_id(&call)?).await?)
}
