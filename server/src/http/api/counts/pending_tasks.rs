//! pendingTasks.

use std::sync::Arc;

use axum::response::Response;

use super::{CountsBody, body, example, one};
use crate::http::api::ok;
use crate::http::api::state::{Api, Endpoint};
use crate::http::call::Call;
use crate::http::docs::operation::Operation;
use crate::http::docs::sample::Sample;
use crate::http::error::ApiError;
use crate::http::scopes::Template::{self, Scope};

/// `GET /pending/:taskQueueId`
pub fn endpoint() -> Endpoint {
    Endpoint::get("pendingTasks", pending_tasks).scopes(SCOPES).described(
        "queue",
        "Count a queue's pending tasks",
        describe,
    )
}

const SCOPES: Template = Scope("queue:pending-count:<taskQueueId>");

fn describe(operation: Operation, _: &Sample) -> Operation {
    operation
        .deprecated()
        .about("A queue that was never used has none.")
        .answers::<CountsBody<'_>>("The number; `claimedTasks` is left out", &example())
}

async fn pending_tasks(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    call.authorize_by_path()?;
    let queue = call.task_queue_id()?;
    call.no_query()?;
    let counts = one(&app, &queue).await?;
    ok(&body(&queue, counts, None))
}
