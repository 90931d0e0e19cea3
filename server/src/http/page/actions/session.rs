//! Actions on sessions of workers.

use maud::html;
use tenure_api::ids::TaskId;
use tenure_api::sessions::CommandRequest;
use tenure_api::states::WorkerCommand;

use super::form::{Field, Form, ready};
use super::{Action, Failed, Order, Outcome, Subject, mismatch};
use crate::http::page::error::PageError;
use crate::http::page::pause::reading_scope;
use crate::http::page::rows::{ROWS_MAX, claims_scope};
use tenure_domain::session::Identity;
use tenure_engine::ops::sessions;
use tenure_store::page::{self, Filter};

pub(super) const ACTIONS: &[Action] = &[
    Action::new(
        "freeze",
        "commandSession",
        "Freeze",
        |_| ready(Ok(command_form("Freeze", "The worker takes no more tasks, and finishes those that it holds."))),
        |order| Box::pin(send(order, WorkerCommand::Freeze)),
    )
    .direct()
    .offered(|subject| !is_frozen(subject))
    .command(|subject| command(subject, "freeze")),
    Action::new(
        "unfreeze",
        "commandSession",
        "Unfreeze",
        |_| ready(Ok(command_form("Unfreeze", "The worker takes tasks again."))),
        |order| Box::pin(send(order, WorkerCommand::Unfreeze)),
    )
    .direct()
    .offered(is_frozen)
    .command(|subject| command(subject, "unfreeze")),
    Action::new(
        "shutdown",
        "commandSession",
        "Shut down…",
        |_| ready(Ok(command_form("Shut the worker down", "The worker finishes the tasks that it holds, and ends."))),
        |order| Box::pin(send(order, WorkerCommand::Shutdown)),
    )
    .command(|subject| command(subject, "shutdown")),
    Action::new(
        "stop-task",
        "commandSession",
        "Stop a task…",
        |order| Box::pin(stop_form(order)),
        |order| Box::pin(send(order, WorkerCommand::StopTask)),
    )
    .command(|subject| command(subject, "stop-task --task TASK")),
    Action::new("end", "endSession", "End…", |order| Box::pin(end_form(order)), |order| Box::pin(end(order))).command(
        |subject| match subject {
            Subject::Session { identity, .. } => Some(format!("session end {}", identity.id)),
            _ => None,
        },
    ),
];

fn of<'a>(order: &Order<'a>) -> Result<&'a Identity, PageError> {
    match order.subject {
        Subject::Session { identity, .. } => Ok(identity),
        _ => Err(mismatch()),
    }
}

fn is_frozen(subject: &Subject) -> bool {
    matches!(subject, Subject::Session { is_frozen: true, .. })
}

fn command(subject: &Subject, words: &str) -> Option<String> {
    match subject {
        Subject::Session { identity, .. } => Some(format!("session command {} {words}", identity.id)),
        _ => None,
    }
}

fn command_form(button: &'static str, about: &str) -> Form {
    let about = html! {
        p.dim { (about) }
        p.dim { "The command waits in the inbox of the session until the worker carries it out." }
    };
    Form::new(button, about)
}

/// Proposes the tasks of the worker, to visitors who may list them.
async fn stop_form(order: &Order<'_>) -> Result<Form, PageError> {
    let (engine, Identity { queue, worker_group, worker_id, .. }) = (&order.app.engine, of(order)?);
    let mut held = Vec::new();
    if order.visit.may(claims_scope(queue.as_str()))
        && let Some(key) = engine.queues.find_key(&engine.pool, queue).await?
    {
        let only = [key];
        let filter = Filter { queues: Some(&only), worker: Some((worker_group.as_str(), worker_id.as_str())) };
        let mut conn = page::begin(&engine.pool).await?;
        let claims = page::list_claims(&mut conn, engine.due_marks.get().claims, filter, ROWS_MAX).await?;
        conn.commit().await?;
        held.extend(claims.into_iter().flatten().map(|claim| claim.task.to_string()));
    }
    let about = html! {
        p.dim { "The worker stops this task. The command waits in the inbox of the session until then. To end a task \
                 regardless of its worker, cancel it." }
        @if !held.is_empty() { p { "It holds " @for task in &held { code { (task) } " " } } }
    };
    Ok(Form::new("Stop the task", about).with([Field::proposals("taskId", "Task", held)]))
}

async fn send(order: &Order<'_>, command: WorkerCommand) -> Result<Outcome, Failed> {
    let task_id: Option<TaskId> = match command {
        WorkerCommand::StopTask => order.sent.parse("taskId", "the id of a task")?,
        _ => None,
    };
    let request = CommandRequest { command, task_id };
    sessions::command(order.app.engine.session_parts(), &order.actor, of(order)?, &request).await?;
    Ok(Outcome::Done(format!("The command {command} is in the inbox of the session.")))
}

/// Counts the runs that leave the session, for visitors who may read it.
async fn end_form(order: &Order<'_>) -> Result<Form, PageError> {
    let identity = of(order)?;
    let may_read = order.visit.may(reading_scope(&identity.queue));
    let stored = sessions::find(order.app.engine.session_parts(), identity.id).await?;
    let about = html! {
        p.warning {
            @if stored.ended.is_some() {
                "The session has already ended."
            } @else if !may_read {
                "Its running and assigned runs leave it."
            } @else {
                "Its " (stored.running) " running and " (stored.assigned) " assigned runs leave it."
            }
        }
        p.dim { "They become pending again without using a retry, but runs of at-most-once tasks end as exceptions. The \
                 worker may start another session." }
    };
    Ok(Form::new("End the session", about))
}

async fn end(order: &Order<'_>) -> Result<Outcome, Failed> {
    let returned = sessions::close(order.app.engine.session_parts(), &order.actor, of(order)?).await?;
    Ok(Outcome::Done(match returned {
        1 => "The session has ended; 1 run left it.".to_owned(),
        returned => format!("The session has ended; {returned} runs left it."),
    }))
}
