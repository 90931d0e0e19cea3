//! Task queues: the key of each name. Keys never change, so servers cache those in use.
//!
//! Keys are random, so that a key lost in a failover is not reused while a server or URL still has
//! it. Creates and claims compare key and name: nothing is stored under a lost key.

use std::collections::{BTreeSet, HashMap, HashSet};

use sqlx::{PgConnection, PgPool};
use tenure_api::ids::TaskQueueId;
use uuid::Uuid;

use crate::cached::{Cached, Epoch};
use crate::hot;
use crate::in_use::InUse;

const TRIES: u32 = 3;

/// Cached keys and names of recently used queues.
#[derive(Debug, Default, Clone)]
pub struct Queues {
    cache: Cached<CachedKeys>,
}

#[derive(Debug, Default)]
struct CachedKeys {
    keys: InUse<TaskQueueId, i32>,
    names: InUse<i32, TaskQueueId>,
    ruled: HashSet<i32>,
    /// Queues with a backlog limit, and whether they were far from it.
    bounded: HashMap<i32, bool>,
}

impl Queues {
    fn remember(&self, since: Epoch, key: i32, name: &TaskQueueId) {
        self.cache.update(since, |cache| {
            cache.keys.insert(name.clone(), key);
            cache.names.insert(key, name.clone());
        });
    }

    pub fn list(&self) -> Vec<(i32, TaskQueueId)> {
        self.cache.read(|cache| cache.keys.iter().map(|(name, &key)| (key, name.clone())).collect())
    }

    /// Begins a turn of [`InUse`], and returns the number of evicted queues.
    pub fn drop_idle(&self) -> usize {
        let dropped = self.cache.update(self.cache.epoch(), |cache| {
            let CachedKeys { keys, names, ruled, bounded } = cache;
            let dropped = keys.begin_turn().max(names.begin_turn());
            // Queues that receive tasks are looked up by name.
            if dropped > 0 {
                let named: HashSet<i32> = keys.iter().map(|(_, &key)| key).collect();
                ruled.retain(|key| named.contains(key));
                bounded.retain(|key, _| named.contains(key));
            }
            dropped
        });
        dropped.unwrap_or_default()
    }

    pub fn drop_key(&self, name: &TaskQueueId) {
        self.cache.update(self.cache.epoch(), |cache| {
            if let Some(key) = cache.keys.remove(name) {
                cache.names.remove(&key);
                cache.ruled.remove(&key);
                cache.bounded.remove(&key);
            }
        });
    }

    /// True if, at the last creation, the queue had a policy to stamp on new runs. A hint for the
    /// first statement, which reads the policy itself.
    pub fn is_ruled(&self, key: i32) -> bool {
        self.cache.read(|cache| cache.ruled.contains(&key))
    }

    pub fn note_ruled(&self, key: i32, ruled: bool) {
        if self.is_ruled(key) != ruled {
            self.cache.update(self.cache.epoch(), |cache| {
                if ruled { cache.ruled.insert(key) } else { cache.ruled.remove(&key) }
            });
        }
    }

    /// True if, at the last creation, the queue had a backlog limit. A hint: the create statement
    /// leaves out tasks of such queues.
    pub fn is_bounded(&self, key: i32) -> bool {
        self.far(key).is_some()
    }

    /// True if, at the last count, the queue was far from its backlog limit. A hint, as above.
    pub fn is_far(&self, key: i32) -> bool {
        self.far(key) == Some(true)
    }

    /// `far` is none without a limit.
    pub fn note_bounded(&self, key: i32, far: Option<bool>) {
        if self.far(key) != far {
            self.cache.update(self.cache.epoch(), |cache| match far {
                Some(far) => cache.bounded.insert(key, far),
                None => cache.bounded.remove(&key),
            });
        }
    }

    fn far(&self, key: i32) -> Option<bool> {
        self.cache.read(|cache| cache.bounded.get(&key).copied())
    }

    pub fn drop_all(&self) {
        self.cache.drop_all();
    }

    fn remembered_key(&self, name: &TaskQueueId) -> Option<i32> {
        self.cache.read(|cache| cache.keys.get(name).copied())
    }

    pub async fn find_key(&self, pool: &PgPool, name: &TaskQueueId) -> Result<Option<i32>, sqlx::Error> {
        match self.remembered_key(name) {
            Some(key) => Ok(Some(key)),
            // Boxed, here and below: rarely polled, it would make every request's future ten times
            // as large.
            None => Box::pin(self.look_up_key(pool, name)).await,
        }
    }

