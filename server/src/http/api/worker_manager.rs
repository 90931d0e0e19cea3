//! Workers over the API: made known by a provisioner, let in when they register, removed.

use std::sync::Arc;

use axum::response::Response;
use tenure_api::dates::Timestamp;
use tenure_api::ids::TaskQueueId;
use tenure_api::worker_manager::{
    CAPACITY_MAX, NewProviderInfo, NewWorkerRequest, ProviderInfo, RegisterWorkerRequest, RegisterWorkerResponse,
    Removal, ReregisterWorkerRequest, ReregisterWorkerResponse, STATIC, ShouldTerminate, Worker, WorkerRequest,
    WorkerState,
};

use super::{ok, raw};
use crate::domain::registration::{CONFIG_BYTES_MAX, Standing, WorkerName};
use crate::domain::scopes::Expression;
use crate::http::app::App;
use crate::http::call::Call;
use crate::http::error::ApiError;
use crate::ops::registrations::{self as ops, Change, Create};
use crate::ops::worker_removed::{self, Removed};
use crate::store::worker_manager::{self, Registered};

/// `GET /workers/:workerPoolId/:workerGroup/:workerId`
pub async fn worker(app: App, call: Arc<Call>) -> Result<Response, ApiError> {
    let name = named(&call, "get-worker")?;
    let found = worker_manager::find(&app.engine.pool, &name).await?.ok_or_else(|| ops::missing(&name))?;
    shown(&name, &found)
}

/// `PUT /workers/:workerPoolId/:workerGroup/:workerId`
pub async fn create_worker(app: App, call: Arc<Call>) -> Result<Response, ApiError> {
    let name = named(&call, "create-worker")?;
    let NewWorkerRequest { expires, capacity, provider_info } = call.json()?;
    let NewProviderInfo { static_secret: secret, worker_config } = provider_info;
    let rest = ProviderInfo { static_secret: None, worker_config };
    let change = read(WorkerRequest { expires, capacity, provider_info: Some(rest) })?;
    let config = change.config.unwrap_or_else(|| "{}".to_owned());
    let create = Create { secret, capacity: change.capacity, config, expires: change.expires };
    let made = ops::create(&app.engine.pool, &app.worker_digests, &name, &create).await?;
    app.authenticator.worker_changed(&name.client_id());
    shown(&name, &made)
}

/// `POST /workers/:workerPoolId/:workerGroup/:workerId`
pub async fn update_worker(app: App, call: Arc<Call>) -> Result<Response, ApiError> {
    let name = named(&call, "update-worker")?;
    let changed = ops::update(&app.engine.pool, &app.worker_digests, &name, read(call.json()?)?).await?;
    app.authenticator.worker_changed(&name.client_id());
    shown(&name, &changed)
}

/// `DELETE /workers/:workerPoolId/:workerGroup/:workerId`
pub async fn remove_worker(app: App, call: Arc<Call>) -> Result<Response, ApiError> {
    let name = named(&call, "remove-worker")?;
    if worker_manager::find(&app.engine.pool, &name).await?.is_none() {
        return Err(ops::missing(&name).into());
    }
    remove(&app, &name).await?;
    Ok(raw("{}".to_owned()))
}

/// `POST /api/tenure/v1/workers/:taskQueueId/:workerGroup/:workerId/removed`: also for workers that never registered.
pub async fn worker_removed(app: App, call: Arc<Call>) -> Result<Response, ApiError> {
    let name = named(&call, "remove-worker")?;
    let removed = remove(&app, &name).await?;
    ok(&Removal { claims_ended: removed.ended })
}

/// `GET /workers/:workerPoolId/:workerGroup/:workerId/should-terminate`
pub async fn should_worker_terminate(app: App, call: Arc<Call>) -> Result<Response, ApiError> {
    let name = named(&call, "should-worker-terminate")?;
    let found = worker_manager::find(&app.engine.pool, &name).await?;
    let (terminate, reason) = Standing::should_terminate(found.as_ref().map(Registered::standing));
    ok(&ShouldTerminate { terminate, reason })
}

