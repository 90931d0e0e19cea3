//! quarantineWorker.

use tenure_api::workers::QuarantineWorkerRequest;

use super::{DAY_MINUTES, WorkerBody, a_worker, name};
use crate::http::api::prelude::*;
use tenure_domain::worker::check_info;
use tenure_engine::ops::workers as ops;
use tenure_store::workers::Quarantine;

/// The client that the history names if a worker was quarantined without credentials, which takes a role `anonymous` that
/// may.
const ANONYMOUS: &str = "anonymous";

/// `PUT /provisioners/:provisionerId/worker-types/:workerType/workers/:workerGroup/:workerId`
pub fn endpoint() -> Endpoint {
    Endpoint::put("quarantineWorker", quarantine_worker)
        .scopes(Scope("queue:quarantine-worker:<provisionerId>/<workerType>/<workerGroup>/<workerId>"))
        .early_check(may_quarantine)
        .described("queue", "Give a worker no work until a date", describe)
}

fn describe(operation: Operation, sample: &Sample) -> Operation {
    let mut quarantined = a_worker(sample);
    quarantined["quarantineUntil"] = sample.after(3 * DAY_MINUTES);
    quarantined["quarantineDetails"] = json!([{
        "clientId": "root",
        "updatedAt": sample.after(2),
        "quarantineUntil": sample.after(3 * DAY_MINUTES),
        "quarantineInfo": "its disk is full",
    }]);
    operation
        .about(
            "It may still poll, but gets no work; the claims that it has it may renew and report. A claimTask of it is \
             refused with 409. This server gives it no work from the answer on, others half a second later at most. A \
             date in the past lifts the quarantine. A worker that is quarantined does not expire.",
        )
        .takes::<QuarantineWorkerRequest>(&json!({
            "quarantineUntil": sample.after(3 * DAY_MINUTES),
            "quarantineInfo": "its disk is full",
        }))
        .answers::<WorkerBody>("The worker after it", &quarantined)
        .refuses(ResourceNotFound, "the worker does not exist, or has expired")
}

async fn quarantine_worker(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    may_quarantine(&call)?;
    let QuarantineWorkerRequest { quarantine_until, quarantine_info } = call.json()?;
    let info = quarantine_info.as_deref();
    if let Some(wrong) = check_info(info) {
        return Err(ApiError::new(ErrorCode::InputValidationError, format!("the body: {wrong}")));
    }
    let name = name(&call)?;
    let client_id = call.principal()?.client_id.as_deref().unwrap_or(ANONYMOUS);
    let change = Quarantine { until: quarantine_until.time(), info, client_id };
    let engine = &app.engine;
    let worker = ops::quarantine(&engine.pool, &engine.facts, &engine.workers, &engine.queues, &name, change).await?;
    ok(&WorkerBody::from(worker))
}

/// What quarantineWorker requires.
fn may_quarantine(call: &Call) -> Result<(), ApiError> {
    call.authorize_by_path()?;
    call.no_query()?;
    name(call).map(drop)
}
