//! Workers: sightings, declarations and quarantines.

use std::time::Instant;

use chrono::{DateTime, Utc};
use serde_json::json;
use sqlx::{Connection, PgConnection, PgPool};
use tenure_api::dates::Timestamp;
use tenure_api::ids::{RunId, TaskId, TaskQueueId};
use uuid::Uuid;

use super::OpError;
use super::actor::Actor;
use crate::remembered::Facts;
use crate::workers::{Workers, age};
use tenure_domain::audit::{self, Action, Entry};
use tenure_domain::worker::{RECENT_MAX, WORKER_KEPT, WorkerKey};
use tenure_store::clock;
use tenure_store::decode::Row;
use tenure_store::queue_views::{self, SeenQueue};
use tenure_store::queues::Queues;
use tenure_store::workers::{self as store, Quarantine, QuarantineRow, SeenWorker, Wanted, WorkerRow};

/// Rows per statement.
const WRITTEN_MAX: usize = 500;
/// Claims read at start-up.
const HELD_MAX: i64 = 10_000;

/// Stores this server's sightings and returns their number. Reads after the call include all
/// earlier sightings.
pub async fn write_down(pool: &PgPool, workers: &Workers) -> Result<usize, sqlx::Error> {
    // A concurrent write must store its sightings before they are read.
    let _turn = workers.turn_to_write().await;
    let taken = workers.take();
    let (sightings, now) = (taken.sightings(), Instant::now());
    if sightings.queues.is_empty() {
        return Ok(0);
    }
    let mut conn = pool.acquire().await?;
    let queues: Vec<SeenQueue> = sightings
        .queues
        .iter()
        .map(|(&key, queue)| SeenQueue { key, last: age(queue.last, now), kept: age(now, queue.retained_until) })
        .collect();
    for part in queues.chunks(WRITTEN_MAX) {
        queue_views::see(&mut conn, part).await?;
    }
    let rows: Vec<SeenWorker<'_>> = sightings
        .workers
        .iter()
        .map(|(key, worker)| SeenWorker {
            key,
            first: age(worker.first, now),
            last: age(worker.last, now),
            recent: &worker.recent,
        })
        .collect();
    for part in rows.chunks(WRITTEN_MAX) {
        store::see(&mut conn, part).await?;
    }
    let written = rows.len();
    taken.written();
    Ok(written)
}

/// Stores workers with claims at start-up: a killed server has not stored the latest.
pub async fn note_held(pool: &PgPool) -> Result<usize, sqlx::Error> {
    let mut conn = pool.acquire().await?;
    let now = clock::get_now(&mut conn).await?;
    let held = store::list_held(&mut conn, HELD_MAX).await?;
    let since = |claimed: DateTime<Utc>| (now - claimed).to_std().unwrap_or_default();
    // One row per worker.
    let mut rows: std::collections::BTreeMap<&WorkerKey, Vec<_>> = std::collections::BTreeMap::new();
    for one in &held {
        rows.entry(&one.worker).or_default().push(one.claim);
    }
    let mut queues: Vec<i32> = rows.keys().map(|key| key.queue).collect();
    queues.dedup();
    let (mut seen_queues, mut seen) = (Vec::new(), Vec::new());
    for (key, claims) in &mut rows {
        claims.sort_by_key(|claim| claim.claimed);
        let (Some(first), Some(last)) = (claims.first(), claims.last()) else { continue };
        let (first, last) = (since(first.claimed), since(last.claimed));
        seen_queues.push(SeenQueue { key: key.queue, last, kept: WORKER_KEPT.saturating_sub(last) });
        let newest = claims.len().saturating_sub(RECENT_MAX);
        seen.push(SeenWorker { key, first, last, recent: &claims[newest..] });
    }
    // Keep the last sighting of each queue.
    seen_queues.sort_by_key(|queue| (queue.key, queue.last));
    seen_queues.dedup_by_key(|queue| queue.key);
    for part in seen_queues.chunks(WRITTEN_MAX) {
        queue_views::see(&mut conn, part).await?;
    }
    for part in seen.chunks(WRITTEN_MAX) {
        store::see(&mut conn, part).await?;
    }
    Ok(seen.len())
}

#[derive(Debug)]
pub struct KnownWorker {
    pub queue: TaskQueueId,
    pub worker: WorkerRow,
    /// Last claims, oldest first.
    pub recent: Vec<(TaskId, RunId)>,
    /// Quarantine changes, oldest first.
    pub quarantines: Vec<QuarantineRow>,
}

