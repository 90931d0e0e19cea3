//! task: a task's definition.

use tenure_api::bodies::TaskDefinition;

use tenure_domain::create::shown_definition;
use tenure_engine::ops::OpError;
use tenure_store::tasks;

use crate::http::api::prelude::*;

/// `GET /task/:taskId`
pub fn endpoint() -> Endpoint {
    Endpoint::get("task", task).scopes(Scope("queue:get-task:<taskId>")).described(
        "queue",
        "Read a task's definition",
        describe,
    )
}

fn describe(operation: Operation, sample: &Sample) -> Operation {
    operation
        .about("As created, with all defaults filled in. Only the priority can change.")
        .answers::<TaskDefinition<'_>>("The definition", &sample.definition())
        .refuses(ResourceNotFound, "the task does not exist")
}

async fn task(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    call.authorize(&Values::of_path())?;
    let id = call.task_id()?;
    call.no_query()?;
    let mut conn = app.engine.pool.acquire().await?;
    let found = tasks::find_definition_and_priority(&mut conn, id.uuid()).await?;
    let (definition, priority) = found.ok_or_else(|| OpError::NotFound(format!("task {id} does not exist")))?;
    Ok(raw(shown_definition(definition, priority)))
}
