//! Task groups as a whole: reading, sealing, cancelling. What touches many tasks works in slices, each a transaction.
//!
//! A creation reads whether the group is sealed and locks nothing of it: one that began before the seal may be committed after it.
//! So sealing and cancelling wait for the transactions that are open then.

use std::time::{Duration, Instant};

use sqlx::{Connection, PgConnection, PgPool};
use tenure_api::ids::TaskGroupId;
use tenure_api::states::ReasonResolved;
use uuid::Uuid;

use super::OpError;
use crate::notifiers::{Effects, Notifiers};
use tenure_domain::task::Group;
use tenure_store::transitions::end_open;
use tenure_store::{clock, groups, refile};

/// Tasks that one transaction locks.
pub const SLICE: i64 = 200;
/// How often a slice tries again when a run that it is to end is being claimed.
const TRIES_MAX: usize = 5;
/// How long transactions are waited for that may add a task to a group which is sealed.
const OLDER_WAIT: Duration = Duration::from_secs(3);
/// The pauses between looks whether they have ended: the first, which are doubled, and the longest.
const OLDER_LOOK_FIRST: Duration = Duration::from_millis(5);
const OLDER_LOOK_MAX: Duration = Duration::from_millis(100);

/// The result of cancelling a group.
#[derive(Debug, PartialEq, Eq)]
pub struct Cancelled {
    /// How many tasks it has.
    pub size: i64,
    /// Those that were cancelled now.
    pub tasks: Vec<Uuid>,
}

pub async fn get(conn: &mut PgConnection, id: TaskGroupId) -> Result<Group, OpError> {
    let group = groups::find(conn, id.uuid()).await?;
    group.ok_or_else(|| OpError::NotFound(format!("task group {id} does not exist")))
}

/// Seals a group: no task can be added any more. One that is sealed stays as it is.
pub async fn seal(pool: &PgPool, id: TaskGroupId) -> Result<Group, OpError> {
    let mut conn = pool.acquire().await?;
    groups::seal(&mut conn, id.uuid()).await?;
    let group = get(&mut conn, id).await?;
    drop(conn);
    wait_for_older(pool).await?;
    Ok(group)
}

/// Waits for the transactions of all servers that are open now: what they create is visible afterwards, and later ones see the seal.
/// No connection is kept between two looks: callers may be many, and the wait long.
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

/// A group that may be cancelled, because nothing can be added to it.
pub fn check_sealed(group: &Group) -> Result<(), OpError> {
    match group.sealed {
        Some(_) => Ok(()),
        None => Err(OpError::Conflict(format!("task group {} is not sealed; seal it before you cancel it", group.id))),
    }
}

/// Cancels every task of a group, which is sealed, that is not resolved and before its deadline.
pub async fn cancel(pool: &PgPool, notifiers: &Notifiers, id: TaskGroupId) -> Result<Cancelled, OpError> {
    // Not every caller that seals a group waits for the answer. What is there is cancelled also if another task may come.
    let waited = wait_for_older(pool).await;
    let mut conn = pool.acquire().await?;
    let (mut after, mut tasks) = (Uuid::nil(), Vec::new());
    loop {
        let mut transaction = conn.begin().await?;
        let mut left = groups::lock_open(&mut transaction, id.uuid(), after, SLICE).await?;
        let Some(&last) = left.last() else { break };
        let mut effects = Effects::default();
        // A run that is claimed at this moment is found among the claims by the next look.
        for _ in 0..TRIES_MAX {
            let ended = end_open::end_open(&mut transaction, &left, ReasonResolved::Canceled).await?;
            left.retain(|task| !ended.tasks.contains(task));
            effects.tasks_ended(ended, ReasonResolved::Canceled);
            if left.is_empty() {
                break;
            }
        }
        tasks.extend(&effects.resolved);
        notifiers.commit(transaction, effects).await?;
        after = last;
    }
    waited?;
    let size = groups::count_tasks(&mut conn, id.uuid()).await?;
    Ok(Cancelled { size, tasks })
}
