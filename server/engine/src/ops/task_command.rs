//! Commands for tasks. The server keeps the last one of a task and lets its worker know; what it means is the worker's business.
//!
//! Storing a command and looking for the worker are two transactions. So a worker that has claimed the task after the look reads the
//! command; and one that released the task before the look finds its run claimable at once.

use chrono::{DateTime, Utc};
use sqlx::{Connection, PgPool};
use tenure_api::ids::TaskId;
use tenure_api::states::TaskCommand;

use super::OpError;
use crate::notifiers::{Effects, Notifiers};
use tenure_store::task_commands::{self, Stored};
use tenure_store::tasks;
use tenure_store::transitions::end_hold;

/// Stores a command in the place of the one before, and lets the worker of the task know.
///
/// # Errors
/// `NotFound`, or `Conflict` if the task is resolved.
pub async fn put(
    pool: &PgPool,
    notifiers: &Notifiers,
    task: TaskId,
    (command, until): (TaskCommand, Option<DateTime<Utc>>),
    client_id: &str,
) -> Result<Stored, OpError> {
    let mut conn = pool.acquire().await?;
    let mut transaction = conn.begin().await?;
    if tasks::lock_in_queue(&mut transaction, task.uuid()).await?.is_none() {
        return Err(OpError::NotFound(format!("task {task} does not exist")));
    }
    let stored = task_commands::put(&mut transaction, task.uuid(), command, until, client_id).await?;
    let stored = stored.ok_or_else(|| OpError::Conflict(format!("task {task} is resolved: run it again first")))?;
    transaction.commit().await?;
    let mut transaction = conn.begin().await?;
    if let Some(epoch) = task_commands::deliver(&mut transaction, task.uuid()).await? {
        notifiers.commit(transaction, Effects { inboxes: vec![epoch], ..Effects::default() }).await?;
    } else {
        transaction.rollback().await?;
    }
    drop(conn);
    end_delay(pool, notifiers, task).await?;
    Ok(stored)
}

/// Has a run that was released until later be claimable now, if a command came that its worker may not have seen.
pub async fn end_delay(pool: &PgPool, notifiers: &Notifiers, task: TaskId) -> Result<(), OpError> {
    let mut conn = pool.acquire().await?;
    let mut transaction = conn.begin().await?;
    tasks::lock(&mut transaction, task.uuid()).await?;
    match end_hold::end_commanded_delay(&mut transaction, task.uuid()).await? {
        Some(queue) => {
            let effects = Effects { admission: vec![queue], ..Effects::claimable([queue]) };
            notifiers.commit(transaction, effects).await?;
        }
        None => transaction.rollback().await?,
    }
    Ok(())
}
