//! Actions on task groups.

use maud::html;

use super::form::{Field, Form, ready};
use super::{Action, Failed, Order, Outcome, Subject, jobs, mismatch};
use crate::http::page::error::PageError;
use crate::http::page::text;
use tenure_api::states::Priority;
use tenure_domain::task::Group;
use tenure_engine::ops::{change_priority, task_group};
use tenure_store::groups;

/// Tasks counted before a cancel.
const COUNTED_MAX: usize = 10_000;

pub(super) const ACTIONS: &[Action] = &[
    Action::new("seal", "sealTaskGroup", "Seal…", |_| ready(Ok(seal_form())), |order| Box::pin(seal(order)))
        .offered(|subject| matches!(subject, Subject::Group(group) if group.sealed.is_none()))
        .command(|subject| command(subject, "seal")),
    Action::new(
        "cancel",
        "cancelTaskGroup",
        "Cancel…",
        |order| Box::pin(cancel_form(order)),
        |order| Box::pin(cancel(order)),
    )
    .command(|subject| command(subject, "cancel")),
    Action::new(
        "priority",
        "changeTaskGroupPriority",
        "Priority…",
        |_| ready(Ok(priority_form())),
        |order| Box::pin(change_priority(order)),
    ),
    Action::new(
        "rerun-failed",
        "startJob",
        "Rerun failed…",
        |order| Box::pin(jobs::rerun_form(order)),
        |order| Box::pin(jobs::rerun(order)),
    )
    .command(|subject| command(subject, "rerun --failed")),
];

fn of<'a>(order: &Order<'a>) -> Result<&'a Group, PageError> {
    match order.subject {
        Subject::Group(group) => Ok(group),
        _ => Err(mismatch()),
    }
}

fn command(subject: &Subject, verb: &str) -> Option<String> {
    match subject {
        Subject::Group(group) => Some(format!("group {verb} {}", group.id)),
        _ => None,
    }
}

fn seal_form() -> Form {
    let about = html! { p.dim { "No task can be added to the group afterwards. It cannot be opened again." } };
    Form::new("Seal the group", about)
}

async fn seal(order: &Order<'_>) -> Result<Outcome, Failed> {
    task_group::seal(&order.app.engine.pool, &order.actor, of(order)?.id).await?;
    Ok(Outcome::Done("The group is sealed.".to_owned()))
}

async fn cancel_form(order: &Order<'_>) -> Result<Form, PageError> {
    let group = of(order)?;
    let limit = i64::try_from(COUNTED_MAX).unwrap_or(i64::MAX) + 1;
    let open = groups::count_open(&mut *order.app.engine.pool.acquire().await?, group.id.uuid(), limit).await?;
    let shown = text::count(i64::try_from(open.min(COUNTED_MAX)).unwrap_or(i64::MAX));
    let about = html! {
        p.warning {
            @match open {
                0 => { "The group has no task to cancel." }
                1 => { "1 unresolved task of the group ends as exception, with the reason canceled." }
                _ => {
                    @if open > COUNTED_MAX { "More than " }
                    (shown) " unresolved tasks of the group end as exceptions, with the reason canceled."
                }
            }
        }
        @if group.sealed.is_none() {
            p.dim { "Seal the group first: more tasks may be added while it is open." }
        }
    };
    Ok(Form::new("Cancel these tasks", about))
}

async fn cancel(order: &Order<'_>) -> Result<Outcome, Failed> {
    let (engine, group) = (&order.app.engine, of(order)?);
    task_group::check_sealed(group)?;
    let cancelled = task_group::cancel(&engine.pool, &engine.notifiers, &order.actor, group.id).await?;
    let size = cancelled.size;
    Ok(Outcome::Done(match cancelled.tasks.len() {
        1 => format!("1 task of {size} was cancelled."),
        tasks => format!("{tasks} tasks of {size} were cancelled."),
    }))
}

fn priority_form() -> Form {
    let about =
        html! { p.dim { "Changes the tasks of the group that were never resolved. Pending runs keep their age." } };
    Form::new("Change the priority", about).with([Field::priority(Priority::Lowest)])
}

async fn change_priority(order: &Order<'_>) -> Result<Outcome, Failed> {
    let (engine, id, priority) = (&order.app.engine, of(order)?.id, order.sent.priority()?);
    let changed = change_priority::change_group(&engine.pool, &engine.notifiers, &order.actor, id, priority).await?;
    Ok(Outcome::Done(match changed.len() {
        1 => format!("The priority of 1 task is {priority}."),
        tasks => format!("The priority of {tasks} tasks is {priority}."),
    }))
}
