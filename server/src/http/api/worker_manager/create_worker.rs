//! createWorker.

use tenure_api::worker_manager::{NewProviderInfo, NewWorkerRequest, ProviderInfo, Worker, WorkerRequest};

use super::{a_worker, early_check, named, new_worker, read, shown};
use crate::http::api::prelude::*;
use tenure_engine::ops::registrations::{self as ops, Create};

/// `PUT /workers/:workerPoolId/:workerGroup/:workerId`
pub fn endpoint() -> Endpoint {
    Endpoint::put("createWorker", create_worker)
        .scopes(Scope("worker-manager:create-worker:<workerPoolId>/<workerGroup>/<workerId>"))
        .early_check(early_check)
        .secret_body()
        .described("worker-manager", "Create a worker, so that it can register", describe)
}

/// With all scopes of [`WorkerName::scopes`](tenure_domain::registration::WorkerName::scopes).
const ABOUT: &str = "\
    The worker registers with `providerInfo.staticSecret` and gets `providerInfo.workerConfig`. A worker pool is a \
    task queue and need not be created. A repeat with the same secret returns the worker as it is.\n\n\
    A caller with this scope can admit a worker, and so has what its credentials give: \
    `queue:claim-work:<workerPoolId>` and `queue:worker-id:<workerGroup>/<workerId>`, by which it claims the tasks of \
    the queue; `worker-manager:remove-worker:<workerPoolId>/<workerGroup>/<workerId>`, \
    `worker-manager:reregister-worker:<workerPoolId>/<workerGroup>/<workerId>` and \
    `worker-manager:should-worker-terminate:<workerPoolId>/<workerGroup>/<workerId>`; \
    `secrets:get:worker-type:<workerPoolId>` and `secrets:get:worker-pool:<workerPoolId>`; and the roles of \
    `assume:worker-pool:<workerPoolId>`, `assume:worker-type:<workerPoolId>` and \
    `assume:worker-id:<workerGroup>/<workerId>`, the last of which is the same in all pools.";

fn describe(operation: Operation, sample: &Sample) -> Operation {
    operation
        .about(ABOUT)
        .takes::<NewWorkerRequest>(&new_worker(sample))
        .answers::<Worker<'_>>("The worker", &a_worker(sample, "running"))
        .refuses(InputError, "`expires` is past")
        .refuses(RequestConflict, "there is or was a worker of this name, with another secret, removed or expired")
}

async fn create_worker(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    let name = named(&call)?;
    let NewWorkerRequest { expires, capacity, provider_info } = call.json()?;
    let NewProviderInfo { static_secret: secret, worker_config } = provider_info;
    let rest = ProviderInfo { static_secret: None, worker_config };
    let change = read(WorkerRequest { expires, capacity, provider_info: Some(rest) })?;
    let config = change.config.unwrap_or_else(|| "{}".to_owned());
    let create = Create { secret, capacity: change.capacity, config, expires: change.expires };
    let made = ops::create(&app.engine.pool, &app.worker_digests, &name, &create).await?;
    app.intake.authenticator.worker_changed(&name.client_id());
    shown(&name, &made)
}

#[cfg(test)]
mod tests {
    use super::ABOUT;
    use tenure_domain::registration::WorkerName;

    #[test]
    fn every_scope_that_a_worker_gets_is_described() {
        let [pool, group, id] = ["the/pool", "group", "worker"];
        let name = WorkerName { pool: pool.parse().unwrap(), group: group.parse().unwrap(), id: id.parse().unwrap() };
        for scope in name.scopes() {
            let described =
                scope.replace(&format!("{group}/{id}"), "<workerGroup>/<workerId>").replace(pool, "<workerPoolId>");
            assert!(ABOUT.contains(&format!("`{described}`")), "{described}");
        }
    }
}
