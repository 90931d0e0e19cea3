//! Workers: creation by a provisioner, registration and removal.

use tenure_api::errors::ErrorCode::InvalidRequestArguments;
use tenure_api::worker_manager::{
    CAPACITY_MAX, NewProviderInfo, NewWorkerRequest, ProviderInfo, RegisterWorkerRequest, RegisterWorkerResponse,
    Removal, ReregisterWorkerRequest, ReregisterWorkerResponse, STATIC, ShouldTerminate, Worker, WorkerRequest,
    WorkerState,
};

use crate::http::api::prelude::*;
use crate::http::api::to_json;
use crate::http::intake::Intake;
use tenure_domain::audit::Action;
use tenure_domain::registration::{CONFIG_BYTES_MAX, Standing, WorkerName};
use tenure_engine::ops::actor::Actor;
use tenure_engine::ops::registrations::{self as ops, Change, Create};
use tenure_engine::ops::worker_removed::{self as removal, Removed};
use tenure_store::worker_manager::{self, Registered};

const NO_WORKER: &str = "the worker was not created";

const SECRET: &str = "44-characters-that-only-the-worker-knows-000";

const DAY_MINUTES: i64 = 24 * 60;

pub(in crate::http) async fn remove(
    intake: &Intake,
    actor: &Actor,
    name: &WorkerName,
    action: Action,
) -> Result<Removed, ApiError> {
    let engine = &intake.engine;
    let removed = removal::remove(&engine.pool, &engine.queues, &engine.notifiers, actor, name, action).await;
    // Even on failure: the removal may have been recorded.
    intake.authenticator.worker_changed(&name.client_id());
    Ok(removed?)
}

/// Checks the endpoint's scopes.
fn named(call: &Call) -> Result<WorkerName, ApiError> {
    call.authorize_by_path()?;
    let pool = worker_pool(call)?;
    let group = call.text_param("workerGroup").parse().map_err(|error| wrong("workerGroup", &error))?;
    let id = call.text_param("workerId").parse().map_err(|error| wrong("workerId", &error))?;
    let name = WorkerName { pool, group, id };
    call.no_query()?;
    Ok(name)
}

fn early_check(call: &Call) -> Result<(), ApiError> {
    named(call).map(drop)
}

/// A worker pool is a task queue.
pub(super) fn worker_pool(call: &Call) -> Result<TaskQueueId, ApiError> {
    match (call.text_param("provisionerId"), call.text_param("workerPoolId")) {
        ("", "") => call.task_queue_id(),
        ("", pool) => TaskQueueId::read_full(pool).map_err(|error| wrong("workerPoolId", &error)),
        (provisioner, _) => {
            let whole = format!("{provisioner}/{}", call.text_param("workerType"));
            TaskQueueId::read_full(&whole).map_err(|error| wrong("provisionerId/workerType", &error))
        }
    }
}

fn wrong(name: &str, error: &dyn std::fmt::Display) -> ApiError {
    ApiError::arguments(format!("the path parameter `{name}`: {error}"))
}

fn read(request: WorkerRequest) -> Result<Change, ApiError> {
    let WorkerRequest { expires, capacity, provider_info } = request;
    if !(1..=CAPACITY_MAX).contains(&capacity) {
        return Err(ApiError::body(format!("`capacity` must be from 1 to {CAPACITY_MAX}")));
    }
    let info = provider_info.unwrap_or_default();
    let config = info.worker_config.map(|config| to_json(&config)).transpose()?;
    if config.as_ref().is_some_and(|config| config.len() > CONFIG_BYTES_MAX) {
        return Err(ApiError::body(format!(
            "`providerInfo.workerConfig` is over the limit of {CONFIG_BYTES_MAX} bytes"
        )));
    }
    Ok(Change { secret: info.static_secret, capacity, config, expires: expires.time() })
}

fn shown(name: &WorkerName, worker: &Registered) -> Result<Response, ApiError> {
    ok(&Worker {
        worker_pool_id: &name.pool,
        worker_group: &name.group,
        worker_id: &name.id,
        provider_id: STATIC,
        created: Timestamp::new(worker.created),
        expires: Timestamp::new(worker.expires),
        last_modified: Timestamp::new(worker.last_modified),
        last_checked: Timestamp::new(worker.created),
        state: if worker.removed.is_some() { WorkerState::Stopped } else { WorkerState::Running },
        capacity: worker.capacity.try_into().unwrap_or(CAPACITY_MAX),
    })
}

