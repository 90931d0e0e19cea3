//! Checkpoints and commands of tasks. Workers use the credentials of their claims.

use serde_json::value::RawValue;
use tenure_api::checkpoints::{Checkpoint, CheckpointRequest, CheckpointStored, CommandOfTask, TaskCommandRequest};

use crate::http::api::prelude::*;
use tenure_domain::checkpoint::{COMMAND_KEPT, NewCheckpoint, check_command};
use tenure_domain::task::Task;
use tenure_engine::ops::create_artifact::RunRef;
use tenure_engine::ops::{OpError, checkpoint, task_command};
use tenure_store::checkpoints;
use tenure_store::task_commands::{self, Stored};

/// The task's queue and last run, which a claim's credentials name. Without a run it is `-`, which
/// matches no credentials.
fn values(task: &Task) -> Values<'_> {
    let run = task.status().runs.last().map_or_else(|| "-".to_owned(), |run| run.run_id.to_string());
    Values::of_path().text("taskQueueId", task.queue.as_str()).text("runId", run)
}

/// `GET /api/tenure/v1/tasks/:taskId/checkpoint`
pub fn get_checkpoint() -> Endpoint {
    Endpoint::get("getCheckpoint", handle_get_checkpoint).scopes(CHECKPOINT_SCOPES).described(
        "tenure",
        "Read the checkpoint of a task",
        describe_get_checkpoint,
    )
}

/// As for results. The task's worker may read it too, to resume.
const CHECKPOINT_SCOPES: Template =
    AnyOf(&[Scope("tenure:get-result:<taskQueueId>"), Scope("queue:reclaim-task:<taskId>/<runId>")]);

fn describe_get_checkpoint(operation: Operation, sample: &Sample) -> Operation {
    operation
        .about(
            "The last checkpoint that a worker of the task stored with putCheckpoint, in any run. `<runId>` in the \
             scopes is the last run of the task, so the credentials of its claim allow this call.",
        )
        .answers::<Checkpoint<'_>>(
            "The checkpoint",
            &json!({"taskId": sample.task, "runId": 0, "checkpoint": {"done": 3, "of": 12}, "updated": sample.after(1)}),
        )
        .refuses(ResourceNotFound, "the task does not exist, or has no checkpoint")
}

async fn handle_get_checkpoint(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    let id = call.task_id()?;
    let task = app.engine.status.submit(id).await?;
    call.authorize(&values(&task))?;
    call.no_query()?;
    let found = checkpoints::find(&mut *app.engine.pool.acquire().await?, id.uuid()).await?;
    let stored = found.ok_or_else(|| OpError::NotFound(format!("task {id} has no checkpoint")))?;
    let checkpoint: &RawValue =
        serde_json::from_str(&stored.checkpoint).map_err(|_| ApiError::internal("a stored checkpoint is no JSON"))?;
    ok(&Checkpoint { task_id: id, run_id: stored.run, checkpoint, updated: stored.updated.into() })
}

/// `GET /api/tenure/v1/tasks/:taskId/command`
pub fn get_task_command() -> Endpoint {
    Endpoint::get("getTaskCommand", handle_get_task_command).scopes(COMMAND_SCOPES).described(
        "tenure",
        "Read the last command for a task",
        describe_get_task_command,
    )
}

/// For senders of commands, and for the task's worker.
const COMMAND_SCOPES: Template =
    AnyOf(&[Scope("tenure:command-worker:<taskQueueId>"), Scope("queue:reclaim-task:<taskId>/<runId>")]);

fn describe_get_task_command(operation: Operation, sample: &Sample) -> Operation {
    operation
        .about(
            "A completed command is no longer found. `<runId>` in the scopes is the last run of the task, so the \
             credentials of its claim allow this call.",
        )
        .answers::<CommandOfTask>("The command", &sample_command(sample))
        .refuses(ResourceNotFound, "the task does not exist, or has no waiting command")
}

pub(super) fn sample_command(sample: &Sample) -> Value {
    json!({"taskId": sample.task, "id": 7, "command": "pause", "sent": sample.after(0)})
}

