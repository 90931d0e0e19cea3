//! finishArtifact.

use tenure_api::artifacts::FinishArtifactRequest;

use super::writing::{SCOPES, authorize, early_check};
use crate::http::api::prelude::*;
use tenure_engine::ops::create_artifact::{self as ops, RunRef};

/// `PUT /task/:taskId/runs/:runId/artifacts/:name`
pub fn endpoint() -> Endpoint {
    Endpoint::put("finishArtifact", finish_artifact).scopes(SCOPES).early_check(early_check).described(
        "queue",
        "Finish the upload of an object",
        describe,
    )
}

fn describe(operation: Operation, sample: &Sample) -> Operation {
    operation
        .about("Afterwards the artifact can be read. A repeat changes nothing.")
        .takes::<FinishArtifactRequest>(&json!({"uploadId": sample.task}))
        .answers_empty(204, "The artifact can be read", &[])
        .refuses(ResourceNotFound, "the task, run or artifact does not exist")
        .refuses(
            InputError,
            "the artifact is not an object, the `uploadId` is another, or the object does not exist or has expired",
        )
}

async fn finish_artifact(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    let run_ref = RunRef { task: call.task_id()?, run: call.run_id()? };
    let name = call.artifact_name()?;
    call.no_query()?;
    let FinishArtifactRequest { upload_id } = call.json()?;
    authorize(&call, run_ref)?;
    ops::finish(&app.engine.pool, &app.engine.notifiers, run_ref, name.as_str(), upload_id).await?;
    Ok(nothing())
}
