//! Actions on tasks.

use maud::{Markup, html};
use serde_json::json;
use tenure_api::checkpoints::TaskCommandRequest;
use tenure_api::dates::Timestamp;
use tenure_api::ids::TaskId;
use tenure_api::policy::ReleaseRequest;
use tenure_api::states::{TaskCommand, TaskState};

use super::form::{Field, Form, ready};
use super::subject::OfTask;
use super::{Action, Failed, Order, Outcome, Subject, again, mismatch};
use crate::http::api::report::release_run;
use crate::http::page::edges::EDGES_MAX;
use crate::http::page::error::PageError;
use tenure_domain::audit::{self, Entry};
use tenure_domain::checkpoint::check_command;
use tenure_domain::task::{Last, Task};
use tenure_engine::ops::OpError;
use tenure_engine::ops::change_priority;
use tenure_engine::ops::change_task::{self, Change};
use tenure_engine::ops::task_command;
use tenure_store::page;

/// The run that the form shows.
const RUN: &str = "runId";

pub(super) const ACTIONS: &[Action] = &[
    Action::new(
        "cancel",
        "cancelTask",
        "Cancel…",
        |order| Box::pin(cancel_form(order)),
        |order| Box::pin(change(order, Change::Cancel)),
    )
    .offered(is_open)
    .command(|subject| command(subject, "cancel")),
    Action::new(
        "rerun",
        "rerunTask",
        "Rerun",
        |_| ready(Ok(Form::new("Rerun", html! { p.dim { "The task runs once more, with all of its retries." } }))),
        |order| Box::pin(change(order, Change::Rerun)),
    )
    .direct()
    .offered(is_resolved)
    .command(|subject| command(subject, "rerun")),
    Action::new(
        "schedule",
        "scheduleTask",
        "Schedule…",
        |_| ready(Ok(schedule_form())),
        |order| Box::pin(change(order, Change::Schedule)),
    )
    .offered(|subject| is_last(subject, |last| matches!(last, Last::Unscheduled))),
    Action::new(
        "priority",
        "changeTaskPriority",
        "Priority…",
        |order| ready(of(order).map(priority_form)),
        |order| Box::pin(change_priority(order)),
    )
    .offered(is_open),
    Action::new(
        "release",
        "releaseTask",
        "Release…",
        |order| ready(of(order).map(|of| release_form(order, of))),
        |order| Box::pin(release(order)),
    )
    .offered(|subject| is_last(subject, |last| matches!(last, Last::Running(..))))
    .command(|subject| match subject {
        Subject::Task(of) => {
            of.task.status().runs.last().map(|run| format!("task release {} {}", of.task.id, run.run_id))
        }
        _ => None,
    }),
    Action::new(
        "command",
        "putTaskCommand",
        "Command…",
        |_| ready(Ok(command_form())),
        |order| Box::pin(send_command(order)),
    )
    .offered(is_open)
    .command(|subject| command(subject, "command").map(|command| format!("{command} pause"))),
    Action::new(
        "create-again",
        "createTask",
        "Create again…",
        |order| Box::pin(again::form(order)),
        |order| Box::pin(again::create(order)),
    )
    .offered(|subject| matches!(subject, Subject::Task(of) if of.is_readable)),
];

pub(super) fn of<'a>(order: &Order<'a>) -> Result<&'a OfTask, PageError> {
    match order.subject {
        Subject::Task(of) => Ok(of.as_ref()),
        _ => Err(mismatch()),
    }
}

fn is_last(subject: &Subject, is_so: fn(&Last) -> bool) -> bool {
    matches!(subject, Subject::Task(of) if is_so(&of.task.last))
}

fn is_open(subject: &Subject) -> bool {
    matches!(subject, Subject::Task(of) if !of.task.is_resolved())
}

fn is_resolved(subject: &Subject) -> bool {
    matches!(subject, Subject::Task(of) if of.task.is_resolved())
}

fn command(subject: &Subject, verb: &str) -> Option<String> {
    match subject {
        Subject::Task(of) => Some(format!("task {verb} {}", of.task.id)),
        _ => None,
    }
}

/// Describes the effect on the worker of a running task, and counts the dependent tasks.
async fn cancel_form(order: &Order<'_>) -> Result<Form, PageError> {
    let OfTask { task, .. } = of(order)?;
    let dependents = count_dependents(order, task.id).await?;
    let about = html! {
        p.dim { "The task ends as exception, with the reason canceled." }
        (holder(order, task))
        @if dependents != Some(0) {
            p.warning {
                @if let Some(dependents) = dependents {
                    @if dependents > EDGES_MAX { "More than " (EDGES_MAX) } @else { (dependents) }
                    @if dependents == 1 { " task needs it. " } @else { " tasks need it. " }
                }
                "Tasks that need it completed cannot run unless it is rerun."
            }
        }
    };
    Ok(Form::new("Cancel the task", about))
}