fn new_worker(sample: &Sample) -> Value {
    json!({
        "expires": sample.after(30 * DAY_MINUTES),
        "capacity": 1,
        "providerInfo": {"staticSecret": SECRET, "workerConfig": {"idleTimeoutSecs": 0}},
    })
}

fn a_worker(sample: &Sample, state: &str) -> Value {
    json!({
        "workerPoolId": QUEUE,
        "workerGroup": "rack-1",
        "workerId": "worker-1",
        "providerId": "static",
        "created": sample.after(0),
        "expires": sample.after(30 * DAY_MINUTES),
        "lastModified": sample.after(0),
        "lastChecked": sample.after(0),
        "state": state,
        "capacity": 1,
    })
}

fn example_credentials() -> Value {
    json!({
        "clientId": "worker/static/acme/linux/rack-1/worker-1",
        "accessToken": "three-dozen-characters-only-the-client-knows",
        "certificate": "{\"version\":1}",
    })
}

fn example_name() -> Value {
    json!({"workerPoolId": QUEUE, "workerGroup": "rack-1", "workerId": "worker-1"})
}

/// `PUT /workers/:workerPoolId/:workerGroup/:workerId`
pub fn create_worker() -> Endpoint {
    Endpoint::put("createWorker", handle_create_worker)
        .scopes(Scope("worker-manager:create-worker:<workerPoolId>/<workerGroup>/<workerId>"))
        .early_check(early_check)
        .secret_body()
        .described("worker-manager", "Create a worker, so that it can register", describe_create_worker)
}

/// Must list [`WorkerName::scopes`](tenure_domain::registration::WorkerName::scopes).
const ABOUT: &str = "The worker registers with `providerInfo.staticSecret` and gets `providerInfo.workerConfig`. A \
    worker pool is a task queue and need not be created. A repeat with the same secret returns the worker as it \
    is.\n\nA caller with this scope can admit a worker, and thereby gains the worker's scopes: \
    `queue:claim-work:<workerPoolId>` and `queue:worker-id:<workerGroup>/<workerId>`, by which it claims the tasks \
    of the queue; `worker-manager:remove-worker:<workerPoolId>/<workerGroup>/<workerId>`, \
    `worker-manager:reregister-worker:<workerPoolId>/<workerGroup>/<workerId>` and \
    `worker-manager:should-worker-terminate:<workerPoolId>/<workerGroup>/<workerId>`; \
    `secrets:get:worker-type:<workerPoolId>` and `secrets:get:worker-pool:<workerPoolId>`; and the roles of \
    `assume:worker-pool:<workerPoolId>`, `assume:worker-type:<workerPoolId>` and \
    `assume:worker-id:<workerGroup>/<workerId>`, the last of which is the same in all pools.";

fn describe_create_worker(operation: Operation, sample: &Sample) -> Operation {
    operation
        .about(ABOUT)
        .takes::<NewWorkerRequest>(&new_worker(sample))
        .answers::<Worker<'_>>("The worker", &a_worker(sample, "running"))
        .refuses(InputError, "`expires` is past")
        .refuses(RequestConflict, "a worker of this name exists with another secret, or was removed or has expired")
}

async fn handle_create_worker(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    let name = named(&call)?;
    let NewWorkerRequest { expires, capacity, provider_info } = call.json()?;
    let NewProviderInfo { static_secret: secret, worker_config } = provider_info;
    let rest = ProviderInfo { static_secret: None, worker_config };
    let change = read(WorkerRequest { expires, capacity, provider_info: Some(rest) })?;
    let config = change.config.unwrap_or_else(|| "{}".to_owned());
    let create = Create { secret, capacity: change.capacity, config, expires: change.expires };
    let made = ops::create(&app.engine.pool, &app.worker_digests, &call.actor()?, &name, &create).await?;
    app.intake.authenticator.worker_changed(&name.client_id());
    shown(&name, &made)
}

/// `POST /worker/register`
pub fn register_worker() -> Endpoint {
    Endpoint::post("registerWorker", handle_register_worker).secret_body().described(
        "worker-manager",
        "Register a worker",
        describe_register_worker,
    )
}

