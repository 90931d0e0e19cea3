//! updateWorker.

use tenure_api::worker_manager::{Worker, WorkerRequest};

use super::{NO_WORKER, a_worker, early_check, named, new_worker, read, shown};
use crate::http::api::prelude::*;
use tenure_engine::ops::registrations as ops;

/// `POST /workers/:workerPoolId/:workerGroup/:workerId`
pub fn endpoint() -> Endpoint {
    Endpoint::post("updateWorker", update_worker)
        .scopes(Scope("worker-manager:update-worker:<workerPoolId>/<workerGroup>/<workerId>"))
        .early_check(early_check)
        .secret_body()
        .described("worker-manager", "Change a worker", describe)
}

fn describe(operation: Operation, sample: &Sample) -> Operation {
    operation
        .about(
            "What is absent of `providerInfo` stays as it is. Another `staticSecret` voids the secrets that were given out for \
             reregisterWorker, so that the worker registers anew with it; credentials that were issued hold until they end. \
             removeWorker takes all but one scope of them at once, as does an `expires` in the past, which shuts the worker out.",
        )
        .takes::<WorkerRequest>(&new_worker(sample))
        .answers::<Worker<'_>>("The worker", &a_worker(sample, "running"))
        .refuses(ResourceNotFound, NO_WORKER)
        .refuses(RequestConflict, "the worker was removed")
}

async fn update_worker(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    let name = named(&call)?;
    let changed = ops::update(&app.engine.pool, &app.worker_digests, &name, read(call.json()?)?).await?;
    app.intake.authenticator.worker_changed(&name.client_id());
    shown(&name, &changed)
}
