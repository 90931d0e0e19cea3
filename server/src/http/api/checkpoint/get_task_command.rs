//! getTaskCommand.

use tenure_api::checkpoints::CommandOfTask;

use super::values;
use crate::http::api::prelude::*;
use tenure_domain::checkpoint::COMMAND_KEPT;
use tenure_engine::ops::OpError;
use tenure_store::task_commands::{self, Stored};

/// `GET /api/tenure/v1/tasks/:taskId/command`
pub fn endpoint() -> Endpoint {
    Endpoint::get("getTaskCommand", get_task_command).scopes(SCOPES).described(
        "tenure",
        "Read the last command for a task",
        describe,
    )
}

/// By those who give commands, and by the worker that holds the task.
const SCOPES: Template =
    AnyOf(&[Scope("tenure:command-worker:<taskQueueId>"), Scope("queue:reclaim-task:<taskId>/<runId>")]);

fn describe(operation: Operation, sample: &Sample) -> Operation {
    operation
        .about(
            "A command that was carried out is not found any more. `<runId>` in the scopes is the last run of the task, so that the \
             credentials of its claim are good for this call.",
        )
        .answers::<CommandOfTask>("The command", &sample_command(sample))
        .refuses(ResourceNotFound, "the task does not exist, or no command for it waits")
}

/// A command for the document.
pub(super) fn sample_command(sample: &Sample) -> Value {
    json!({"taskId": sample.task, "id": 7, "command": "pause", "sent": sample.after(0)})
}

async fn get_task_command(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    let id = call.task_id()?;
    let task = app.engine.status.submit(id).await?;
    call.authorize(&values(&task))?;
    call.no_query()?;
    let found = task_commands::find(&mut *app.engine.pool.acquire().await?, id.uuid(), COMMAND_KEPT).await?;
    answer(id, &found.ok_or_else(|| OpError::NotFound(format!("no command for task {id} waits")))?)
}

/// A command that is stored.
pub(super) fn answer(task_id: TaskId, stored: &Stored) -> Result<Response, ApiError> {
    let Stored { id, command, until, sent } = *stored;
    ok(&CommandOfTask { task_id, id, command, until: until.map(Timestamp::new), sent: sent.into() })
}
