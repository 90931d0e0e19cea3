//! Keys of a queue: rules that override the policy for one key, and the use of each key.

use serde_json::json;
use sqlx::{Connection, PgConnection};
use tenure_api::ids::TaskQueueId;
use tenure_api::queue_keys::{KeyRules as KeyRulesOnWire, QueueKey};

use super::OpError;
use super::actor::{Actor, Recorded};
use super::queue_policy::Parts;
use crate::notifiers::Effects;
use tenure_domain::audit::{Action, Entry};
use tenure_domain::policy::document::Policy;
use tenure_domain::policy::keys::{KEYS_WITH_RULES_MAX, KeyRules};
use tenure_store::admission::key_rules::{self, KeyNow};
use tenure_store::{page, policies};

/// Keys per page: the runs of each are counted.
pub const KEYS_PAGE_MAX: u16 = 100;

#[derive(Debug, Default)]
pub struct Page {
    pub keys: Vec<QueueKey>,
    /// Last key examined, if there may be more.
    pub next: Option<String>,
}

fn missing(queue: &TaskQueueId, key: &str) -> OpError {
    OpError::NotFound(format!("queue {queue} has no rules for the key {key:?}"))
}

/// Replaces the rules of a key. Creates the queue if needed. Waiting runs follow at once.
///
/// # Errors
/// If too many keys of the queue have rules.
pub async fn put(
    parts: Parts<'_>,
    actor: &Actor,
    queue: &TaskQueueId,
    key: &str,
    rules: &KeyRules,
) -> Result<QueueKey, OpError> {
    let number = parts.queues.get_or_create_key(parts.pool, queue).await?;
    let mut conn = parts.pool.acquire().await?;
    let mut transaction = conn.begin().await?;
    if !policies::lock_queue(&mut transaction, number).await? {
        return Err(OpError::Unavailable);
    }
    let (exists, count) = key_rules::count_rules(&mut transaction, number, key, KEYS_WITH_RULES_MAX).await?;
    if !exists && count >= KEYS_WITH_RULES_MAX {
        return Err(OpError::Conflict(format!(
            "{KEYS_WITH_RULES_MAX} keys of queue {queue} have their own rules, which is the limit: delete unneeded \
             rules, or change the policy"
        )));
    }
    let mut recorded = None;
    if key_rules::put_rules(&mut transaction, number, key, rules).await? {
        let entry = Entry::new(Action::PutQueueKey, queue, json!({"key": key, "rules": rules.to_wire()}));
        recorded = Some(actor.record(&mut transaction, entry).await?);
    }
    parts.notifiers.commit(transaction, Effects { admission: vec![number], ..Effects::default() }).await?;
    recorded.into_iter().for_each(Recorded::log);
    one(&mut conn, number, key).await?.ok_or_else(|| missing(queue, key))
}

/// Makes the policy apply to the key again.
pub async fn delete(parts: Parts<'_>, actor: &Actor, queue: &TaskQueueId, key: &str) -> Result<(), OpError> {
    let Some(number) = parts.queues.find_key(parts.pool, queue).await? else { return Ok(()) };
    let mut conn = parts.pool.acquire().await?;
    let mut transaction = conn.begin().await?;
    policies::lock_queue(&mut transaction, number).await?;
    if !key_rules::delete_rules(&mut transaction, number, key).await? {
        return Ok(());
    }
    let entry = Entry::new(Action::DeleteQueueKey, queue, json!({"key": key}));
    let recorded = actor.record(&mut transaction, entry).await?;
    parts.notifiers.commit(transaction, Effects { admission: vec![number], ..Effects::default() }).await?;
    recorded.log();
    Ok(())
}

/// Returns the rules and use of a key.
///
/// # Errors
/// If the key has no rules.
pub async fn get(parts: Parts<'_>, queue: &TaskQueueId, key: &str) -> Result<QueueKey, OpError> {
    let number = parts.queues.find_key(parts.pool, queue).await?.ok_or_else(|| missing(queue, key))?;
    one(&mut *parts.pool.acquire().await?, number, key).await?.ok_or_else(|| missing(queue, key))
}

