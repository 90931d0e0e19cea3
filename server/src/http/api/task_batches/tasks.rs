//! tasks: the definitions of many tasks.

use serde_json::value::RawValue;
use tenure_api::bodies::TaskDefinition;

use super::{described, task_ids};
use crate::http::api::prelude::*;
use tenure_engine::ops::list_tasks;

/// The definition of a task, among others.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = TasksEntry)]
struct TaskEntry {
    /// The task.
    task_id: TaskId,
    /// As it was created.
    #[schema(value_type = TaskDefinition<'static>)]
    task: Box<RawValue>,
}

/// The definitions of several tasks.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Tasks)]
struct TasksBody {
    /// Those that exist, each once, in the order of their ids.
    tasks: Vec<TaskEntry>,
    /// For the next page; absent on the last one.
    #[serde(skip_serializing_if = "Option::is_none")]
    continuation_token: Option<TaskId>,
}

/// `POST /tasks`
pub fn endpoint() -> Endpoint {
    Endpoint::post("tasks", tasks)
        .reads()
        .scopes(ForEach { item: "taskId", list: "taskIds", scopes: &["queue:get-task:<taskId>"] })
        .large_answer()
        .long_lists()
        .described("queue", "Read the definitions of several tasks", describe)
}

fn describe(operation: Operation, sample: &Sample) -> Operation {
    described(operation, sample).answers::<TasksBody>(
        "A page of the definitions; with a token if there are more",
        &json!({"tasks": [{"taskId": sample.task, "task": sample.definition()}]}),
    )
}

async fn tasks(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    let task_ids = task_ids(&call)?;
    let page = list_tasks::list_named(&app.engine.pool, &task_ids, call.page()?).await?;
    let invalid = |_| ApiError::internal("a stored definition is not JSON");
    let tasks = page.tasks.into_iter().map(|(task, definition)| {
        Ok(TaskEntry { task_id: task.id, task: RawValue::from_string(definition).map_err(invalid)? })
    });
    ok(&TasksBody { tasks: tasks.collect::<Result<_, ApiError>>()?, continuation_token: page.next })
}
