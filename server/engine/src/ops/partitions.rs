//! Partition groups: storing them, and the calls of their members, which [`ticks`] coalesces. The
//! rule is [`tenure_domain::partition`].

pub mod ticks;

use serde_json::json;
use sqlx::{Connection, PgConnection, PgPool};
use tenure_domain::audit::{Action, Entry};
use tenure_domain::partition::{Event, GROUPS_MAX, Group, Settings, State};
use tenure_store::{partitions, session};

use self::ticks::{PartitionTicks, Ticked};
use super::OpError;
use super::actor::Actor;
use crate::gate::Gate;
use crate::notifiers::{Effects, Notifiers};

/// Parts of the engine for partition groups.
#[derive(Clone, Copy)]
pub struct Parts<'a> {
    pub pool: &'a PgPool,
    pub notifiers: &'a Notifiers,
    pub gate: &'a Gate,
    pub ticks: &'a PartitionTicks,
}

/// A group with its members, as of one moment.
#[derive(Debug, Clone)]
pub struct Found {
    pub stored: partitions::Stored,
    pub state: State,
}

fn missing(name: &str) -> OpError {
    OpError::NotFound(format!("the partition group {name:?} does not exist"))
}

/// # Errors
/// If it does not exist.
pub async fn get(parts: Parts<'_>, name: &str) -> Result<Found, OpError> {
    let (stored, members) = partitions::read(parts.pool, name).await?.ok_or_else(|| missing(name))?;
    let state = State { group: stored.group.clone(), members };
    Ok(Found { stored, state })
}

/// Stores a group. An existing one keeps its members and its interval.
///
/// # Errors
/// If too many groups exist, or the interval of an existing one would change.
pub async fn put(parts: Parts<'_>, actor: &Actor, name: &str, settings: Settings) -> Result<(), OpError> {
    parts.gate.open().await?;
    let mut conn = parts.pool.acquire().await?;
    let mut transaction = conn.begin().await?;
    session::idle_briefly(&mut transaction).await?;
    let group = match insert(&mut transaction, name, settings).await? {
        Some(group) => group,
        None => match change(&mut transaction, name, settings).await? {
            Some(group) => group,
            None => return Ok(()),
        },
    };
    let detail = json!({"interval": group.interval, "drainTimeout": group.drain_timeout});
    let recorded = actor.record(&mut transaction, Entry::new(Action::PutPartition, name, detail)).await?;
    parts.notifiers.commit(transaction, Effects::default()).await?;
    recorded.log();
    Ok(())
}

/// Returns none if it exists, perhaps since this moment: members may store it at the same time.
async fn insert(transaction: &mut PgConnection, name: &str, settings: Settings) -> Result<Option<Group>, OpError> {
    if partitions::find(&mut *transaction, name).await?.is_some() {
        return Ok(None);
    }
    if partitions::is_full(transaction, GROUPS_MAX as i64).await? {
        return Err(OpError::Conflict(format!(
            "{GROUPS_MAX} partition groups exist, which is the limit: delete unneeded ones"
        )));
    }
    let group = Group::new(settings);
    Ok(partitions::insert(transaction, name, &group).await?.then_some(group))
}

/// Returns none if nothing changes.
async fn change(transaction: &mut PgConnection, name: &str, settings: Settings) -> Result<Option<Group>, OpError> {
    let partitions::Stored { id, group, .. } =
        partitions::lock(transaction, name).await?.ok_or_else(|| missing(name))?;
    if settings.interval.is_some_and(|interval| interval != group.interval) {
        return Err(OpError::Conflict(format!(
            "the interval of partition group {name:?} is {} s and cannot be changed; delete the group first",
            group.interval
        )));
    }
    if settings.drain_timeout == group.drain_timeout {
        return Ok(None);
    }
    let changed = Group { drain_timeout: settings.drain_timeout, ..group };
    partitions::store_group(transaction, id, &changed).await?;
    Ok(Some(changed))
}

/// Deletes a group. Its members get 404 with their next call.
///
/// # Errors
/// If it does not exist, or a policy names it.
pub async fn delete(parts: Parts<'_>, actor: &Actor, name: &str) -> Result<(), OpError> {
    let mut conn = parts.pool.acquire().await?;
    let mut transaction = conn.begin().await?;
    session::idle_briefly(&mut transaction).await?;
    let id = partitions::lock_whole(&mut transaction, name).await?.ok_or_else(|| missing(name))?;
    if let Some(queue) = partitions::find_queue(&mut transaction, id).await? {
        return Err(OpError::Conflict(format!(
            "the policy of queue {queue} names the partition group {name:?}: change it first"
        )));
    }
    partitions::delete(&mut transaction, id).await?;
    let recorded = actor.record(&mut transaction, Entry::new(Action::DeletePartition, name, json!({}))).await?;
    parts.notifiers.commit(transaction, Effects::default()).await?;
    recorded.log();
    Ok(())
}

/// Records the call of a member and returns its share. A repeated call changes nothing.
///
/// # Errors
/// If the group does not exist or has as many members as it may.
pub async fn tick(parts: Parts<'_>, name: &str, member: String, acked: Option<i64>) -> Result<Ticked, OpError> {
    parts.ticks.call(name, Event::Tick { member, acked }).await
}

/// Removes a member, which has no more work. Also succeeds if it is not a member.
///
/// # Errors
/// If the group does not exist.
pub async fn leave(parts: Parts<'_>, name: &str, member: String) -> Result<(), OpError> {
    parts.ticks.call(name, Event::Leave { member }).await.map(drop)
}
