//! reregisterWorker.

use tenure_api::worker_manager::{ReregisterWorkerRequest, ReregisterWorkerResponse};

use super::{DAY_MINUTES, SECRET, example_credentials, example_name};
use crate::http::api::prelude::*;
use tenure_domain::registration::WorkerName;
use tenure_engine::ops::registrations as ops;

/// `POST /worker/reregister`
pub fn endpoint() -> Endpoint {
    Endpoint::post("reregisterWorker", reregister_worker)
        .scopes(Scope("worker-manager:reregister-worker:<workerPoolId>/<workerGroup>/<workerId>"))
        .secret_body()
        .described("worker-manager", "Register a worker again", describe)
}

fn describe(operation: Operation, sample: &Sample) -> Operation {
    let mut again = example_name();
    again["secret"] = SECRET.into();
    let next = "0".repeat(SECRET.len());
    let expires = sample.after(4 * DAY_MINUTES);
    operation
        .category("Worker interface")
        .experimental()
        .about(
            "It proves itself with the secret of the last answer, which is void from then on. Only if the answer with \
             the next one is lost may it be sent once more, within five minutes.",
        )
        .takes::<ReregisterWorkerRequest>(&again)
        .answers::<ReregisterWorkerResponse>(
            "It is admitted",
            &json!({"expires": expires, "credentials": example_credentials(), "secret": next}),
        )
        .refuses(
            InputError,
            "the secret is not the worker's last one, or the worker was removed, has expired, or does not exist",
        )
}

async fn reregister_worker(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    call.no_query()?;
    let body: ReregisterWorkerRequest = call.json()?;
    let name = WorkerName { pool: body.worker_pool_id, group: body.worker_group, id: body.worker_id };
    let values = Values::of_path()
        .text("workerPoolId", name.pool.as_str())
        .text("workerGroup", name.group.as_str())
        .text("workerId", name.id.as_str());
    call.authorize(&values)?;
    let let_in = ops::reregister(&app.engine.pool, &app.worker_digests, &name, &body.secret).await?;
    ok(&ReregisterWorkerResponse {
        expires: Timestamp::new(let_in.until),
        credentials: app.intake.authenticator.worker_credentials().issue(&name, let_in.from, let_in.until),
        secret: let_in.secret,
    })
}
