//! Workers on the operator's page: last contact and availability.

use chrono::{DateTime, Utc};
use sqlx::PgConnection;
use tenure_api::ids::SessionId;

/// Newest queues searched for a worker: no index finds workers by name alone.
const QUEUES_READ: i64 = 1_000;
/// Workers read per queue. No index has them by last contact, because each contact would update it.
pub const WORKERS_READ: i64 = 1_000;

#[derive(Debug, Clone)]
pub struct WorkerRow {
    pub queue: i32,
    pub queue_name: String,
    pub worker_group: String,
    pub worker_id: String,
    pub first_seen: DateTime<Utc>,
    /// Last request for work, renewal of a claim, or declaration.
    pub last_seen: DateTime<Utc>,
    /// May be in the past.
    pub quarantine_until: Option<DateTime<Utc>>,
    /// Last renewal of its live session.
    pub renewed: Option<DateTime<Utc>>,
    /// True if its live session is frozen.
    pub frozen: bool,
    /// Removal. For a registered worker, not the removal of an earlier worker with the same name.
    pub removed: Option<DateTime<Utc>>,
}

impl WorkerRow {
    pub fn contact(&self) -> DateTime<Utc> {
        self.renewed.map_or(self.last_seen, |renewed| renewed.max(self.last_seen))
    }
}

/// Lists the first [`WORKERS_READ`] workers of a queue by group and id.
pub async fn list_known(conn: &mut PgConnection, queue: i32) -> Result<Vec<WorkerRow>, sqlx::Error> {
    sqlx::query_as!(
        WorkerRow,
        r#"-- page_workers
        WITH known AS MATERIALIZED (
            SELECT w.queue, w.worker_group COLLATE "default" AS worker_group, w.worker_id COLLATE "default" AS worker_id,
                   w.first_claim, w.last_seen, w.quarantine_until
            FROM workers w, db_now
            WHERE w.queue = $1 AND (w.expires > db_now.now OR w.quarantine_until > db_now.now)
            ORDER BY w.worker_group, w.worker_id LIMIT $2
        )
        SELECT k.queue, q.name AS queue_name, k.worker_group AS "worker_group!", k.worker_id AS "worker_id!",
               k.first_claim AS first_seen, k.last_seen, k.quarantine_until,
               s.until - make_interval(secs => s.ttl) AS renewed,
               COALESCE(s.frozen AND s.until > (SELECT now FROM db_now), false) AS "frozen!",
               CASE WHEN g.pool IS NULL THEN r.removed ELSE g.removed END AS removed
        FROM known k JOIN task_queues q ON q.id = k.queue
        LEFT JOIN worker_sessions s
            ON s.queue = k.queue AND s.worker_group = k.worker_group AND s.worker_id = k.worker_id AND s.ended IS NULL
        LEFT JOIN worker_removals r
            ON r.queue = k.queue AND r.worker_group = k.worker_group AND r.worker_id = k.worker_id
        LEFT JOIN registered_workers g
            ON g.pool = q.name COLLATE "default" AND g.worker_group = k.worker_group AND g.worker_id = k.worker_id
        ORDER BY k.worker_group, k.worker_id"#,
        queue,
        WORKERS_READ
    )
    .fetch_all(conn)
    .await
}

/// Finds a worker by name in the newest queues, up to `QUEUES_READ`.
pub async fn list_of_name(
    conn: &mut PgConnection,
    worker_group: &str,
    worker_id: &str,
) -> Result<Vec<WorkerRow>, sqlx::Error> {
    sqlx::query_as!(
        WorkerRow,
        r#"-- page_worker
        WITH queues AS MATERIALIZED (SELECT queue FROM queue_views ORDER BY queue DESC LIMIT $3),
        known AS MATERIALIZED (
            SELECT w.* FROM queues v JOIN workers w ON w.queue = v.queue AND w.worker_group = $1 AND w.worker_id = $2
        )
        SELECT k.queue, q.name AS queue_name, k.worker_group, k.worker_id, k.first_claim AS first_seen, k.last_seen,
               k.quarantine_until, s.until - make_interval(secs => s.ttl) AS renewed,
               COALESCE(s.frozen AND s.until > (SELECT now FROM db_now), false) AS "frozen!",
               CASE WHEN g.pool IS NULL THEN r.removed ELSE g.removed END AS removed
        FROM known k JOIN task_queues q ON q.id = k.queue
        LEFT JOIN worker_sessions s
            ON s.queue = k.queue AND s.worker_group = $1 AND s.worker_id = $2 AND s.ended IS NULL
        LEFT JOIN worker_removals r ON r.queue = k.queue AND r.worker_group = $1 AND r.worker_id = $2
        LEFT JOIN registered_workers g
            ON g.pool = q.name COLLATE "default" AND g.worker_group = $1 AND g.worker_id = $2
        ORDER BY k.last_seen DESC, q.name"#,
        worker_group,
        worker_id,
        QUEUES_READ
    )
    .fetch_all(conn)
    .await
}