fn describe_register_worker(operation: Operation, sample: &Sample) -> Operation {
    let mut registering = example_name();
    registering["providerId"] = "static".into();
    registering["workerIdentityProof"] = json!({"staticSecret": SECRET});
    let next = "0".repeat(SECRET.len());
    let expires = sample.after(4 * DAY_MINUTES);
    operation
        .category("Worker interface")
        .about(
            "The worker authenticates with the secret given to createWorker, and gets credentials for 96 hours, but \
             not beyond its own `expires`. They allow it to claim tasks from the queue of its pool in its own name \
             and to register again, and include what the roles `worker-pool:<workerPoolId>`, \
             `worker-type:<workerPoolId>` and `worker-id:<workerGroup>/<workerId>` give.",
        )
        .takes::<RegisterWorkerRequest>(&registering)
        .answers::<RegisterWorkerResponse<'_>>(
            "The worker is admitted",
            &json!({
                "expires": expires,
                "credentials": example_credentials(),
                "workerConfig": {"idleTimeoutSecs": 0},
                "secret": next,
            }),
        )
        .refuses(InvalidRequestArguments, "a query parameter was sent; this operation has none")
        .refuses(InputError, "the secret is not the worker's, or the worker was removed or has expired")
        .refuses(ResourceNotFound, "the worker was not created, or the provider is not `static`")
}

