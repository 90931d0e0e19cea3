//! listTaskQueues.

use super::{QueueBody, a_queue, list, read_page};
use crate::http::api::prelude::*;

/// A page of queues.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = TaskQueues)]
struct QueuesBody {
    /// By name.
    task_queues: Vec<QueueBody>,
    /// For the next page; absent on the last one.
    #[serde(skip_serializing_if = "Option::is_none")]
    continuation_token: Option<String>,
}

/// `GET /task-queues`
pub fn endpoint() -> Endpoint {
    Endpoint::get("listTaskQueues", list_task_queues).scopes(Scope("queue:list-task-queues")).described(
        "queue",
        "List the queues that workers ask",
        describe,
    )
}

fn describe(operation: Operation, sample: &Sample) -> Operation {
    paged(operation)
        .about(
            "A queue is shown from the first time that a worker polls it until a day after the last. Queues that only \
             have tasks are not among them; `listQueues` has those too.",
        )
        .answers::<QueuesBody>(
            "A page, by name; with a token if there are more",
            &json!({"taskQueues": [a_queue(sample)]}),
        )
}

async fn list_task_queues(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    call.authorize_by_path()?;
    let page = read_page(&call)?;
    let after = page.after.as_deref().unwrap_or_default();
    let (rows, continuation_token) = list(&app, &page, after, None).await?;
    let task_queues = rows.into_iter().map(QueueBody::try_from).collect::<Result<_, _>>()?;
    ok(&QueuesBody { task_queues, continuation_token })
}
