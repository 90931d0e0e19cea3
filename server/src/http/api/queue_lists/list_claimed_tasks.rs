//! listClaimedTasks.

use chrono::DateTime;
use serde_json::value::RawValue;
use tenure_api::bodies::TaskDefinition;

use super::{A_PAGE, a_run, place, stored, to_token};
use crate::http::api::prelude::*;
use crate::http::api::queue_views::get_task_queue::unless_queue;
use crate::http::docs::parameters::paged_from_anywhere;
use tenure_engine::ops::list_runs;

/// A run that a worker holds.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = ClaimedTask)]
struct Claimed {
    /// The task.
    task_id: TaskId,
    /// The run.
    run_id: RunId,
    /// Who holds it.
    worker_group: String,
    /// See `workerGroup`.
    worker_id: String,
    /// Since when.
    claimed: Timestamp,
    /// The task as it was created.
    #[schema(value_type = TaskDefinition<'static>)]
    task: Box<RawValue>,
}

/// A page of a queue's claimed runs.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = ClaimedTasks)]
struct ClaimedBody {
    /// In the order in which they were claimed.
    tasks: Vec<Claimed>,
    /// For the next page; absent on the last one.
    #[serde(skip_serializing_if = "Option::is_none")]
    continuation_token: Option<String>,
}

/// `GET /task-queues/:taskQueueId/claimed`
pub fn endpoint() -> Endpoint {
    Endpoint::get("listClaimedTasks", unless_queue("claimed", list_claimed_tasks))
        .scopes(Scope("queue:claimed-list:<taskQueueId>"))
        .large_answer()
        .described("queue", "List a queue's claimed tasks", describe)
}

fn describe(operation: Operation, sample: &Sample) -> Operation {
    let mut run = a_run(sample);
    run["workerGroup"] = "rack-1".into();
    run["workerId"] = "worker-1".into();
    run["claimed"] = sample.after(1);
    paged_from_anywhere(operation)
        .about("In the order in which they were claimed. A token that is none begins at the start.")
        .answers::<ClaimedBody>(A_PAGE, &json!({"tasks": [run]}))
}

async fn list_claimed_tasks(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    call.authorize_by_path()?;
    let queue = call.task_queue_id()?;
    let (limit, token) = call.page_and_token()?;
    let Some(key) = app.engine.queues.find_key(&app.engine.pool, &queue).await? else {
        return ok(&ClaimedBody { tasks: Vec::new(), continuation_token: None });
    };
    let after = place(token).and_then(|(micros, seq)| Some((DateTime::from_timestamp_micros(micros)?, seq)));
    let page = list_runs::list_claimed(&app.engine.pool, key, after, limit).await?;
    let tasks = page.runs.into_iter().map(|(run, definition)| {
        Ok(Claimed {
            task_id: run.task,
            run_id: run.run,
            worker_group: run.worker_group,
            worker_id: run.worker_id,
            claimed: run.started.into(),
            task: stored(definition)?,
        })
    });
    let next = page.next.map(|(started, seq)| to_token(&(started.timestamp_micros(), seq)));
    ok(&ClaimedBody { tasks: tasks.collect::<Result<_, ApiError>>()?, continuation_token: next.transpose()? })
}