    async fn look_up_key(&self, pool: &PgPool, name: &TaskQueueId) -> Result<Option<i32>, sqlx::Error> {
        let mut conn = pool.acquire().await?;
        // After a break, many callers get here at once; and the connection may have detected the
        // break.
        if let Some(key) = self.remembered_key(name) {
            return Ok(Some(key));
        }
        let since = self.cache.epoch();
        let key = sqlx::query_scalar!("-- find_queue\nSELECT id FROM task_queues WHERE name = $1", name.as_str())
            .fetch_optional(&mut *conn)
            .await?;
        // Released before another one is needed.
        drop(conn);
        if let Some(key) = key {
            self.remember(since, key, name);
        }
        Ok(key)
    }

    pub async fn get_or_create_key(&self, pool: &PgPool, name: &TaskQueueId) -> Result<i32, sqlx::Error> {
        match self.find_key(pool, name).await? {
            Some(key) => Ok(key),
            None => Box::pin(self.create_key(pool, name)).await,
        }
    }

    async fn create_key(&self, pool: &PgPool, name: &TaskQueueId) -> Result<i32, sqlx::Error> {
        // Repeats only if another queue has the random key.
        for _ in 0..TRIES {
            sqlx::query!(
                "-- make_queue
                INSERT INTO task_queues (id, name) OVERRIDING SYSTEM VALUE VALUES ($1, $2) ON CONFLICT DO NOTHING",
                random_key(),
                name.as_str()
            )
            .execute(pool)
            .await?;
            if let Some(key) = self.find_key(pool, name).await? {
                return Ok(key);
            }
        }
        Err(sqlx::Error::RowNotFound)
    }

    pub async fn get_name(&self, pool: &PgPool, key: i32) -> Result<TaskQueueId, sqlx::Error> {
        match self.find_name(key) {
            Some(name) => Ok(name),
            None => Box::pin(async { self.look_up_name(&mut *pool.acquire().await?, key).await }).await,
        }
    }

    /// As [`Self::get_name`], for callers that hold a connection.
    pub async fn get_name_on(&self, conn: &mut PgConnection, key: i32) -> Result<TaskQueueId, sqlx::Error> {
        match self.find_name(key) {
            Some(name) => Ok(name),
            None => self.look_up_name(conn, key).await,
        }
    }

    fn find_name(&self, key: i32) -> Option<TaskQueueId> {
        self.cache.read(|cache| cache.names.get(&key).cloned())
    }

    async fn look_up_name(&self, conn: &mut PgConnection, key: i32) -> Result<TaskQueueId, sqlx::Error> {
        let since = self.cache.epoch();
        let name = sqlx::query_scalar!("-- get_queue\nSELECT name FROM task_queues WHERE id = $1", key)
            .fetch_one(conn)
            .await?;
        let name = parse_name(&name)?;
        self.remember(since, key, &name);
        Ok(name)
    }
}

/// Parses the stored name of a queue.
///
/// # Errors If it is invalid.
pub fn parse_name(name: &str) -> Result<TaskQueueId, sqlx::Error> {
    TaskQueueId::read_full(name).map_err(|error| sqlx::Error::Decode(Box::new(error)))
}

/// Most likely unused.
fn random_key() -> i32 {
    let (_, random) = Uuid::new_v4().as_u64_pair();
    // 31 bits: keys are positive.
    i32::try_from(random & 0x7fff_ffff).unwrap_or_default().max(1)
}

#[derive(Debug, Clone, Copy)]
pub struct Remembered<'a> {
    pub key: i32,
    pub name: &'a TaskQueueId,
}

