//! status.

use super::StatusBody;
use crate::http::api::prelude::*;

/// `GET /task/:taskId/status`
pub fn endpoint() -> Endpoint {
    Endpoint::get("status", status).no_pool().scopes(Scope("queue:status:<taskId>")).described(
        "queue",
        "Read a task's status",
        describe,
    )
}

fn describe(operation: Operation, sample: &Sample) -> Operation {
    operation
        .answers::<StatusBody<'_>>("The status", &json!({"status": sample.status("pending")}))
        .refuses(ResourceNotFound, "the task does not exist")
}

async fn status(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    call.authorize(&Values::of_path())?;
    let id = call.task_id()?;
    call.no_query()?;
    let task = app.engine.status.submit(id).await?;
    ok(&StatusBody { status: &task.status() })
}
