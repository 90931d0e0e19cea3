//! reclaimTask.

use tenure_api::bodies::Claim;

use super::claim_json;
use crate::http::api::prelude::*;
use tenure_engine::ops::reclaim::ClaimRenewal;

/// `POST /task/:taskId/runs/:runId/reclaim`
pub fn endpoint() -> Endpoint {
    Endpoint::post("reclaimTask", reclaim_task)
        .no_pool()
        .scopes(Scope("queue:reclaim-task:<taskId>/<runId>"))
        .early_check(Call::authorize_by_path)
        .described("queue", "Renew a claim", describe)
}

fn describe(operation: Operation, sample: &Sample) -> Operation {
    operation
        .about(
            "The response has new credentials and the new `takenUntil`, never earlier than before, and no \
             definition. The credentials of a claim allow this call.",
        )
        .answers::<Claim<'_>>("The claim", &sample.renewed_claim())
        .refuses(ResourceNotFound, "the task or the run does not exist")
        .refuses(RequestConflict, "the run is no longer running, or the task's deadline has passed")
}

async fn reclaim_task(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    call.authorize_by_path()?;
    let (task, run) = (call.task_id()?, call.run_id()?);
    call.no_query()?;
    let granted = app.engine.reclaim.submit(ClaimRenewal { task, run }).await?;
    Ok(raw(claim_json(&app, &granted)?))
}
