//! putCheckpoint.

use tenure_api::checkpoints::{CheckpointRequest, CheckpointStored};

use tenure_domain::checkpoint::NewCheckpoint;
use tenure_engine::ops::checkpoint;
use tenure_engine::ops::create_artifact::RunRef;

use crate::http::api::prelude::*;

/// `PUT /api/tenure/v1/tasks/:taskId/runs/:runId/checkpoint`
pub fn endpoint() -> Endpoint {
    Endpoint::put("putCheckpoint", put_checkpoint)
        .scopes(Scope("queue:reclaim-task:<taskId>/<runId>"))
        .early_check(Call::authorize_by_path)
        .described("tenure", "Store how far a run has come", describe)
}

fn describe(operation: Operation, sample: &Sample) -> Operation {
    operation
        .about(
            "For the worker that has the run, with the credentials of its claim. A task has one checkpoint, in the place of the one \
             before: progress for people, and where the next run goes on if this one is lost or released. It is kept as long as the \
             task. With `commandId` the worker says that it has carried out that command, which is deleted together with storing the \
             checkpoint.",
        )
        .takes::<CheckpointRequest<'_>>(&json!({"checkpoint": {"done": 3, "of": 12}}))
        .answers::<CheckpointStored>("The checkpoint is stored", &json!({"updated": sample.after(1)}))
        .refuses(InputError, "`checkpoint` has more than 65,536 bytes as compact JSON, or `commandId` is less than 1")
        .refuses(ResourceNotFound, "the task or the run does not exist")
        .refuses(RequestConflict, "the run is not claimed: it waits for a worker, or it has ended")
}

async fn put_checkpoint(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    call.authorize_by_path()?;
    let of = RunRef { task: call.task_id()?, run: call.run_id()? };
    call.no_query()?;
    let new = NewCheckpoint::from_request(&call.json::<CheckpointRequest<'_>>()?)?;
    let updated = checkpoint::put(&app.engine.pool, of, &new).await?;
    ok(&CheckpointStored { updated: updated.into() })
}
