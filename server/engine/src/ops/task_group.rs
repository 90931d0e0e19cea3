//! Task groups as a whole: reading, sealing, cancelling. What touches many tasks works in slices, each a transaction.

use sqlx::{Connection, PgConnection, PgPool};
use tenure_api::ids::TaskGroupId;
use tenure_api::states::ReasonResolved;
use uuid::Uuid;

use super::OpError;
use crate::notifiers::{Effects, Notifiers};
use tenure_domain::task::Group;
use tenure_store::groups;
use tenure_store::transitions::end_open;

/// Tasks that one transaction locks.
pub const SLICE: i64 = 200;
/// How often a slice tries again when a run that it is to end is being claimed.
const TRIES_MAX: usize = 5;

/// The result of cancelling a group.
#[derive(Debug, PartialEq, Eq)]
pub struct Cancelled {
    /// How many tasks it has.
    pub size: i64,
    /// Those that were cancelled now.
    pub tasks: Vec<Uuid>,
}

/// Reads a group.
pub async fn get(conn: &mut PgConnection, id: TaskGroupId) -> Result<Group, OpError> {
    let group = groups::find(conn, id.uuid()).await?;
    group.ok_or_else(|| OpError::NotFound(format!("task group {id} does not exist")))
}

/// Seals a group: no task can be added any more. One that is sealed stays as it is.
pub async fn seal(pool: &PgPool, id: TaskGroupId) -> Result<Group, OpError> {
    let mut conn = pool.acquire().await?;
    groups::seal(&mut conn, id.uuid()).await?;
    get(&mut conn, id).await
}

/// A group that may be cancelled, because nothing can be added to it.
pub fn check_sealed(group: &Group) -> Result<(), OpError> {
    match group.sealed {
        Some(_) => Ok(()),
        None => Err(OpError::Conflict(format!("task group {} is not sealed; seal it before you cancel it", group.id))),
    }
}

/// Cancels every task of a group that is not resolved and before its deadline.
pub async fn cancel(pool: &PgPool, notifiers: &Notifiers, id: TaskGroupId) -> Result<Cancelled, OpError> {
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
    let size = groups::count_tasks(&mut conn, id.uuid()).await?;
    Ok(Cancelled { size, tasks })
}
