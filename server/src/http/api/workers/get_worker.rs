//! getWorker.

use super::{WorkerBody, a_worker, name};
use crate::http::api::prelude::*;
use tenure_engine::ops::workers as ops;

/// `GET /provisioners/:provisionerId/worker-types/:workerType/workers/:workerGroup/:workerId`
pub fn endpoint() -> Endpoint {
    Endpoint::get("getWorker", get_worker)
        .scopes(Scope("queue:get-worker:<provisionerId>/<workerType>/<workerGroup>/<workerId>"))
        .described("queue", "Read a worker", describe)
}

fn describe(operation: Operation, sample: &Sample) -> Operation {
    operation
        .answers::<WorkerBody>("The worker", &a_worker(sample))
        .refuses(ResourceNotFound, "the worker does not exist, or has expired")
}

async fn get_worker(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    call.authorize_by_path()?;
    call.no_query()?;
    let name = name(&call)?;
    let worker = ops::get(&app.engine.pool, &app.engine.workers, &app.engine.queues, &name).await?;
    ok(&WorkerBody::from(worker))
}
