//! scheduleTask, rerunTask and cancelTask: transactions that lock one task row first.

use serde::Deserialize;
use serde_json::json;
use sqlx::{Connection, PgConnection, PgPool};
use tenure_api::ids::TaskId;
use tenure_api::states::ReasonResolved;

use super::actor::Actor;
use super::guarded::duplicate_of;
use super::{OpError, refused};
use crate::notifiers::{Effects, Notifiers};
use tenure_domain::audit::{Action, Entry};
use tenure_domain::policy::ending::Allowance;
use tenure_domain::policy::life::{Event, Life, Refusal, State, Step, apply};
use tenure_domain::task::Task;
use tenure_store::guarded::{self, Held};
use tenure_store::session;
use tenure_store::tasks::{self, Loaded};
use tenure_store::transitions::schedule::{self, When};
use tenure_store::transitions::{end_open, rerun};

/// Tries of a cancel that meets a claim of its run.
const TRIES_MAX: usize = 5;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// Run without waiting for dependencies.
    Schedule,
    Rerun,
    Cancel,
}

impl Change {
    fn action(self) -> Action {
        match self {
            Self::Schedule => Action::ScheduleTask,
            Self::Rerun => Action::RerunTask,
            Self::Cancel => Action::CancelTask,
        }
    }
}

/// The part of a definition that a rerun needs.
#[derive(Deserialize)]
pub(super) struct Retries {
    pub(super) retries: u16,
}

/// Returns the task, unchanged if it is already in the requested state.
pub async fn change(
    pool: &PgPool,
    notifiers: &Notifiers,
    actor: &Actor,
    id: TaskId,
    change: Change,
) -> Result<Task, OpError> {
    let mut conn = pool.acquire().await?;
    let mut transaction = conn.begin().await?;
    let name = lock_name(&mut transaction, id, change).await?;
    tasks::lock(&mut transaction, id.uuid()).await?;
    for _ in 0..TRIES_MAX {
        let loaded = load(&mut transaction, id).await?;
        if loaded.task.deadline <= loaded.now {
            return Err(OpError::Conflict(format!("the deadline of task {id} has passed")));
        }
        let event = event(&mut transaction, id, change).await?;
        let step = match apply(life(&loaded), event) {
            Ok(step) => step,
            Err(refusal) => return repeat(loaded, refusal),
        };
        check_name(&mut transaction, &loaded.task, change, name.as_ref()).await?;
        if let Some(effects) = carry_out(&mut transaction, id, change, step).await? {
            if let Some(name) = &name {
                guarded::hold_names(&mut transaction, &[(name.id, name.seq)]).await?;
            }
            let task = load(&mut transaction, id).await?.task;
            let entry = Entry::new(change.action(), id, json!({"taskQueueId": task.queue.as_str()}));
            let recorded = actor.record(&mut transaction, entry).await?;
            notifiers.commit(transaction, effects).await?;
            recorded.log();
            return Ok(task);
        }
    }
    // The run was claimed and requeued between the tries.
    Err(OpError::Unavailable)
}

/// Locks the unique name of a task to rerun, if it has one.
async fn lock_name(conn: &mut PgConnection, id: TaskId, change: Change) -> Result<Option<Held>, sqlx::Error> {
    let name = match change {
        Change::Rerun => guarded::find_name(conn, id.uuid()).await?,
        Change::Schedule | Change::Cancel => None,
    };
    if let Some(name) = &name {
        // Creates of the name wait for this transaction.
        session::idle_briefly(conn).await?;
        guarded::lock_name(conn, name.id).await?;
    }
    Ok(name)
}

/// Refuses a run of a task that waits for its name, or whose name another task has.
async fn check_name(conn: &mut PgConnection, task: &Task, change: Change, name: Option<&Held>) -> Result<(), OpError> {
    if change == Change::Cancel {
        return Ok(());
    }
    if task.life().state == State::Unscheduled && guarded::waits_for_name(conn, task.id.uuid()).await? {
        let message = format!("task {} waits for its unique name, which another unresolved task has", task.id);
        return Err(OpError::Conflict(message));
    }
    let Some(name) = name else { return Ok(()) };
    let holders = guarded::list_holders(conn, name.id).await?;
    match holders.iter().find(|holder| holder.seq != name.seq) {
        Some(holder) => Err(duplicate_of(&task.queue, &name.name, holder.id)),
        None => Ok(()),
    }
}

/// Rule, hold and losses do not matter for these changes.
pub(crate) fn life(loaded: &Loaded) -> Life {
    let life = loaded.task.life();
    Life { left: Allowance { free_runs: loaded.free_runs, requeues: loaded.requeues, ..life.left }, ..life }
}

async fn load(conn: &mut PgConnection, id: TaskId) -> Result<Loaded, OpError> {
    let loaded = tasks::load(conn, &[id.uuid()]).await?.remove(&id.uuid());
    loaded.ok_or_else(|| OpError::NotFound(format!("task {id} does not exist")))
}

async fn event(conn: &mut PgConnection, id: TaskId, change: Change) -> Result<Event, OpError> {
    Ok(match change {
        Change::Schedule => Event::Schedule(None),
        Change::Cancel => Event::Cancel,
        Change::Rerun => {
            let definition = tasks::find_definition(conn, id.uuid()).await?.unwrap_or_default();
            let Retries { retries } = serde_json::from_str(&definition)
                .map_err(|error| OpError::from(sqlx::Error::Decode(Box::new(error))))?;
            Event::Rerun { retries, hold: None }
        }
    })
}

/// Returns the task if it is already in the requested state, or the refusal.
fn repeat(loaded: Loaded, refusal: Refusal) -> Result<Task, OpError> {
    match refusal {
        Refusal::AlreadyScheduled | Refusal::AlreadyResolved => Ok(loaded.task),
        refusal => {
            let run = match loaded.task.life().state {
                State::Unscheduled => 0,
                State::Pending(run, _) | State::Running(run) | State::Resolved(run, _) => run.number(),
            };
            Err(refused(refusal, loaded.task.id, run))
        }
    }
}

/// Applies the change and returns its effects; `None` if the run is just being claimed.
async fn carry_out(
    transaction: &mut PgConnection,
    id: TaskId,
    change: Change,
    step: Step,
) -> Result<Option<Effects>, sqlx::Error> {
    let id = id.uuid();
    Ok(match change {
        Change::Schedule => {
            let scheduled = schedule::schedule(transaction, &[id], When::Always).await?.pop();
            scheduled.map(|scheduled| Effects {
                admission: vec![scheduled.queue],
                ..Effects::claimable(scheduled.claimable())
            })
        }
        Change::Rerun => {
            let retries_left = step.life.left.retries_left.cast_signed();
            rerun::rerun(transaction, id, retries_left).await?.map(|queue| Effects::claimable([queue]))
        }
        Change::Cancel => {
            let ended = end_open::end_open(transaction, &[id], ReasonResolved::Canceled).await?;
            let mut effects = Effects::default();
            effects.tasks_ended(ended, ReasonResolved::Canceled);
            (!effects.resolved.is_empty()).then_some(effects)
        }
    })
}
