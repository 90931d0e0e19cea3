//! resumeQueue.

use super::{CHANGING, PauseBody, client_id};
use crate::http::api::prelude::*;
use tenure_engine::ops::queue_policy as ops;

/// `POST /queues/:taskQueueId/resume`
pub fn endpoint() -> Endpoint {
    Endpoint::post("resumeQueue", resume_queue).scopes(CHANGING).described("tenure", "Resume a queue", describe)
}

fn describe(operation: Operation, _: &Sample) -> Operation {
    operation
        .about("Whether it is paused or not. Workers that wait are given what is pending at once.")
        .answers::<PauseBody<'_>>("The queue is not paused", &json!({"taskQueueId": QUEUE, "paused": false}))
}

async fn resume_queue(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    call.authorize_by_path()?;
    let queue = call.task_queue_id()?;
    call.no_query()?;
    ops::resume(app.engine.queue_parts(), &queue, client_id(&call)?).await?;
    ok(&PauseBody::new(&queue, None))
}
