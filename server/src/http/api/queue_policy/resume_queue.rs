//! resumeQueue.

use std::sync::Arc;

use axum::response::Response;
use serde_json::json;

use super::{CHANGING, PauseBody, client_id};
use crate::http::api::ok;
use crate::http::api::state::{Api, Endpoint};
use crate::http::call::Call;
use crate::http::docs::operation::Operation;
use crate::http::docs::sample::QUEUE;
use crate::http::docs::sample::Sample;
use crate::http::error::ApiError;
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
