//! Reads, seals and cancels task groups. Work on many tasks is done in slices, one transaction
//! each.
//!
//! A creation reads the seal without locking the group, so it may commit after the seal. Sealing
//! and cancelling therefore wait for the transactions open at that time.

use std::time::{Duration, Instant};

use serde_json::json;
use sqlx::{Connection, PgConnection, PgPool};
use tenure_api::ids::TaskGroupId;
use tenure_api::states::ReasonResolved;
use uuid::Uuid;

use super::OpError;
use super::actor::{Actor, Recorded};
use crate::notifiers::{Effects, Notifiers};
use tenure_domain::audit::{Action, Entry};
use tenure_domain::task::Group;
use tenure_store::transitions::end_open;
use tenure_store::{clock, groups, refile};

/// Tasks locked per transaction.
pub const SLICE: i64 = 200;
/// Tries of a slice while one of its runs is being claimed.
const TRIES_MAX: usize = 5;
/// Maximum wait for older transactions, which may add tasks to a sealed group.
const OLDER_WAIT: Duration = Duration::from_secs(3);
/// First pause between checks for them; doubled up to the maximum.
const OLDER_LOOK_FIRST: Duration = Duration::from_millis(5);
const OLDER_LOOK_MAX: Duration = Duration::from_millis(100);

#[derive(Debug, PartialEq, Eq)]
pub struct Cancelled {
    /// Number of tasks in the group.
    pub size: i64,
    /// Newly cancelled tasks.
    pub tasks: Vec<Uuid>,
}

pub async fn get(conn: &mut PgConnection, id: TaskGroupId) -> Result<Group, OpError> {
    let group = groups::find(conn, id.uuid()).await?;
    group.ok_or_else(|| OpError::NotFound(format!("task group {id} does not exist")))
}

/// Seals a group against new tasks. Repeatable.
pub async fn seal(pool: &PgPool, actor: &Actor, id: TaskGroupId) -> Result<Group, OpError> {
    let mut conn = pool.acquire().await?;
    let mut transaction = conn.begin().await?;
    let mut recorded = None;
    if groups::seal(&mut transaction, id.uuid()).await? {
        let entry = Entry::new(Action::SealTaskGroup, id, json!({}));
        recorded = Some(actor.record(&mut transaction, entry).await?);
    }
    transaction.commit().await?;
    recorded.into_iter().for_each(Recorded::log);
    let group = get(&mut conn, id).await?;
    drop(conn);
    wait_for_older(pool).await?;
    Ok(group)
}

/// Waits for the open transactions of all servers. Their tasks are then visible, and later ones see
/// the seal. Holds no connection between checks: callers may be many, and the wait long.
async fn wait_for_older(pool: &PgPool) -> Result<(), OpError> {
    let since = clock::get_real_now(&mut *pool.acquire().await?).await?;
    let (began, mut pause) = (Instant::now(), OLDER_LOOK_FIRST);
    while refile::find_oldest_open(&mut *pool.acquire().await?).await?.is_some_and(|oldest| oldest <= since) {
        if began.elapsed() > OLDER_WAIT {
            return Err(OpError::Unavailable);
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(OLDER_LOOK_MAX);
    }
    Ok(())
}

/// Fails unless the group is sealed.
pub fn check_sealed(group: &Group) -> Result<(), OpError> {
    match group.sealed {
        Some(_) => Ok(()),
        None => Err(OpError::Conflict(format!(
            "task group {} is not sealed; seal it before you cancel its tasks",
            group.id
        ))),
    }
}

/// Cancels all unresolved tasks of a sealed group that are before their deadline.
pub async fn cancel(
    pool: &PgPool,
    notifiers: &Notifiers,
    actor: &Actor,
    id: TaskGroupId,
) -> Result<Cancelled, OpError> {
    // The sealing caller may not have waited. After a timeout, the existing tasks are cancelled all
    // the same.
    let waited = wait_for_older(pool).await;
    let mut conn = pool.acquire().await?;
    let (mut after, mut tasks, mut recorded) = (Uuid::nil(), Vec::new(), None);
    loop {
        let mut transaction = conn.begin().await?;
        let mut left = groups::lock_open(&mut transaction, id.uuid(), after, SLICE).await?;
        let Some(&last) = left.last() else { break };
        let mut effects = Effects::default();
        // A run claimed just now is found among the claims next time.
        for _ in 0..TRIES_MAX {
            let ended = end_open::end_open(&mut transaction, &left, ReasonResolved::Canceled).await?;
            left.retain(|task| !ended.tasks.contains(task));
            effects.tasks_ended(ended, ReasonResolved::Canceled);
            if left.is_empty() {
                break;
            }
        }
        if !effects.resolved.is_empty() {
            tasks.extend(&effects.resolved);
            let entry = Entry::new(Action::CancelTaskGroup, id, json!({"tasks": tasks.len()}));
            actor.record_slice(&mut transaction, &mut recorded, entry).await?;
        }
        notifiers.commit(transaction, effects).await?;
        after = last;
    }
    recorded.into_iter().for_each(Recorded::log);
    waited?;
    let size = groups::count_tasks(&mut conn, id.uuid()).await?;
    Ok(Cancelled { size, tasks })
}