async fn one(conn: &mut PgConnection, queue: i32, key: &str) -> Result<Option<QueueKey>, OpError> {
    let mut snapshot = conn.begin().await?;
    page::set_plans(&mut snapshot).await?;
    let limit = limit_of_keys(&mut snapshot, queue).await?;
    let found = key_rules::list_keys_now(&mut snapshot, queue, &[key.to_owned()]).await?;
    snapshot.commit().await?;
    Ok(found.into_iter().find(|now| now.rules.is_some()).map(|now| shown(now, limit)))
}

/// Lists keys with runs or rules, after the key `after`.
pub async fn list(parts: Parts<'_>, queue: &TaskQueueId, after: Option<&str>, limit: u16) -> Result<Page, OpError> {
    let Some(number) = parts.queues.find_key(parts.pool, queue).await? else { return Ok(Page::default()) };
    let mut snapshot = page::begin(parts.pool).await?;
    let found = list_in(&mut snapshot, number, after, limit).await?;
    snapshot.commit().await?;
    Ok(found)
}

/// Like [`list`], on a connection with the plans of [`page::begin`].
pub async fn list_in(
    conn: &mut PgConnection,
    queue: i32,
    after: Option<&str>,
    limit: u16,
) -> Result<Page, sqlx::Error> {
    let limit = limit.min(KEYS_PAGE_MAX);
    let names = key_rules::list_key_names(conn, queue, after, limit.into()).await?;
    let next = if names.len() < usize::from(limit) { None } else { names.last().cloned() };
    Ok(Page { keys: list_used(conn, queue, &names).await?, next })
}

/// Lists the keys with the most waiting runs first, then the first ones by name, up to `limit`.
pub async fn list_busiest(conn: &mut PgConnection, queue: i32, limit: u16) -> Result<Page, sqlx::Error> {
    let limit = limit.min(KEYS_PAGE_MAX);
    let mut names = page::list_waiting_keys(conn, queue, limit.into()).await?.unwrap_or_default();
    let by_name = key_rules::list_key_names(conn, queue, None, limit.into()).await?;
    let next = if by_name.len() < usize::from(limit) { None } else { by_name.last().cloned() };
    for name in by_name {
        if names.len() < usize::from(limit) && !names.contains(&name) {
            names.push(name);
        }
    }
    let mut keys = list_used(conn, queue, &names).await?;
    keys.sort_by(|a, b| (b.waiting, b.used).cmp(&(a.waiting, a.used)).then_with(|| a.key.cmp(&b.key)));
    Ok(Page { keys, next })
}

/// Returns the keys that have runs or rules: the database keeps keys for some time after
/// their last run.
async fn list_used(conn: &mut PgConnection, queue: i32, names: &[String]) -> Result<Vec<QueueKey>, sqlx::Error> {
    let limit = limit_of_keys(conn, queue).await?;
    let now = key_rules::list_keys_now(conn, queue, names).await?;
    let used = now.into_iter().filter(|now| now.rules.is_some() || now.used > 0 || now.waiting > 0);
    Ok(used.map(|now| shown(now, limit)).collect())
}

/// The queue's concurrency limit for keys.
#[derive(Clone, Copy)]
enum KeyLimit {
    /// The queue has no admission.
    Nothing,
    /// The limit of keys without rules, if any.
    PerKey(Option<u32>),
}

async fn limit_of_keys(conn: &mut PgConnection, queue: i32) -> Result<KeyLimit, sqlx::Error> {
    let Some(stored) = policies::find(conn, queue).await? else { return Ok(KeyLimit::Nothing) };
    let policy = Policy::from_stored(&stored.policy)
        .map_err(|error| sqlx::Error::Decode(format!("the policy of queue {queue}: {error:?}").into()))?;
    Ok(policy.admission().map_or(KeyLimit::Nothing, |admission| KeyLimit::PerKey(admission.per_key)))
}

fn shown(now: KeyNow, limit: KeyLimit) -> QueueKey {
    let KeyNow { key, used, waiting, rules } = now;
    let limit = match limit {
        KeyLimit::Nothing => None,
        // Runs without a key share no limit.
        KeyLimit::PerKey(_) if key.is_empty() => None,
        KeyLimit::PerKey(per_key) => rules.as_ref().and_then(|rules| rules.concurrency).or(per_key),
    };
    let KeyRulesOnWire { concurrency, rate, weight } = rules.map(|rules| rules.to_wire()).unwrap_or_default();
    QueueKey { key, used, limit, waiting, concurrency, rate, weight }
}