#[derive(Debug, Clone)]
pub struct Name {
    pub queue: TaskQueueId,
    pub group: String,
    pub id: String,
}

impl Name {
    fn missing(&self) -> OpError {
        let Self { queue, group, id } = self;
        OpError::NotFound(format!("worker {group}/{id} of queue {queue} does not exist or has expired"))
    }

    fn key(&self, queue: i32) -> WorkerKey {
        WorkerKey { queue, group: self.group.clone(), id: self.id.clone() }
    }
}

pub async fn get(pool: &PgPool, workers: &Workers, queues: &Queues, name: &Name) -> Result<KnownWorker, OpError> {
    write_down(pool, workers).await?;
    let key = queues.find_key(pool, &name.queue).await?.ok_or_else(|| name.missing())?;
    read(&mut *pool.acquire().await?, name, key).await
}

async fn read(conn: &mut PgConnection, name: &Name, queue: i32) -> Result<KnownWorker, OpError> {
    let key = name.key(queue);
    let worker = store::find(conn, &key).await?.ok_or_else(|| name.missing())?;
    let recent = recent(&worker)?;
    let quarantines = store::list_quarantines(conn, &key).await?;
    Ok(KnownWorker { queue: name.queue.clone(), worker, recent, quarantines })
}

/// Returns the last claims of a worker, oldest first.
pub fn recent(worker: &WorkerRow) -> Result<Vec<(TaskId, RunId)>, sqlx::Error> {
    let claims = worker.recent_tasks.iter().zip(&worker.recent_runs);
    let claim = |(&task, &run): (&Uuid, &i16)| {
        let columns = Row { table: "workers", task };
        Ok((columns.slug("recent_tasks", task)?, columns.run(run)?))
    };
    claims.map(claim).collect()
}

/// Lists a queue's workers, and one beyond the limit if there are more.
pub async fn list(pool: &PgPool, workers: &Workers, wanted: Wanted<'_>) -> Result<Vec<WorkerRow>, OpError> {
    write_down(pool, workers).await?;
    Ok(store::list(&mut *pool.acquire().await?, wanted).await?)
}

/// Creates or updates a worker and its queue, retained at least until `expires`.
pub async fn declare(
    pool: &PgPool,
    workers: &Workers,
    queues: &Queues,
    name: &Name,
    expires: DateTime<Utc>,
) -> Result<KnownWorker, OpError> {
    write_down(pool, workers).await?;
    let queue = queues.get_or_create_key(pool, &name.queue).await?;
    let mut conn = pool.acquire().await?;
    let mut transaction = conn.begin().await.map_err(OpError::from)?;
    queue_views::declare(&mut transaction, queue, expires).await?;
    let key = name.key(queue);
    store::declare(&mut transaction, &key, expires).await?;
    let worker = store::get(&mut transaction, &key).await?;
    let quarantines = store::list_quarantines(&mut transaction, &key).await?;
    transaction.commit().await.map_err(OpError::from)?;
    let recent = recent(&worker)?;
    Ok(KnownWorker { queue: name.queue.clone(), worker, recent, quarantines })
}

/// Takes effect at this server before it returns, and at the others within half a second.
pub async fn quarantine(
    pool: &PgPool,
    facts: &Facts,
    workers: &Workers,
    queues: &Queues,
    actor: &Actor,
    name: &Name,
    change: Quarantine<'_>,
) -> Result<KnownWorker, OpError> {
    write_down(pool, workers).await?;
    let queue = queues.find_key(pool, &name.queue).await?.ok_or_else(|| name.missing())?;
    let key = name.key(queue);
    let mut conn = pool.acquire().await?;
    let mut transaction = conn.begin().await.map_err(OpError::from)?;
    if !store::quarantine(&mut transaction, &key, change).await? {
        return Err(name.missing());
    }
    let known = read(&mut transaction, name, queue).await?;
    let detail = json!({"quarantineUntil": Timestamp::new(change.until), "quarantineInfo": change.info});
    let worker = audit::worker(name.queue.as_str(), &name.group, &name.id);
    let recorded = actor.record(&mut transaction, Entry::new(Action::QuarantineWorker, worker, detail)).await?;
    transaction.commit().await.map_err(OpError::from)?;
    drop(conn);
    // Committed: nothing from here on may fail the request.
    if let Err(error) = facts.refresh().await {
        tracing::warn!(
            error = %error,
            "cached facts could not be refreshed after the quarantine of a worker was changed"
        );
        facts.quarantine_here(&key, change.until);
    }
    recorded.log();
    Ok(known)
}
