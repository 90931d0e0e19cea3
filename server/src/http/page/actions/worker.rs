//! Actions on workers of a queue.

use maud::html;

use super::form::{self, Field, Form, ready};
use super::{Action, Failed, Order, Outcome, Subject, mismatch};
use crate::http::api::worker_manager::remove;
use crate::http::page::error::PageError;
use crate::http::page::rows::ROWS_MAX;
use tenure_api::dates::Timestamp;
use tenure_domain::audit;
use tenure_domain::registration::WorkerName;
use tenure_domain::worker::check_info;
use tenure_engine::ops::workers;
use tenure_store::page::{self, Filter};
use tenure_store::workers::Quarantine;

pub(super) const ACTIONS: &[Action] = &[
    Action::new(
        "quarantine",
        "quarantineWorker",
        "Quarantine…",
        |_| ready(Ok(quarantine_form())),
        |order| Box::pin(quarantine(order)),
    ),
    Action::new(
        "lift",
        "quarantineWorker",
        "Lift the quarantine",
        |_| ready(Ok(Form::new("Lift the quarantine", html! { p.dim { "The worker gets work again." } }))),
        |order| Box::pin(lift(order)),
    )
    .direct()
    .offered(|subject| matches!(subject, Subject::Worker { is_quarantined: true, .. })),
    Action::new(
        "gone",
        "workerRemoved",
        "Declare gone…",
        |order| Box::pin(gone_form(order)),
        |order| Box::pin(declare_gone(order)),
    ),
];

fn of<'a>(order: &Order<'a>) -> Result<&'a WorkerName, PageError> {
    match order.subject {
        Subject::Worker { name, .. } => Ok(name),
        _ => Err(mismatch()),
    }
}

fn quarantine_form() -> Form {
    let about = html! { p.dim { "The worker gets no work until then, and is not removed from the list. It keeps the runs that \
    it holds." } };
    let reason = Field::line("quarantineInfo", "Reason");
    Form::new("Quarantine the worker", about).with([reason, Field::until("quarantineUntil")])
}

async fn quarantine(order: &Order<'_>) -> Result<Outcome, Failed> {
    let info = order.sent.non_empty("quarantineInfo");
    if let Some(wrong) = check_info(info) {
        return Err(Failed::input(wrong));
    }
    let until = order.sent.until("quarantineUntil", form::now(order.app).await?)?;
    change(order, until, info).await?;
    Ok(Outcome::Done(format!("The worker is quarantined until {}.", Timestamp::new(until))))
}

async fn lift(order: &Order<'_>) -> Result<Outcome, Failed> {
    let now = form::now(order.app).await?;
    change(order, now, None).await?;
    Ok(Outcome::Done("The quarantine is lifted.".to_owned()))
}

async fn change(order: &Order<'_>, until: chrono::DateTime<chrono::Utc>, info: Option<&str>) -> Result<(), Failed> {
    let (engine, WorkerName { pool, group, id }) = (&order.app.engine, of(order)?);
    let name = workers::Name { queue: pool.clone(), group: group.to_string(), id: id.to_string() };
    let change = Quarantine { until, info, client_id: &order.actor.client_id };
    let (pool, facts, known, queues) = (&engine.pool, &engine.facts, &engine.workers, &engine.queues);
    workers::quarantine(pool, facts, known, queues, &order.actor, &name, change).await?;
    Ok(())
}

/// Counts the claims that end.
async fn gone_form(order: &Order<'_>) -> Result<Form, PageError> {
    let (engine, WorkerName { pool, group, id }) = (&order.app.engine, of(order)?);
    let key = engine.queues.find_key(&engine.pool, pool).await?;
    let only: Vec<i32> = key.into_iter().collect();
    let filter = Filter { queues: Some(&only), worker: Some((group.as_str(), id.as_str())) };
    let mut conn = page::begin(&engine.pool).await?;
    let claims = page::list_claims(&mut conn, engine.due_marks.get().claims, filter, ROWS_MAX).await?;
    conn.commit().await?;
    let most = usize::try_from(ROWS_MAX).unwrap_or(usize::MAX);
    let about = html! {
        p.warning {
            @match claims.as_ref().map(Vec::len) {
                None => { "The runs that it holds end." }
                Some(0) => { "It holds no run." }
                Some(1) => { "The run that it holds ends." }
                Some(held) => { "The " (held) @if held >= most { " or more" } " runs that it holds end." }
            }
        }
        p.dim { "Runs end as exception, with the reason worker-shutdown, and are retried while retries are left. A worker \
                 that was registered cannot come back under this name; another one can claim again." }
    };
    Ok(Form::new("Declare the worker gone", about))
}

async fn declare_gone(order: &Order<'_>) -> Result<Outcome, Failed> {
    let removed = remove(&order.app.intake, &order.actor, of(order)?, audit::Action::WorkerRemoved).await?;
    Ok(Outcome::Done(match removed.ended {
        1 => "The worker is gone; 1 run was ended.".to_owned(),
        ended => format!("The worker is gone; {ended} runs were ended."),
    }))
}
