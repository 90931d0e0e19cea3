//! worker.

use tenure_api::worker_manager::Worker;

use super::{NO_WORKER, a_worker, named, shown};
use crate::http::api::prelude::*;
use tenure_engine::ops::registrations as ops;
use tenure_store::worker_manager;

/// `GET /workers/:workerPoolId/:workerGroup/:workerId`
pub fn endpoint() -> Endpoint {
    Endpoint::get("worker", worker)
        .scopes(Scope("worker-manager:get-worker:<workerPoolId>/<workerGroup>/<workerId>"))
        .described("worker-manager", "Show a worker", describe)
}

fn describe(operation: Operation, sample: &Sample) -> Operation {
    operation
        .answers::<Worker<'_>>("The worker; no secret of it is shown", &a_worker(sample, "running"))
        .refuses(ResourceNotFound, NO_WORKER)
}

async fn worker(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    let name = named(&call)?;
    let found = worker_manager::find(&app.engine.pool, &name).await?.ok_or_else(|| ops::missing(&name))?;
    shown(&name, &found)
}
