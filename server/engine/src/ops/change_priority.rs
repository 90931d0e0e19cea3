//! changeTaskPriority and changeTaskGroupPriority. Pending runs keep their age; running ones are
//! not affected.

use serde_json::json;
use sqlx::{Connection, PgPool};
use tenure_api::ids::{TaskGroupId, TaskId};
use tenure_api::states::Priority;
use uuid::Uuid;

use super::OpError;
use super::actor::{Actor, Recorded};
use super::task_group::SLICE;
use crate::notifiers::{Effects, Notifiers};
use tenure_domain::audit::{Action, Entry};
use tenure_domain::task::Task;
use tenure_store::transitions::reprioritise;
use tenure_store::{groups, tasks};

pub async fn change_task(
    pool: &PgPool,
    notifiers: &Notifiers,
    actor: &Actor,
    id: TaskId,
    priority: Priority,
) -> Result<Task, OpError> {
    let mut conn = pool.acquire().await?;
    let mut transaction = conn.begin().await?;
    tasks::lock(&mut transaction, id.uuid()).await?;
    let changed = reprioritise::reprioritise(&mut transaction, &[id.uuid()], priority.code()).await?;
    let loaded = tasks::load(&mut transaction, &[id.uuid()]).await?.remove(&id.uuid());
    let loaded = loaded.ok_or_else(|| OpError::NotFound(format!("task {id} does not exist")))?;
    if changed.is_empty() {
        if loaded.task.deadline <= loaded.now {
            return Err(OpError::Conflict(format!("the deadline of task {id} has passed")));
        }
        if tasks::was_resolved(&mut transaction, id.uuid()).await? {
            return Err(OpError::Conflict(format!("task {id} is resolved; its priority can no longer be changed")));
        }
    }
    let mut recorded = None;
    if !changed.is_empty() {
        let detail = json!({"newPriority": priority, "taskQueueId": loaded.task.queue.as_str()});
        let entry = Entry::new(Action::ChangeTaskPriority, id, detail);
        recorded = Some(actor.record(&mut transaction, entry).await?);
    }
    notifiers.commit(transaction, Effects::claimable(changed.into_iter().map(|(_, queue)| queue))).await?;
    recorded.into_iter().for_each(Recorded::log);
    Ok(loaded.task)
}

/// Returns the changed tasks. Tasks that were ever resolved stay unchanged.
pub async fn change_group(
    pool: &PgPool,
    notifiers: &Notifiers,
    actor: &Actor,
    group: TaskGroupId,
    priority: Priority,
) -> Result<Vec<Uuid>, OpError> {
    let mut conn = pool.acquire().await?;
    let (mut after, mut affected, mut recorded) = (Uuid::nil(), Vec::new(), None);
    loop {
        let mut transaction = conn.begin().await?;
        let mut locked = groups::lock_open(&mut transaction, group.uuid(), after, SLICE + 1).await?;
        let more = i64::try_from(locked.len()).is_ok_and(|tasks| tasks > SLICE);
        locked.truncate(usize::try_from(SLICE).unwrap_or(usize::MAX));
        let changed = reprioritise::reprioritise(&mut transaction, &locked, priority.code()).await?;
        let effects = Effects::claimable(changed.iter().map(|(_, queue)| *queue));
        let is_changed = !changed.is_empty();
        affected.extend(changed.into_iter().map(|(id, _)| id));
        if is_changed {
            let detail = json!({"newPriority": priority, "tasks": affected.len()});
            let entry = Entry::new(Action::ChangeTaskGroupPriority, group, detail);
            actor.record_slice(&mut transaction, &mut recorded, entry).await?;
        }
        let next = locked.last().filter(|_| more);
        if next.is_none() && !affected.is_empty() {
            // With the last change, so that a crash cannot lose the event.
            let count = i64::try_from(affected.len()).unwrap_or(i64::MAX);
            reprioritise::publish_group(&mut transaction, group.uuid(), priority.code(), count).await?;
        }
        notifiers.commit(transaction, effects).await?;
        let Some(&last) = next else {
            recorded.into_iter().for_each(Recorded::log);
            return Ok(affected);
        };
        after = last;
    }
}