async fn handle_get_task_command(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    let id = call.task_id()?;
    let task = app.engine.status.submit(id).await?;
    call.authorize(&values(&task))?;
    call.no_query()?;
    let found = task_commands::find(&mut *app.engine.pool.acquire().await?, id.uuid(), COMMAND_KEPT).await?;
    answer(id, &found.ok_or_else(|| OpError::NotFound(format!("no command for task {id} waits")))?)
}

pub(super) fn answer(task_id: TaskId, stored: &Stored) -> Result<Response, ApiError> {
    let Stored { id, command, until, sent } = *stored;
    ok(&CommandOfTask { task_id, id, command, until: until.map(Timestamp::new), sent: sent.into() })
}

/// `PUT /api/tenure/v1/tasks/:taskId/runs/:runId/checkpoint`
pub fn put_checkpoint() -> Endpoint {
    Endpoint::put("putCheckpoint", handle_put_checkpoint)
        .scopes(Scope("queue:reclaim-task:<taskId>/<runId>"))
        .early_check(Call::authorize_by_path)
        .described("tenure", "Store the checkpoint of a run", describe_put_checkpoint)
}

fn describe_put_checkpoint(operation: Operation, sample: &Sample) -> Operation {
    operation
        .about(
            "For the worker that holds the run, with the credentials of its claim. A task has one checkpoint, which \
             replaces the previous one. It shows progress to people, and the next run continues from it if this one \
             is lost or released. It is kept as long as the task. With `commandId` the worker reports that it has \
             completed that command; the command is deleted in the same transaction.",
        )
        .takes::<CheckpointRequest<'_>>(&json!({"checkpoint": {"done": 3, "of": 12}}))
        .answers::<CheckpointStored>("The checkpoint is stored", &json!({"updated": sample.after(1)}))
        .refuses(InputError, "`checkpoint` has more than 65,536 bytes as compact JSON, or `commandId` is less than 1")
        .refuses(ResourceNotFound, "the task or the run does not exist")
        .refuses(RequestConflict, "the run is not claimed: it waits for a worker, or it has ended")
}

async fn handle_put_checkpoint(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    call.authorize_by_path()?;
    let of = RunRef { task: call.task_id()?, run: call.run_id()? };
    call.no_query()?;
    let new = NewCheckpoint::from_request(&call.json::<CheckpointRequest<'_>>()?)?;
    let updated = checkpoint::put(&app.engine.pool, of, &new).await?;
    ok(&CheckpointStored { updated: updated.into() })
}

/// `PUT /api/tenure/v1/tasks/:taskId/command`
pub fn put_task_command() -> Endpoint {
    Endpoint::put("putTaskCommand", handle_put_task_command)
        .scopes(Scope("tenure:command-worker:<taskQueueId>"))
        .described("tenure", "Send a command to the worker of a task", describe_put_task_command)
}

fn describe_put_task_command(operation: Operation, sample: &Sample) -> Operation {
    operation
        .about(
            "It replaces an earlier command. It is kept until a checkpoint of the worker reports that it was \
             completed, or for a week. A worker that holds the task by a session finds it in its inbox within a \
             second; other workers read it with getTaskCommand after the claim. A run that was released with a delay \
             becomes claimable at once. Commands are the messages of the state machine of Tenure's client library; \
             other workers may interpret or ignore them. To end a task regardless of its worker, cancel it.",
        )
        .takes::<TaskCommandRequest>(&json!({"command": "pause"}))
        .answers::<CommandOfTask>("The command is stored", &sample_command(sample))
        .refuses(InputError, "`sleep` lacks `until`, or another command has it")
        .refuses(ResourceNotFound, "the task does not exist")
        .refuses(RequestConflict, "the task is resolved")
}

async fn handle_put_task_command(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    let id = call.task_id()?;
    let task = app.engine.status.submit(id).await?;
    call.authorize(&values(&task))?;
    call.no_query()?;
    let sent: TaskCommandRequest = call.json()?;
    check_command(&sent)?;
    let wanted = (sent.command, sent.until.map(Timestamp::time));
    let stored = task_command::put(&app.engine.pool, &app.engine.notifiers, &call.actor()?, id, wanted).await?;
    answer(id, &stored)
}
