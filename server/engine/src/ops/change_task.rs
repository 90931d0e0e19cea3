//! scheduleTask, rerunTask, cancelTask: ordinary transactions on one task, whose row they lock first.

use serde::Deserialize;
use sqlx::{Connection, PgConnection, PgPool};
use tenure_api::ids::TaskId;
use tenure_api::states::ReasonResolved;

use super::{OpError, refused};
use crate::notifiers::{Effects, Notifiers};
use tenure_domain::lifecycle::{Event, Refusal, State, Step, apply};
use tenure_domain::task::Task;
use tenure_store::tasks::{self, Loaded};
use tenure_store::transitions::schedule::{self, When};
use tenure_store::transitions::{end_open, rerun};

/// How often a cancel looks again when a run that it wanted to end was being claimed.
const TRIES_MAX: usize = 5;

/// What is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// Run without waiting for dependencies.
    Schedule,
    /// Run once more.
    Rerun,
    /// End.
    Cancel,
}

/// What a definition says that only a rerun asks for.
#[derive(Deserialize)]
struct Retries {
    retries: u16,
}

/// Changes a task. One that is already as it was asked to be is answered as it is.
pub async fn change(pool: &PgPool, notifiers: &Notifiers, id: TaskId, change: Change) -> Result<Task, OpError> {
    let mut conn = pool.acquire().await?;
    let mut transaction = conn.begin().await?;
    tasks::lock(&mut transaction, id.uuid()).await?;
    let mut queue = None;
    for _ in 0..TRIES_MAX {
        let known = load(&mut transaction, id).await?;
        if known.task.deadline <= known.now {
            return Err(OpError::Conflict(format!("the deadline of task {id} has passed")));
        }
        let event = event(&mut transaction, id, change).await?;
        let step = match apply(known.task.life(), event) {
            Ok(step) => step,
            Err(refusal) => return repeat(known, refusal),
        };
        if carry_out(&mut transaction, id, change, step, &mut queue).await? {
            let task = load(&mut transaction, id).await?.task;
            let effects = match change {
                Change::Schedule | Change::Rerun => Effects::claimable(queue),
                Change::Cancel => Effects::resolved([id.uuid()]),
            };
            notifiers.commit(transaction, effects).await?;
            return Ok(task);
        }
    }
    // Somebody claims and requeues faster than we look.
    Err(OpError::Unavailable)
}

async fn load(conn: &mut PgConnection, id: TaskId) -> Result<Loaded, OpError> {
    let known = tasks::load(conn, &[id.uuid()]).await?.remove(&id.uuid());
    known.ok_or_else(|| OpError::NotFound(format!("task {id} does not exist")))
}

async fn event(conn: &mut PgConnection, id: TaskId, change: Change) -> Result<Event, OpError> {
    Ok(match change {
        Change::Schedule => Event::Schedule,
        Change::Cancel => Event::Cancel,
        Change::Rerun => {
            let definition = tasks::find_definition(conn, id.uuid()).await?.unwrap_or_default();
            let Retries { retries } = serde_json::from_str(&definition)
                .map_err(|error| OpError::from(sqlx::Error::Decode(Box::new(error))))?;
            Event::Rerun { retries }
        }
    })
}

/// The answer to a request that the rules refuse: the task is already as it was asked to be, or it may not become so.
fn repeat(known: Loaded, refusal: Refusal) -> Result<Task, OpError> {
    match refusal {
        Refusal::AlreadyScheduled | Refusal::AlreadyResolved => Ok(known.task),
        refusal => {
            let run = match known.task.life().state {
                State::Unscheduled => 0,
                State::Pending(run) | State::Running(run) | State::Resolved(run, _) => run.number(),
            };
            Err(refused(refusal, known.task.id, run))
        }
    }
}

/// Does what the rules allow; not if the run is being claimed at this moment.
async fn carry_out(
    transaction: &mut PgConnection,
    id: TaskId,
    change: Change,
    step: Step,
    queue: &mut Option<i32>,
) -> Result<bool, sqlx::Error> {
    let id = id.uuid();
    Ok(match change {
        Change::Schedule => {
            *queue = schedule::schedule(transaction, &[id], When::Always).await?.pop();
            queue.is_some()
        }
        Change::Rerun => {
            *queue = rerun::rerun(transaction, id, step.life.retries_left.cast_signed()).await?;
            queue.is_some()
        }
        Change::Cancel => !end_open::end_open(transaction, &[id], ReasonResolved::Canceled).await?.is_empty(),
    })
}