/// Names of a worker and its queue.
#[derive(Debug, Clone, Copy)]
pub struct Named<'a> {
    pub queue: &'a str,
    pub worker_group: &'a str,
    pub worker_id: &'a str,
}

/// Lists the known workers among `names`, with one index probe each.
pub async fn list_named(conn: &mut PgConnection, names: &[Named<'_>]) -> Result<Vec<WorkerRow>, sqlx::Error> {
    let queues: Vec<&str> = names.iter().map(|name| name.queue).collect();
    let groups: Vec<&str> = names.iter().map(|name| name.worker_group).collect();
    let ids: Vec<&str> = names.iter().map(|name| name.worker_id).collect();
    sqlx::query_as!(
        WorkerRow,
        r#"-- page_named_workers
        SELECT w.queue AS "queue!", q.name AS "queue_name!", w.worker_group AS "worker_group!", w.worker_id AS "worker_id!",
               w.first_claim AS "first_seen!", w.last_seen AS "last_seen!", w.quarantine_until,
               s.until - make_interval(secs => s.ttl) AS renewed,
               COALESCE(s.frozen AND s.until > (SELECT now FROM db_now), false) AS "frozen!",
               CASE WHEN g.pool IS NULL THEN r.removed ELSE g.removed END AS removed
        FROM unnest($1::text[] /* queues */, $2::text[] /* worker groups */, $3::text[] /* worker ids */) AS i(queue, worker_group, worker_id)
        JOIN task_queues q ON q.name = i.queue COLLATE "C"
        JOIN workers w ON w.queue = q.id AND w.worker_group = i.worker_group COLLATE "C" AND w.worker_id = i.worker_id COLLATE "C"
        LEFT JOIN worker_sessions s
            ON s.queue = q.id AND s.worker_group = i.worker_group AND s.worker_id = i.worker_id AND s.ended IS NULL
        LEFT JOIN worker_removals r
            ON r.queue = q.id AND r.worker_group = i.worker_group AND r.worker_id = i.worker_id
        LEFT JOIN registered_workers g
            ON g.pool = i.queue AND g.worker_group = i.worker_group AND g.worker_id = i.worker_id"#,
        &queues as &[&str],
        &groups as &[&str],
        &ids as &[&str]
    )
    .fetch_all(conn)
    .await
}

/// The live session of a worker in a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WorkerSession {
    pub queue: i32,
    pub id: SessionId,
    pub capacity: i32,
}

/// Lists the live sessions of a worker in these queues, with one index probe each.
pub async fn list_sessions_of(
    conn: &mut PgConnection,
    queues: &[i32],
    worker_group: &str,
    worker_id: &str,
) -> Result<Vec<WorkerSession>, sqlx::Error> {
    let rows = sqlx::query!(
        r#"-- page_worker_sessions
        SELECT s.queue AS "queue!", s.id AS "id!", s.capacity AS "capacity!"
        FROM unnest($1::int[]) AS i(queue)
        JOIN worker_sessions s ON s.queue = i.queue AND s.worker_group = $2 AND s.worker_id = $3 AND s.ended IS NULL"#,
        queues,
        worker_group,
        worker_id
    )
    .fetch_all(conn)
    .await?;
    let sessions = rows.into_iter().map(|row| WorkerSession {
        queue: row.queue,
        id: SessionId::new(row.id),
        capacity: row.capacity,
    });
    Ok(sessions.collect())
}
