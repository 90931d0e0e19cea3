//! getWorkerType.

use super::{NO_QUEUE, TypeBody, a_type, find, joined, unseen};
use crate::http::api::prelude::*;

/// `GET /provisioners/:provisionerId/worker-types/:workerType`
pub fn endpoint() -> Endpoint {
    Endpoint::get("getWorkerType", get_worker_type)
        .scopes(Scope("queue:get-worker-type:<provisionerId>/<workerType>"))
        .described("queue", "Read when workers last used a queue, by the halves of its name", describe)
}

fn describe(operation: Operation, sample: &Sample) -> Operation {
    operation
        .answers::<TypeBody>("The queue", &joined([a_type(sample), json!({"actions": []})]))
        .refuses(ResourceNotFound, NO_QUEUE)
}

async fn get_worker_type(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    call.authorize_by_path()?;
    let queue = call.queue_of_halves()?;
    call.no_query()?;
    let queue = queue.ok_or_else(|| unseen(&call.task_queue_text()))?;
    ok(&TypeBody { actions: Some([]), ..find(&app, &queue).await?.try_into()? })
}
