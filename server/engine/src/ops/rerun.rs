//! Reruns one of several tasks in a transaction, as rerunTask does.

use sqlx::PgConnection;
use tenure_store::guarded::{self as store, Held};
use tenure_store::tasks::Loaded;
use tenure_store::transitions::rerun;

use super::change_task::{Retries, life};
use super::guarded::duplicate_of;
use super::{OpError, refused};
use crate::notifiers::Effects;
use tenure_domain::policy::life::{Event, State, apply};

/// Reruns a task, or returns the refusal. The caller has locked `name`, the unique name of the task,
/// and then the task.
pub(crate) async fn rerun_locked(
    transaction: &mut PgConnection,
    loaded: &Loaded,
    definition: &str,
    name: Option<&Held>,
    effects: &mut Effects,
) -> Result<Result<(), OpError>, sqlx::Error> {
    let id = loaded.task.id;
    let retries = match retries(loaded, definition) {
        Ok(retries) => retries,
        Err(refusal) => return Ok(Err(refusal)),
    };
    let life = life(loaded);
    let step = match apply(life, Event::Rerun { retries, hold: None }) {
        Ok(step) => step,
        Err(refusal) => {
            let run = loaded.task.ended.last().map_or(0, |ended| ended.run.run.number());
            return Ok(Err(refused(refusal, id, run)));
        }
    };
    if life.state == State::Unscheduled && store::waits_for_name(transaction, id.uuid()).await? {
        let message = format!("task {id} waits for its unique name, which another unresolved task has");
        return Ok(Err(OpError::Conflict(message)));
    }
    if let Some(name) = name {
        let holders = store::list_holders(transaction, name.id).await?;
        if let Some(holder) = holders.iter().find(|holder| holder.seq != name.seq) {
            return Ok(Err(duplicate_of(&loaded.task.queue, &name.name, holder.id)));
        }
    }
    let retries_left = step.life.left.retries_left.cast_signed();
    let Some(queue) = rerun::rerun(transaction, id.uuid(), retries_left).await? else {
        return Ok(Err(OpError::Unavailable));
    };
    if let Some(name) = name {
        store::hold_names(transaction, &[(name.id, name.seq)]).await?;
    }
    if !effects.claimable.contains(&queue) {
        effects.claimable.push(queue);
    }
    Ok(Ok(()))
}

/// Returns the retries that a rerun gives a task.
pub(crate) fn retries(loaded: &Loaded, definition: &str) -> Result<u16, OpError> {
    let unreadable = || OpError::Conflict(format!("the definition of task {} cannot be read", loaded.task.id));
    serde_json::from_str::<Retries>(definition).map(|Retries { retries }| retries).map_err(|_| unreadable())
}
