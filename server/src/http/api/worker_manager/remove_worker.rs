//! removeWorker.

use super::{NO_WORKER, named, remove};
use crate::http::api::prelude::*;
use tenure_engine::ops::registrations as ops;
use tenure_store::worker_manager;

/// `DELETE /workers/:workerPoolId/:workerGroup/:workerId`
pub fn endpoint() -> Endpoint {
    Endpoint::delete("removeWorker", remove_worker)
        .scopes(Scope("worker-manager:remove-worker:<workerPoolId>/<workerGroup>/<workerId>"))
        .described("worker-manager", "Remove a worker", describe)
}

fn describe(operation: Operation, _: &Sample) -> Operation {
    operation
        .about(
            "For good. Its claims end at once as exception/worker-shutdown and are tried again while retries are \
             left, a claimWork that waits in its name gets an empty answer, and its credentials are good for \
             shouldWorkerTerminate alone.",
        )
        .answers_with(
            200,
            "It is removed",
            "application/json",
            &json!({"type": "object", "maxProperties": 0}),
            &json!({}),
        )
        .refuses(ResourceNotFound, NO_WORKER)
}

async fn remove_worker(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    let name = named(&call)?;
    if worker_manager::find(&app.engine.pool, &name).await?.is_none() {
        return Err(ops::missing(&name).into());
    }
    remove(&app, &name).await?;
    Ok(raw("{}"))
}
