//! Batch reads of tasks: tasks, statuses.

use serde_json::value::RawValue;
use tenure_api::bodies::{Status, TASK_IDS_MAX, TaskDefinition, TaskIdsRequest};

use crate::http::api::prelude::*;
use tenure_engine::ops::list_tasks;

fn described(operation: Operation, sample: &Sample) -> Operation {
    paged(operation)
        .about(&format!(
            "Up to {TASK_IDS_MAX} tasks. Each existing task is returned once, sorted by id; others are left out. For \
             the next page, send the same body with the token of the response."
        ))
        .takes::<TaskIdsRequest>(&json!({"taskIds": [sample.task]}))
}

/// Invalid ids are dropped.
fn task_ids(call: &Call) -> Result<Vec<TaskId>, ApiError> {
    call.page()?;
    let TaskIdsRequest { task_ids } = call.json()?;
    if task_ids.len() > TASK_IDS_MAX {
        return Err(ApiError::body(format_args!("`taskIds` must have at most {TASK_IDS_MAX} items")));
    }
    call.authorize(&Values::of_path().list("taskIds", task_ids.iter().map(String::as_str)))?;
    Ok(task_ids.iter().filter_map(|id| id.parse().ok()).collect())
}

/// Status of one task, in a batch.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = StatusesEntry)]
struct StatusEntry {
    /// Id of the task.
    task_id: TaskId,
    /// Current status.
    status: Status,
}

/// Statuses of several tasks.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Statuses)]
struct StatusesBody {
    /// Existing tasks, without duplicates, ordered by id.
    statuses: Vec<StatusEntry>,
    /// Token for the next page; absent on the last one.
    #[serde(skip_serializing_if = "Option::is_none")]
    continuation_token: Option<TaskId>,
}

/// `POST /tasks/status`
pub fn statuses() -> Endpoint {
    Endpoint::post("statuses", handle_statuses)
        .reads()
        .scopes(ForEach { item: "taskId", list: "taskIds", scopes: &["queue:status:<taskId>"] })
        .large_answer()
        .long_lists()
        .described("queue", "Read the statuses of several tasks", describe_statuses)
}

fn describe_statuses(operation: Operation, sample: &Sample) -> Operation {
    described(operation, sample).answers::<StatusesBody>(
        "A page of the statuses; with a token if there are more",
        &json!({"statuses": [{"taskId": sample.task, "status": sample.status("pending")}]}),
    )
}

async fn handle_statuses(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    let task_ids = task_ids(&call)?;
    let (tasks, continuation_token) = list_tasks::list_statuses(&app.engine.pool, &task_ids, call.page()?).await?;
    let statuses = tasks.iter().map(|task| StatusEntry { task_id: task.id, status: task.status() }).collect();
    ok(&StatusesBody { statuses, continuation_token })
}

/// Definition of one task, in a batch.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = TasksEntry)]
struct TaskEntry {
    /// Id of the task.
    task_id: TaskId,
    /// The definition, as created.
    #[schema(value_type = TaskDefinition<'static>)]
    task: Box<RawValue>,
}

/// Definitions of several tasks.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Tasks)]
struct TasksBody {
    /// Existing tasks, without duplicates, ordered by id.
    tasks: Vec<TaskEntry>,
    /// Token for the next page; absent on the last one.
    #[serde(skip_serializing_if = "Option::is_none")]
    continuation_token: Option<TaskId>,
}

/// `POST /tasks`
pub fn tasks() -> Endpoint {
    Endpoint::post("tasks", handle_tasks)
        .reads()
        .scopes(ForEach { item: "taskId", list: "taskIds", scopes: &["queue:get-task:<taskId>"] })
        .large_answer()
        .long_lists()
        .described("queue", "Read the definitions of several tasks", describe_tasks)
}

fn describe_tasks(operation: Operation, sample: &Sample) -> Operation {
    described(operation, sample).answers::<TasksBody>(
        "A page of the definitions; with a token if there are more",
        &json!({"tasks": [{"taskId": sample.task, "task": sample.definition()}]}),
    )
}

async fn handle_tasks(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    let task_ids = task_ids(&call)?;
    let page = list_tasks::list_named(&app.engine.pool, &task_ids, call.page()?).await?;
    let invalid = |_| ApiError::internal("a stored definition is not JSON");
    let tasks = page.tasks.into_iter().map(|(task, definition)| {
        Ok(TaskEntry { task_id: task.id, task: RawValue::from_string(definition).map_err(invalid)? })
    });
    ok(&TasksBody { tasks: tasks.collect::<Result<_, ApiError>>()?, continuation_token: page.next })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn task_batches_are_large_answers() {
        for endpoint in [tasks(), statuses()] {
            assert!(endpoint.declaration.has_large_answer, "{}", endpoint.declaration.name);
        }
    }
}
