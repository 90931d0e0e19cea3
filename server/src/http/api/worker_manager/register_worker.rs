//! registerWorker.

use tenure_api::errors::ErrorCode::InvalidRequestArguments;
use tenure_api::worker_manager::{RegisterWorkerRequest, RegisterWorkerResponse};

use super::{DAY_MINUTES, SECRET, example_credentials, example_name};
use crate::http::api::prelude::*;
use tenure_domain::registration::WorkerName;
use tenure_engine::ops::registrations as ops;

/// `POST /worker/register`
pub fn endpoint() -> Endpoint {
    Endpoint::post("registerWorker", register_worker).secret_body().described(
        "worker-manager",
        "Register a worker",
        describe,
    )
}

fn describe(operation: Operation, sample: &Sample) -> Operation {
    let mut registering = example_name();
    registering["providerId"] = "static".into();
    registering["workerIdentityProof"] = json!({"staticSecret": SECRET});
    let next = "0".repeat(SECRET.len());
    let expires = sample.after(4 * DAY_MINUTES);
    operation
        .category("Worker interface")
        .about(
            "The worker proves itself with the secret that createWorker was given, and gets credentials for 96 hours, \
             but not beyond its own end. They are for claiming tasks from the queue of its pool in its own name, for \
             registering again, and for whatever the roles `worker-pool:<workerPoolId>`, `worker-type:<workerPoolId>` \
             and `worker-id:<workerGroup>/<workerId>` give.",
        )
        .takes::<RegisterWorkerRequest>(&registering)
        .answers::<RegisterWorkerResponse<'_>>(
            "It is admitted",
            &json!({
                "expires": expires,
                "credentials": example_credentials(),
                "workerConfig": {"idleTimeoutSecs": 0},
                "secret": next,
            }),
        )
        .refuses(InvalidRequestArguments, "a parameter of the query, which has none")
        .refuses(InputError, "the secret is not the worker's, or the worker was removed or has expired")
        .refuses(ResourceNotFound, "the worker was not created, or the provider is not `static`")
}

async fn register_worker(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    call.no_query()?;
    let body: RegisterWorkerRequest = call.json()?;
    let name = WorkerName { pool: body.worker_pool_id, group: body.worker_group, id: body.worker_id };
    let secret = body.worker_identity_proof.static_secret;
    let let_in = ops::register(&app.engine.pool, &app.worker_digests, &name, &body.provider_id, &secret).await?;
    app.intake.authenticator.worker_changed(&name.client_id());
    ok(&RegisterWorkerResponse {
        expires: Timestamp::new(let_in.until),
        credentials: app.intake.authenticator.worker_credentials().issue(&name, let_in.from, let_in.until),
        worker_config: serde_json::from_str(&let_in.config)
            .map_err(|_| ApiError::internal("a stored worker has an invalid config"))?,
        secret: let_in.secret,
    })
}
