//! Workers over the API: created by a provisioner, admitted when they register, removed.

pub mod create_worker;
pub mod register_worker;
pub mod remove_worker;
pub mod reregister_worker;
pub mod should_worker_terminate;
pub mod update_worker;
pub mod worker;
pub mod worker_removed;

use tenure_api::worker_manager::{CAPACITY_MAX, STATIC, Worker, WorkerRequest, WorkerState};

use super::to_json;
use crate::http::api::prelude::*;
use tenure_domain::registration::{CONFIG_BYTES_MAX, WorkerName};
use tenure_engine::ops::registrations::Change;
use tenure_engine::ops::worker_removed::{self as removal, Removed};
use tenure_store::worker_manager::Registered;

const NO_WORKER: &str = "the worker was not created";

/// The secret of the examples.
const SECRET: &str = "44-characters-that-only-the-worker-knows-000";

/// In minutes.
const DAY_MINUTES: i64 = 24 * 60;

async fn remove(app: &Api, name: &WorkerName) -> Result<Removed, ApiError> {
    let removed = removal::remove(&app.engine.pool, &app.engine.queues, &app.engine.notifiers, name).await;
    // Also if it failed half-way: the worker may be noted as removed.
    app.intake.authenticator.worker_changed(&name.client_id());
    Ok(removed?)
}

/// The worker of the path, for a caller who has the scopes of the endpoint.
fn named(call: &Call) -> Result<WorkerName, ApiError> {
    call.authorize_by_path()?;
    let pool = worker_pool(call)?;
    let group = call.text_param("workerGroup").parse().map_err(|error| wrong("workerGroup", &error))?;
    let id = call.text_param("workerId").parse().map_err(|error| wrong("workerId", &error))?;
    let name = WorkerName { pool, group, id };
    call.no_query()?;
    Ok(name)
}

/// Checks before the body is read what [`named`] checks.
fn early_check(call: &Call) -> Result<(), ApiError> {
    named(call).map(drop)
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

/// The body that creates the worker of the examples.
fn new_worker(sample: &Sample) -> Value {
    json!({
        "expires": sample.after(30 * DAY_MINUTES),
        "capacity": 1,
        "providerInfo": {"staticSecret": SECRET, "workerConfig": {"idleTimeoutSecs": 0}},
    })
}

/// The worker of the examples.
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

/// Credentials of the worker of the examples.
fn example_credentials() -> Value {
    json!({
        "clientId": "worker/static/acme/linux/rack-1/worker-1",
        "accessToken": "three-dozen-characters-only-the-client-knows",
        "certificate": "{\"version\":1}",
    })
}

/// The name of the worker of the examples.
fn example_name() -> Value {
    json!({"workerPoolId": QUEUE, "workerGroup": "rack-1", "workerId": "worker-1"})
}
