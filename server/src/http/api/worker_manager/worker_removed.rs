//! workerRemoved.

use tenure_api::worker_manager::Removal;

use super::{named, remove};
use crate::http::api::prelude::*;

/// `POST /api/tenure/v1/workers/:taskQueueId/:workerGroup/:workerId/removed`: also for workers that never registered.
pub fn endpoint() -> Endpoint {
    Endpoint::post("workerRemoved", worker_removed)
        .scopes(Scope("worker-manager:remove-worker:<taskQueueId>/<workerGroup>/<workerId>"))
        .described("tenure", "Report that a worker is gone, whether it has registered or not", describe)
}

fn describe(operation: Operation, _: &Sample) -> Operation {
    operation
        .about(
            "As removeWorker. The claims that a worker had which never registered end too; if it comes back, it may \
             claim anew.",
        )
        .answers::<Removal>("It is removed", &json!({"claimsEnded": 1}))
}

async fn worker_removed(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    let name = named(&call)?;
    let removed = remove(&app, &name).await?;
    ok(&Removal { claims_ended: removed.ended })
}