pub async fn mark_polled(conn: &mut PgConnection, queues: &[i32]) -> Result<(), sqlx::Error> {
    sqlx::query!(
        "-- mark_polled
        WITH locked AS MATERIALIZED (
            SELECT id FROM task_queues WHERE id = ANY($1) AND NOT polled ORDER BY id FOR NO KEY UPDATE
        )
        UPDATE task_queues q SET polled = true FROM locked WHERE q.id = locked.id",
        queues
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// Locks the queues of these tasks, waiting. Needed to keep a run's position, or to give it one
/// that may be below a low-water mark.
pub async fn lock_of_tasks(conn: &mut PgConnection, tasks: &[Uuid]) -> Result<(), sqlx::Error> {
    // Ordered, to avoid deadlocks.
    sqlx::query!(
        "-- lock_queues_of_tasks
        SELECT FROM task_queues q WHERE q.id IN (SELECT t.queue FROM tasks t WHERE t.id = ANY($1))
        ORDER BY q.id FOR NO KEY UPDATE",
        tasks
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// Returns the indexes of queues whose key has changed or vanished.
pub async fn list_stale(conn: &mut PgConnection, queues: &[Remembered<'_>]) -> Result<Vec<usize>, sqlx::Error> {
    let keys: Vec<i32> = queues.iter().map(|queue| queue.key).collect();
    let names: Vec<&str> = queues.iter().map(|queue| queue.name.as_str()).collect();
    let rows = sqlx::query_scalar!(
        r#"-- stale_queues
        SELECT i.n AS "n!" FROM unnest($1::int[], $2::text[]) WITH ORDINALITY AS i(id, name, n)
        WHERE NOT EXISTS (SELECT FROM task_queues q WHERE q.id = i.id AND q.name = i.name)"#,
        &keys,
        &names as &[&str]
    )
    .fetch_all(conn)
    .await?;
    Ok(rows.into_iter().map(hot::member).collect())
}

/// The key of a queue, read in a transaction.
#[derive(Debug, Clone, Copy)]
pub struct Key {
    pub id: i32,
    /// True if it has a backlog limit.
    pub is_bounded: bool,
}

/// Returns the keys of queues, creating missing ones in this transaction. Does not cache them,
/// since the transaction may roll back. Omits a queue whose random key is taken.
pub async fn get_or_create_keys(
    transaction: &mut PgConnection,
    names: &BTreeSet<&TaskQueueId>,
) -> Result<HashMap<TaskQueueId, Key>, sqlx::Error> {
    let names: Vec<&str> = names.iter().map(|name| name.as_str()).collect();
    let known = get_keys(transaction, &names).await?;
    if known.len() == names.len() {
        return Ok(known);
    }
    let keys: Vec<i32> = names.iter().map(|_| random_key()).collect();
    // Ordered, to avoid deadlocks.
    sqlx::query!(
        "-- make_queues
        INSERT INTO task_queues (id, name) OVERRIDING SYSTEM VALUE
        SELECT i.id, i.name FROM unnest($1::int[], $2::text[]) AS i(id, name)
        WHERE NOT EXISTS (SELECT FROM task_queues q WHERE q.name = i.name) ORDER BY i.name
        ON CONFLICT DO NOTHING",
        &keys,
        &names as &[&str]
    )
    .execute(&mut *transaction)
    .await?;
    get_keys(transaction, &names).await
}

async fn get_keys(transaction: &mut PgConnection, names: &[&str]) -> Result<HashMap<TaskQueueId, Key>, sqlx::Error> {
    let rows = sqlx::query!(
        r#"-- get_queues
        SELECT q.id, q.name, (COALESCE(q.backlog_tasks, q.backlog_bytes) IS NOT NULL) AS "is_bounded!" FROM unnest($1::text[]) AS i(name) JOIN task_queues q ON q.name = i.name"#,
        names as &[&str]
    )
    .fetch_all(transaction)
    .await?;
    rows.into_iter().map(|row| Ok((parse_name(&row.name)?, Key { id: row.id, is_bounded: row.is_bounded }))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::in_use::TURNS;

    #[test]
    fn unused_queue_is_evicted() {
        let queues = Queues::default();
        let names = ["acme/used", "acme/idle"].map(|name| name.parse::<TaskQueueId>().unwrap());
        for (key, name) in (1..).zip(&names) {
            queues.remember(queues.cache.epoch(), key, name);
            queues.note_ruled(key, true);
        }
        for _ in 0..=TURNS {
            assert_eq!(queues.list().len(), 2);
            assert_eq!(queues.remembered_key(&names[0]), Some(1));
            queues.drop_idle();
        }
        assert_eq!(queues.list(), [(1, names[0].clone())]);
        assert!(queues.is_ruled(1) && !queues.is_ruled(2));
        assert_eq!(queues.remembered_key(&names[1]), None);
        queues.cache.read(|cache| assert_eq!((cache.names.iter().count(), cache.keys.iter().count()), (0, 1)));
    }
}
