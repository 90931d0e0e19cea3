//! declareWorker.

use tenure_api::workers::DeclareWorkerRequest;

use super::{DAY_MINUTES, WorkerBody, a_worker};
use crate::http::api::prelude::*;
use tenure_engine::ops::workers::{self as ops, Name};

/// `PUT /provisioners/:provisionerId/worker-types/:workerType/:workerGroup/:workerId`. Not to be confused with the path
/// of quarantineWorker, which has one segment more, even if the worker's group is called `workers`.
pub fn endpoint() -> Endpoint {
    Endpoint::put("declareWorker", declare_worker).scopes(SCOPES).early_check(may_declare).described(
        "queue",
        "Say that there is a worker",
        describe,
    )
}

/// There is one property, and it is set either way.
const SCOPES: Template = Scope("queue:declare-worker:<provisionerId>/<workerType>/<workerGroup>/<workerId>#expires");

fn describe(operation: Operation, sample: &Sample) -> Operation {
    let mut declared = a_worker(sample);
    declared["expires"] = sample.after(30 * DAY_MINUTES);
    operation
        .about(
            "It and its queue are shown until `expires`, or longer if they were to be shown longer. There is no need \
             to declare a worker that claims work.",
        )
        .takes::<DeclareWorkerRequest>(&json!({"expires": sample.after(30 * DAY_MINUTES)}))
        .answers::<WorkerBody>("The worker after it", &declared)
}

async fn declare_worker(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    may_declare(&call)?;
    let name = declared(&call)?;
    let DeclareWorkerRequest { expires } = call.json()?;
    let worker = ops::declare(&app.engine.pool, &app.engine.workers, &app.engine.queues, &name, expires.time()).await?;
    ok(&WorkerBody::from(worker))
}

/// The worker that the path names, in a queue that tasks can have: it is made if there is none.
fn declared(call: &Call) -> Result<Name, ApiError> {
    let queue = TaskQueueId::new(&call.provisioner_id()?, &call.worker_type()?);
    let (group, id) = (call.worker_group()?, call.worker_id()?);
    Ok(Name { queue, group: group.to_string(), id: id.to_string() })
}

/// What declareWorker requires.
fn may_declare(call: &Call) -> Result<(), ApiError> {
    call.authorize_by_path()?;
    call.no_query()?;
    declared(call).map(drop)
}
