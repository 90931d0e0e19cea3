//! putTaskCommand.

use tenure_api::checkpoints::TaskCommandRequest;

use super::get_task_command::{answer, sample_command};
use super::values;
use crate::http::api::prelude::*;
use crate::http::api::queue_policy::client_id;
use tenure_api::checkpoints::CommandOfTask;
use tenure_domain::checkpoint::check_command;
use tenure_engine::ops::task_command;

/// `PUT /api/tenure/v1/tasks/:taskId/command`
pub fn endpoint() -> Endpoint {
    Endpoint::put("putTaskCommand", put_task_command).scopes(Scope("tenure:command-worker:<taskQueueId>")).described(
        "tenure",
        "Send a command to the worker of a task",
        describe,
    )
}

fn describe(operation: Operation, sample: &Sample) -> Operation {
    operation
        .about(
            "It takes the place of an earlier one, and is kept until a checkpoint of the worker says that it was carried out, or for a \
             week. A worker that holds the task by a session finds it in its inbox within a second; any other one reads it with \
             getTaskCommand when it has claimed the task. A run that its worker has released until later becomes claimable at once. \
             The words are the messages of the state machine of Tenure's client library; a worker without one may do with them what \
             it likes, or nothing. To end a task whatever its worker does, cancel it.",
        )
        .takes::<TaskCommandRequest>(&json!({"command": "pause"}))
        .answers::<CommandOfTask>("The command is stored", &sample_command(sample))
        .refuses(InputError, "`sleep` comes without `until`, or another command with it")
        .refuses(ResourceNotFound, "the task does not exist")
        .refuses(RequestConflict, "the task is resolved")
}

async fn put_task_command(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    let id = call.task_id()?;
    // The scope names the task's queue.
    let task = app.engine.status.submit(id).await?;
    call.authorize(&values(&task))?;
    call.no_query()?;
    let sent: TaskCommandRequest = call.json()?;
    check_command(&sent)?;
    let wanted = (sent.command, sent.until.map(Timestamp::time));
    let stored = task_command::put(&app.engine.pool, &app.engine.notifiers, id, wanted, client_id(&call)?).await?;
    answer(id, &stored)
}
