//! Checks of createArtifact and finishArtifact.

use tenure_engine::ops::create_artifact::RunRef;

use crate::http::api::prelude::*;

pub(super) const SCOPES: Template = Scope("queue:create-artifact:<taskId>/<runId>");

pub(super) fn early_check(call: &Call) -> Result<(), ApiError> {
    let run_ref = RunRef { task: call.task_id()?, run: call.run_id()? };
    authorize(call, run_ref)?;
    call.artifact_name()?;
    call.no_query()
}

pub(super) fn authorize(call: &Call, run_ref: RunRef) -> Result<(), ApiError> {
    call.authorize(&Values::of_path().text("runId", run_ref.run.to_string()))
}