/// Counts up to one task more than [`EDGES_MAX`], for visitors who may list them.
async fn count_dependents(order: &Order<'_>, task: TaskId) -> Result<Option<usize>, PageError> {
    if !order.visit.may(format!("queue:list-dependent-tasks:{task}")) {
        return Ok(None);
    }
    let mut conn = page::begin(&order.app.engine.pool).await?;
    let edges = page::list_edges(&mut conn, task, EDGES_MAX as i64 + 1).await?;
    conn.commit().await?;
    Ok(Some(edges.iter().filter(|edge| !edge.is_required).count()))
}

/// Names the worker to visitors who may read the status.
fn holder(order: &Order<'_>, task: &Task) -> Markup {
    html! {
        @match &task.last {
            Last::Running(_, tenancy) => {
                p.dim {
                    @if order.visit.may(format!("queue:status:{}", task.id)) {
                        "Worker " code { (tenancy.worker_group) "/" (tenancy.worker_id) }
                    } @else { "A worker" }
                    " holds it. A worker with a session learns this within a second, others when they next renew or \
                     report."
                }
            }
            Last::Unscheduled | Last::Pending(_) | Last::Ended => {}
        }
    }
}

async fn change(order: &Order<'_>, change: Change) -> Result<Outcome, Failed> {
    let (engine, id) = (&order.app.engine, of(order)?.task.id);
    let changed = change_task::change(&engine.pool, &engine.notifiers, &order.actor, id, change).await?;
    let state = changed.status().state;
    Ok(Outcome::Done(match (change, state) {
        (Change::Cancel, TaskState::Exception) => "The task is cancelled.".to_owned(),
        (Change::Cancel, state) => format!("The task had already ended as {state}."),
        (Change::Rerun, state) => format!("The task was rerun and is {state}."),
        (Change::Schedule, state) => format!("The task was scheduled and is {state}."),
    }))
}

fn schedule_form() -> Form {
    Form::new(
        "Schedule",
        html! { p.dim { "The task runs without waiting for its dependencies. This cannot be undone." } },
    )
}

fn priority_form(of: &OfTask) -> Form {
    let about = html! { p.dim { "A pending run keeps its age: it precedes runs of the new priority that have waited \
    for less time." } };
    Form::new("Change the priority", about).with([Field::priority(of.task.priority)])
}

async fn change_priority(order: &Order<'_>) -> Result<Outcome, Failed> {
    let (engine, id, priority) = (&order.app.engine, of(order)?.task.id, order.sent.priority()?);
    change_priority::change_task(&engine.pool, &engine.notifiers, &order.actor, id, priority).await?;
    Ok(Outcome::Done(format!("The priority of the task is {priority}.")))
}

fn release_form(order: &Order<'_>, of: &OfTask) -> Form {
    let about = html! {
        p.dim { "The run ends, and the next one is pending at its position. This uses no retry." }
        (holder(order, &of.task))
    };
    let run = of.task.status().runs.last().map_or_else(String::new, |run| run.run_id.to_string());
    let delay = Field::line("delay", "Delay").hint("in seconds until the next run may start; empty for none");
    Form::new("Release the run", about).with([Field::hidden(RUN, run), delay])
}

async fn release(order: &Order<'_>) -> Result<Outcome, Failed> {
    let task = &of(order)?.task;
    let Some(run) = task.status().runs.last().map(|run| run.run_id) else {
        return Err(Failed::input("The task has no run."));
    };
    if order.sent.non_empty(RUN).is_some_and(|shown| shown != run.to_string()) {
        let message = format!("run {run} has followed since this form was shown: open the form again");
        return Err(OpError::Conflict(message).into());
    }
    let sent = ReleaseRequest { delay: order.sent.whole("delay")?, not_before: None };
    let engine = &order.app.engine;
    release_run(engine, task.id, run, &sent).await?;
    // Not in the transaction of the release, which reports of workers share.
    let entry =
        Entry::new(audit::Action::ReleaseTask, task.id, json!({"taskQueueId": task.queue.as_str(), "runId": run}));
    order.actor.record(&mut *engine.pool.acquire().await?, entry).await?.log();
    Ok(Outcome::Done(format!("Run {run} was released.")))
}

fn command_form() -> Form {
    let about = html! { p.dim { "The worker of the task gets it within a second if it has a session, or after its next \
    claim. Workers may interpret commands or ignore them. A new command replaces the last \
    one." } };
    let words = |command: &TaskCommand| (command.to_string(), command.to_string());
    let commands = Field::choice("command", "Command", TaskCommand::ALL.iter().map(words).collect());
    let until = Field::line("until", "Until").hint("with sleep: a date such as 2027-01-31T12:00:00Z");
    Form::new("Send the command", about).with([commands, until])
}

async fn send_command(order: &Order<'_>) -> Result<Outcome, Failed> {
    let (engine, id) = (&order.app.engine, of(order)?.task.id);
    let command = order.sent.parse("command", "one of the offered commands")?;
    let command = command.ok_or_else(|| Failed::input("`command` must be one of the offered commands"))?;
    let sent = TaskCommandRequest { command, until: order.sent.date("until")? };
    check_command(&sent)?;
    let wanted = (command, sent.until.map(Timestamp::time));
    task_command::put(&engine.pool, &engine.notifiers, &order.actor, id, wanted).await?;
    Ok(Outcome::Done(format!("The command {command} was sent.")))
}
