//! statuses: those of many tasks.

use tenure_api::bodies::Status;

use super::{described, task_ids};
use crate::http::api::prelude::*;
use tenure_engine::ops::list_tasks;

/// The status of a task, among others.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = StatusesEntry)]
struct StatusEntry {
    /// The task.
    task_id: TaskId,
    /// How it is.
    status: Status,
}

/// The statuses of several tasks.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Statuses)]
struct StatusesBody {
    /// Those that exist, each once, in the order of their ids.
    statuses: Vec<StatusEntry>,
    /// For the next page; absent on the last one.
    #[serde(skip_serializing_if = "Option::is_none")]
    continuation_token: Option<TaskId>,
}

/// `POST /tasks/status`
pub fn endpoint() -> Endpoint {
    Endpoint::post("statuses", statuses)
        .reads()
        .scopes(ForEach { item: "taskId", list: "taskIds", scopes: &["queue:status:<taskId>"] })
        .large_answer()
        .long_lists()
        .described("queue", "Read the statuses of several tasks", describe)
}

fn describe(operation: Operation, sample: &Sample) -> Operation {
    described(operation, sample).answers::<StatusesBody>(
        "A page of the statuses; with a token if there are more",
        &json!({"statuses": [{"taskId": sample.task, "status": sample.status("pending")}]}),
    )
}

async fn statuses(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    let task_ids = task_ids(&call)?;
    let (tasks, continuation_token) = list_tasks::list_statuses(&app.engine.pool, &task_ids, call.page()?).await?;
    let statuses = tasks.iter().map(|task| StatusEntry { task_id: task.id, status: task.status() }).collect();
    ok(&StatusesBody { statuses, continuation_token })
}
