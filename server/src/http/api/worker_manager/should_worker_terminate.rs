//! shouldWorkerTerminate.

use tenure_api::worker_manager::ShouldTerminate;

use super::named;
use crate::http::api::prelude::*;
use tenure_domain::registration::Standing;
use tenure_store::worker_manager::{self, Registered};

/// `GET /workers/:workerPoolId/:workerGroup/:workerId/should-terminate`
pub fn endpoint() -> Endpoint {
    Endpoint::get("shouldWorkerTerminate", should_worker_terminate)
        .scopes(Scope("worker-manager:should-worker-terminate:<workerPoolId>/<workerGroup>/<workerId>"))
        .described("worker-manager", "Ask whether a worker should stop", describe)
}

fn describe(operation: Operation, _: &Sample) -> Operation {
    operation
        .experimental()
        .about("It should if it was removed, has expired, or does not exist.")
        .answers::<ShouldTerminate>("Whether, and why", &json!({"terminate": false, "reason": "the worker is wanted"}))
}

async fn should_worker_terminate(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    let name = named(&call)?;
    let found = worker_manager::find(&app.engine.pool, &name).await?;
    let (terminate, reason) = Standing::should_terminate(found.as_ref().map(Registered::standing));
    ok(&ShouldTerminate { terminate, reason })
}
