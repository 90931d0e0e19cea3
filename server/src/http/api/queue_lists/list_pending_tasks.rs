//! listPendingTasks.

use serde_json::value::RawValue;
use tenure_api::bodies::TaskDefinition;

use super::{A_PAGE, a_run, place, stored, to_token};
use crate::http::api::prelude::*;
use crate::http::api::queue_views::get_task_queue::unless_queue;
use crate::http::docs::parameters::paged_from_anywhere;
use tenure_engine::ops::list_runs;

/// A run that waits.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = PendingTask)]
struct Pending {
    /// The task.
    task_id: TaskId,
    /// The run.
    run_id: RunId,
    /// The task as it was created.
    #[schema(value_type = TaskDefinition<'static>)]
    task: Box<RawValue>,
    /// Since when the run waits.
    inserted: Timestamp,
}

/// A page of a queue's pending runs.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = PendingTasks)]
struct PendingBody {
    /// In the order in which they became pending, whatever their priorities.
    tasks: Vec<Pending>,
    /// For the next page; absent on the last one.
    #[serde(skip_serializing_if = "Option::is_none")]
    continuation_token: Option<String>,
}

/// `GET /task-queues/:taskQueueId/pending`
pub fn endpoint() -> Endpoint {
    Endpoint::get("listPendingTasks", unless_queue("pending", list_pending_tasks))
        .scopes(Scope("queue:pending-list:<taskQueueId>"))
        .large_answer()
        .described("queue", "List a queue's pending tasks", describe)
}

fn describe(operation: Operation, sample: &Sample) -> Operation {
    let mut run = a_run(sample);
    run["inserted"] = sample.after(0);
    paged_from_anywhere(operation)
        .about(
            "In the order in which they became pending, which is not that in which they are claimed: priorities do not \
             count here. Those whose message a poller hides are among them. A token that is none begins at the start.",
        )
        .answers::<PendingBody>(A_PAGE, &json!({"tasks": [run]}))
}

async fn list_pending_tasks(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    call.authorize_by_path()?;
    let queue = call.task_queue_id()?;
    let (limit, token) = call.page_and_token()?;
    let Some(key) = app.engine.queues.find_key(&app.engine.pool, &queue).await? else {
        return ok(&PendingBody { tasks: Vec::new(), continuation_token: None });
    };
    let page = list_runs::list_pending(&app.engine.pool, key, place(token), limit).await?;
    let tasks = page.runs.into_iter().map(|(run, definition)| {
        Ok(Pending { task_id: run.task, run_id: run.run, task: stored(definition)?, inserted: run.scheduled.into() })
    });
    ok(&PendingBody {
        tasks: tasks.collect::<Result<_, ApiError>>()?,
        continuation_token: page.next.map(|next| to_token(&next)).transpose()?,
    })
}