async fn handle_register_worker(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
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

/// `DELETE /workers/:workerPoolId/:workerGroup/:workerId`
pub fn remove_worker() -> Endpoint {
    Endpoint::delete("removeWorker", handle_remove_worker)
        .scopes(Scope("worker-manager:remove-worker:<workerPoolId>/<workerGroup>/<workerId>"))
        .described("worker-manager", "Remove a worker", describe_remove_worker)
}

fn describe_remove_worker(operation: Operation, _: &Sample) -> Operation {
    operation
        .about(
            "Permanently. Its claims end at once as exception/worker-shutdown and are retried while retries are \
             left, a waiting claimWork of the worker returns empty, and its credentials allow only \
             shouldWorkerTerminate.",
        )
        .answers_with(
            200,
            "The worker is removed",
            "application/json",
            &json!({"type": "object", "maxProperties": 0}),
            &json!({}),
        )
        .refuses(ResourceNotFound, NO_WORKER)
}

async fn handle_remove_worker(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    let name = named(&call)?;
    if worker_manager::find(&app.engine.pool, &name).await?.is_none() {
        return Err(ops::missing(&name).into());
    }
    remove(&app.intake, &call.actor()?, &name, Action::RemoveWorker).await?;
    Ok(raw("{}"))
}

/// `POST /worker/reregister`
pub fn reregister_worker() -> Endpoint {
    Endpoint::post("reregisterWorker", handle_reregister_worker)
        .scopes(Scope("worker-manager:reregister-worker:<workerPoolId>/<workerGroup>/<workerId>"))
        .secret_body()
        .described("worker-manager", "Register a worker again", describe_reregister_worker)
}

fn describe_reregister_worker(operation: Operation, sample: &Sample) -> Operation {
    let mut again = example_name();
    again["secret"] = SECRET.into();
    let next = "0".repeat(SECRET.len());
    let expires = sample.after(4 * DAY_MINUTES);
    operation
        .category("Worker interface")
        .experimental()
        .about(
            "The worker authenticates with the secret of the last response, which becomes invalid. If the response \
             is lost, the same secret can be sent once more within five minutes.",
        )
        .takes::<ReregisterWorkerRequest>(&again)
        .answers::<ReregisterWorkerResponse>(
            "The worker is admitted",
            &json!({"expires": expires, "credentials": example_credentials(), "secret": next}),
        )
        .refuses(
            InputError,
            "the secret is not the worker's last one, or the worker was removed, has expired, or does not exist",
        )
}

async fn handle_reregister_worker(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
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

/// `GET /workers/:workerPoolId/:workerGroup/:workerId/should-terminate`
pub fn should_worker_terminate() -> Endpoint {
    Endpoint::get("shouldWorkerTerminate", handle_should_worker_terminate)
        .scopes(Scope("worker-manager:should-worker-terminate:<workerPoolId>/<workerGroup>/<workerId>"))
        .described("worker-manager", "Ask whether a worker should stop", describe_should_worker_terminate)
}

fn describe_should_worker_terminate(operation: Operation, _: &Sample) -> Operation {
    operation
        .experimental()
        .about("It should stop if it was removed, has expired, or does not exist.")
        .answers::<ShouldTerminate>(
            "The decision and its reason",
            &json!({"terminate": false, "reason": "the worker is wanted"}),
        )
}

async fn handle_should_worker_terminate(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    let name = named(&call)?;
    let found = worker_manager::find(&app.engine.pool, &name).await?;
    let (terminate, reason) = Standing::should_terminate(found.as_ref().map(Registered::standing));
    ok(&ShouldTerminate { terminate, reason })
}

/// `POST /workers/:workerPoolId/:workerGroup/:workerId`
pub fn update_worker() -> Endpoint {
    Endpoint::post("updateWorker", handle_update_worker)
        .scopes(Scope("worker-manager:update-worker:<workerPoolId>/<workerGroup>/<workerId>"))
        .early_check(early_check)
        .secret_body()
        .described("worker-manager", "Change a worker", describe_update_worker)
}

fn describe_update_worker(operation: Operation, sample: &Sample) -> Operation {
    operation
        .about(
            "Omitted fields of `providerInfo` do not change. A new `staticSecret` invalidates the secrets issued for \
             reregisterWorker, so the worker must register anew with it; issued credentials stay valid until they \
             expire. removeWorker, or an `expires` in the past, revokes all but one of their scopes at once.",
        )
        .takes::<WorkerRequest>(&new_worker(sample))
        .answers::<Worker<'_>>("The worker", &a_worker(sample, "running"))
        .refuses(ResourceNotFound, NO_WORKER)
        .refuses(RequestConflict, "the worker was removed")
}

async fn handle_update_worker(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    let name = named(&call)?;
    let change = read(call.json()?)?;
    let changed = ops::update(&app.engine.pool, &app.worker_digests, &call.actor()?, &name, change).await?;
    app.intake.authenticator.worker_changed(&name.client_id());
    shown(&name, &changed)
}

/// `GET /workers/:workerPoolId/:workerGroup/:workerId`
pub fn worker() -> Endpoint {
    Endpoint::get("worker", handle_worker)
        .scopes(Scope("worker-manager:get-worker:<workerPoolId>/<workerGroup>/<workerId>"))
        .described("worker-manager", "Show a worker", describe_worker)
}

fn describe_worker(operation: Operation, sample: &Sample) -> Operation {
    operation
        .answers::<Worker<'_>>("The worker, without its secrets", &a_worker(sample, "running"))
        .refuses(ResourceNotFound, NO_WORKER)
}

async fn handle_worker(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    let name = named(&call)?;
    let found = worker_manager::find(&app.engine.pool, &name).await?.ok_or_else(|| ops::missing(&name))?;
    shown(&name, &found)
}

/// Also for workers that never registered.
pub fn worker_removed() -> Endpoint {
    Endpoint::post("workerRemoved", handle_worker_removed)
        .scopes(Scope("worker-manager:remove-worker:<taskQueueId>/<workerGroup>/<workerId>"))
        .described("tenure", "Report that a worker is gone, registered or not", describe_worker_removed)
}

fn describe_worker_removed(operation: Operation, _: &Sample) -> Operation {
    operation
        .about(
            "Like removeWorker. Claims of a worker that never registered end too; if it comes back, it can claim \
             again.",
        )
        .answers::<Removal>("The worker is removed", &json!({"claimsEnded": 1}))
}

async fn handle_worker_removed(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    let name = named(&call)?;
    let removed = remove(&app.intake, &call.actor()?, &name, Action::WorkerRemoved).await?;
    ok(&Removal { claims_ended: removed.ended })
}

#[cfg(test)]
mod tests {
    use super::ABOUT;
    use tenure_domain::registration::WorkerName;

    #[test]
    fn every_worker_scope_is_described() {
        let [pool, group, id] = ["the/pool", "group", "worker"];
        let name = WorkerName { pool: pool.parse().unwrap(), group: group.parse().unwrap(), id: id.parse().unwrap() };
        for scope in name.scopes() {
            let described =
                scope.replace(&format!("{group}/{id}"), "<workerGroup>/<workerId>").replace(pool, "<workerPoolId>");
            assert!(ABOUT.contains(&format!("`{described}`")), "{described}");
        }
    }
}
