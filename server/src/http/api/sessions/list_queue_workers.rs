//! listQueueWorkers.

use tenure_api::sessions::{QueueWorker, QueueWorkers};

use super::{READING, example_worker};
use crate::http::api::prelude::*;
use tenure_engine::ops::sessions;
use tenure_store::worker_sessions::Member;

/// `GET /api/tenure/v1/queues/:taskQueueId/workers`
pub fn endpoint() -> Endpoint {
    Endpoint::get("listQueueWorkers", list_queue_workers).scopes(READING).large_answer().described(
        "tenure",
        "List the workers that have a session in a queue",
        describe,
    )
}

fn describe(operation: Operation, sample: &Sample) -> Operation {
    operation
        .about(
            "Their live sessions with the number of runs that each holds, all at one time: a session that ends has either all of \
             its runs here, or is not here. Workers without a session are in listWorkers. A queue that does not exist yet has none.",
        )
        .answers::<QueueWorkers>("The sessions", &json!({"workers": [example_worker(sample)]}))
}

async fn list_queue_workers(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    call.authorize_by_path()?;
    let queue = call.task_queue_id()?;
    call.no_query()?;
    let workers = sessions::list_workers(app.engine.session_parts(), &queue).await?.into_iter().map(body).collect();
    ok(&QueueWorkers { workers })
}

fn body(member: Member) -> QueueWorker {
    let Member { identity, weight, capacity, frozen, until, running, assigned } = member;
    QueueWorker {
        worker_group: identity.worker_group,
        worker_id: identity.worker_id,
        session_id: identity.id,
        running,
        assigned,
        capacity: capacity.into(),
        weight: weight.into(),
        frozen,
        started: identity.started.into(),
        expires: until.into(),
    }
}
