//! getCheckpoint.

use serde_json::value::RawValue;
use tenure_api::checkpoints::Checkpoint;

use super::values;
use crate::http::api::prelude::*;
use tenure_engine::ops::OpError;
use tenure_store::checkpoints;

/// `GET /api/tenure/v1/tasks/:taskId/checkpoint`
pub fn endpoint() -> Endpoint {
    Endpoint::get("getCheckpoint", get_checkpoint).scopes(SCOPES).described(
        "tenure",
        "Read how far a task has come",
        describe,
    )
}

/// As a result is read; and by the worker that holds the task, to go on from it.
const SCOPES: Template =
    AnyOf(&[Scope("tenure:get-result:<taskQueueId>"), Scope("queue:reclaim-task:<taskId>/<runId>")]);

fn describe(operation: Operation, sample: &Sample) -> Operation {
    operation
        .about(
            "The last checkpoint that a worker of the task has stored with putCheckpoint, of whichever run. `<runId>` in the scopes is \
             the last run of the task, so that the credentials of its claim are good for this call.",
        )
        .answers::<Checkpoint<'_>>(
            "The checkpoint",
            &json!({"taskId": sample.task, "runId": 0, "checkpoint": {"done": 3, "of": 12}, "updated": sample.after(1)}),
        )
        .refuses(ResourceNotFound, "the task does not exist, or has no checkpoint")
}

async fn get_checkpoint(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    let id = call.task_id()?;
    // The scopes name the task's queue and its last run.
    let task = app.engine.status.submit(id).await?;
    call.authorize(&values(&task))?;
    call.no_query()?;
    let found = checkpoints::find(&mut *app.engine.pool.acquire().await?, id.uuid()).await?;
    let stored = found.ok_or_else(|| OpError::NotFound(format!("task {id} has no checkpoint")))?;
    let checkpoint: &RawValue =
        serde_json::from_str(&stored.checkpoint).map_err(|_| ApiError::internal("a stored checkpoint is no JSON"))?;
    ok(&Checkpoint { task_id: id, run_id: stored.run, checkpoint, updated: stored.updated.into() })
}