/// `POST /worker/register`
pub async fn register_worker(app: App, call: Arc<Call>) -> Result<Response, ApiError> {
    call.no_query()?;
    let body: RegisterWorkerRequest = call.json()?;
    let name = WorkerName { pool: body.worker_pool_id, group: body.worker_group, id: body.worker_id };
    let secret = body.worker_identity_proof.static_secret;
    let let_in = ops::register(&app.engine.pool, &app.worker_digests, &name, &body.provider_id, &secret).await?;
    app.authenticator.worker_changed(&name.client_id());
    ok(&RegisterWorkerResponse {
        expires: Timestamp::new(let_in.until),
        credentials: app.authenticator.worker_credentials().issue(&name, let_in.from, let_in.until),
        worker_config: serde_json::from_str(&let_in.config)
            .map_err(|_| ApiError::internal("a stored worker has an unfit config"))?,
        secret: let_in.secret,
    })
}

/// `POST /worker/reregister`
pub async fn reregister_worker(app: App, call: Arc<Call>) -> Result<Response, ApiError> {
    call.no_query()?;
    let body: ReregisterWorkerRequest = call.json()?;
    let name = WorkerName { pool: body.worker_pool_id, group: body.worker_group, id: body.worker_id };
    call.authorize(&needed("reregister-worker", &name))?;
    let let_in = ops::reregister(&app.engine.pool, &app.worker_digests, &name, &body.secret).await?;
    ok(&ReregisterWorkerResponse {
        expires: Timestamp::new(let_in.until),
        credentials: app.authenticator.worker_credentials().issue(&name, let_in.from, let_in.until),
        secret: let_in.secret,
    })
}

async fn remove(app: &App, name: &WorkerName) -> Result<Removed, ApiError> {
    let removed = worker_removed::remove(&app.engine.pool, &app.engine.queues, &app.engine.bells, name).await;
    // Also if it failed half-way: the worker may be noted as removed.
    app.authenticator.worker_changed(&name.client_id());
    Ok(removed?)
}

/// The worker of the path, for a caller who may do this to it.
fn named(call: &Call, action: &str) -> Result<WorkerName, ApiError> {
    let pool = worker_pool(call)?;
    let group = call.text_param("workerGroup").parse().map_err(|error| wrong("workerGroup", &error))?;
    let id = call.text_param("workerId").parse().map_err(|error| wrong("workerId", &error))?;
    let name = WorkerName { pool, group, id };
    call.no_query()?;
    call.authorize(&needed(action, &name))?;
    Ok(name)
}

/// The worker pool of the path, which is a task queue.
pub(super) fn worker_pool(call: &Call) -> Result<TaskQueueId, ApiError> {
    match call.text_param("provisionerId") {
        "" => {
            let whole = ["workerPoolId", "taskQueueId"].map(|name| call.text_param(name)).concat();
            whole.parse().map_err(|error| wrong("workerPoolId", &error))
        }
        provisioner => {
            let whole = format!("{provisioner}/{}", call.text_param("workerType"));
            whole.parse().map_err(|error| wrong("provisionerId/workerType", &error))
        }
    }
}

fn wrong(name: &str, error: &dyn std::fmt::Display) -> ApiError {
    ApiError::arguments(format!("the path parameter `{name}`: {error}"))
}

/// What createWorker requires.
pub fn may_create(call: &Call) -> Result<(), ApiError> {
    named(call, "create-worker").map(drop)
}

/// What updateWorker requires.
pub fn may_update(call: &Call) -> Result<(), ApiError> {
    named(call, "update-worker").map(drop)
}

fn needed(action: &str, name: &WorkerName) -> Expression {
    Expression::from(format!("worker-manager:{action}:{name}"))
}

fn read(request: WorkerRequest) -> Result<Change, ApiError> {
    let WorkerRequest { expires, capacity, provider_info } = request;
    if !(1..=CAPACITY_MAX).contains(&capacity) {
        return Err(ApiError::body(format!("`capacity` must be from 1 to {CAPACITY_MAX}")));
    }
    let info = provider_info.unwrap_or_default();
    let config = info.worker_config.map(|config| super::to_json(&config)).transpose()?;
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
        state: if worker.removed.is_some() { WorkerState::Stopped } else { WorkerState::Running },
        capacity: worker.capacity.try_into().unwrap_or(CAPACITY_MAX),
    })
}
