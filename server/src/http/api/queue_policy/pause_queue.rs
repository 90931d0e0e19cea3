//! pauseQueue.

use tenure_api::policy::PauseRequest;

use super::{CHANGING, PauseBody, client_id, example_pause};
use crate::http::api::prelude::*;
use tenure_engine::ops::queue_policy as ops;

/// `POST /queues/:taskQueueId/pause`
pub fn endpoint() -> Endpoint {
    Endpoint::post("pauseQueue", pause_queue).scopes(CHANGING).described("tenure", "Pause a queue", describe)
}

fn describe(operation: Operation, sample: &Sample) -> Operation {
    operation
        .about(
            "Until it is resumed, workers get nothing of the queue: claimWork and polls find nothing, claimTask is refused \
             with 409. Tasks can be created, and workers renew and report what they have. From the answer on this holds at \
             every server. A queue that is paused takes the new reason and end; since when it is paused does not change.",
        )
        .may_take_json::<PauseRequest>(&json!({"reason": "the build disks are full", "until": sample.after(60)}))
        .checks_body()
        .answers::<PauseBody<'_>>("The queue is paused", &example_pause(sample))
        .refuses(InputError, "`reason` is too long, or `until` is in the past")
}

async fn pause_queue(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    call.authorize_by_path()?;
    let queue = call.task_queue_id()?;
    call.no_query()?;
    let request: PauseRequest = call.json_or_default()?;
    let paused = ops::pause(app.engine.queue_parts(), &queue, &request, client_id(&call)?).await?;
    ok(&PauseBody::new(&queue, Some(paused)))
}
