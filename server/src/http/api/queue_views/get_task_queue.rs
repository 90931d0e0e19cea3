//! getTaskQueue, which is also found below the paths of other operations.

use futures_util::future::BoxFuture;
use tenure_api::ids::InvalidId;

use super::{NO_QUEUE, QueueBody, a_queue, find};
use crate::http::api::prelude::*;

/// `GET /task-queues/:taskQueueId`
pub fn endpoint() -> Endpoint {
    Endpoint::get("getTaskQueue", get_task_queue).scopes(SCOPES).described(
        "queue",
        "Read when workers last used a queue",
        describe,
    )
}

const SCOPES: Template = Scope("queue:get-task-queue:<taskQueueId>");

fn describe(operation: Operation, sample: &Sample) -> Operation {
    operation.answers::<QueueBody>("The queue", &a_queue(sample)).refuses(ResourceNotFound, NO_QUEUE)
}

async fn get_task_queue(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    call.authorize_by_path()?;
    show(&app, &call, call.task_queue_id()?).await
}

/// Another operation on a queue, below whose path there may also be a queue in two segments: `/task-queues/acme/counts`
/// is the queue `acme/counts`, and `/task-queues/acme%2Flinux/counts` a count.
pub fn unless_queue<H, F>(
    word: &'static str,
    handler: H,
) -> impl Fn(Api, Arc<Call>) -> BoxFuture<'static, Result<Response, ApiError>> + Clone + Send + Sync + 'static
where
    H: Fn(Api, Arc<Call>) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Result<Response, ApiError>> + Send + 'static,
{
    move |app, call| match call.queue_ending_in(word) {
        Some(name) => Box::pin(async move {
            call.authorize_with(&SCOPES, &Values::of_path().text("taskQueueId", name.as_str()))?;
            let wrong = |error: InvalidId| ApiError::arguments(format!("the path parameter `taskQueueId`: {error}"));
            show(&app, &call, name.parse().map_err(wrong)?).await
        }),
        None => Box::pin(handler(app, call)),
    }
}

async fn show(app: &Api, call: &Call, queue: TaskQueueId) -> Result<Response, ApiError> {
    call.no_query()?;
    ok(&QueueBody::try_from(find(app, &queue).await?)?)
}
