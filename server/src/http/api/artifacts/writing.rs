//! What createArtifact and finishArtifact have in common.

use tenure_engine::ops::create_artifact::RunRef;

use crate::http::api::prelude::*;

/// For the artifacts of one run.
pub(super) const SCOPES: Template = Scope("queue:create-artifact:<taskId>/<runId>");

/// Checks what each of them requires before its body is read.
pub(super) fn early_check(call: &Call) -> Result<(), ApiError> {
    let run_ref = RunRef { task: call.task_id()?, run: call.run_id()? };
    authorize(call, run_ref)?;
    call.artifact_name()?;
    call.no_query()
}

/// Lets the caller through if they may write artifacts of the run.
pub(super) fn authorize(call: &Call, run_ref: RunRef) -> Result<(), ApiError> {
    call.authorize(&Values::of_path().text("runId", run_ref.run.to_string()))
}
