//! Commands for tasks. The server stores and delivers a task's last command; its meaning is up to
//! the worker.
//!
//! Storing and delivery are two transactions. A worker that claims the task after the delivery
//! reads the command itself. If a worker released the task before, its run becomes claimable at
//! once.

use chrono::{DateTime, Utc};
use serde_json::json;
use sqlx::{Connection, PgPool};
use tenure_api::dates::Timestamp;
use tenure_api::ids::TaskId;
use tenure_api::states::TaskCommand;

use super::OpError;
use super::actor::Actor;
use crate::notifiers::{Effects, Notifiers};
use tenure_domain::audit::{Action, Entry};
use tenure_store::task_commands::{self, Stored};
use tenure_store::tasks;
use tenure_store::transitions::end_hold;

/// Replaces the task's command and delivers it to the worker.
///
/// # Errors
/// `NotFound`, or `Conflict` if the task is resolved.
pub async fn put(
    pool: &PgPool,
    notifiers: &Notifiers,
    actor: &Actor,
    task: TaskId,
    (command, until): (TaskCommand, Option<DateTime<Utc>>),
) -> Result<Stored, OpError> {
    let mut conn = pool.acquire().await?;
    let mut transaction = conn.begin().await?;
    if tasks::lock_in_queue(&mut transaction, task.uuid()).await?.is_none() {
        return Err(OpError::NotFound(format!("task {task} does not exist")));
    }
    let stored = task_commands::put(&mut transaction, task.uuid(), command, until, &actor.client_id).await?;
    let stored = stored.ok_or_else(|| OpError::Conflict(format!("task {task} is resolved: rerun it first")))?;
    let detail = json!({"command": command, "until": until.map(Timestamp::new)});
    let recorded = actor.record(&mut transaction, Entry::new(Action::PutTaskCommand, task, detail)).await?;
    transaction.commit().await?;
    recorded.log();
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

/// Makes a delayed released run claimable if its worker may not have seen the latest command.
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
