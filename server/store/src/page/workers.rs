//! What the operator's page shows of workers: when each was in contact, and whether it gets work.

use chrono::{DateTime, Utc};
use sqlx::PgConnection;

/// Queues in which a worker is looked for, the newest: a worker is listed by queue, and no index finds it by its name alone.
const QUEUES_READ: i64 = 1_000;
/// Workers of a queue that are looked at. No index has them by their last contact, because it would be written each time.
pub const WORKERS_READ: i64 = 1_000;

/// A worker of a queue.
#[derive(Debug, Clone)]
pub struct WorkerRow {
    /// The queue's key.
    pub queue: i32,
    /// The queue's name.
    pub queue_name: String,
    pub worker_group: String,
    pub worker_id: String,
    pub first_seen: DateTime<Utc>,
    /// When it last asked for work, renewed a claim, or was declared.
    pub last_seen: DateTime<Utc>,
    /// Until when it gets no work; may be over.
    pub quarantine_until: Option<DateTime<Utc>>,
    /// When its live session was renewed last.
    pub renewed: Option<DateTime<Utc>>,
    /// When it was removed; of a worker that registers, this one and not the one before of the same name.
    pub removed: Option<DateTime<Utc>>,
}

impl WorkerRow {
    /// When it was last in contact.
    pub fn contact(&self) -> DateTime<Utc> {
        self.renewed.map_or(self.last_seen, |renewed| renewed.max(self.last_seen))
    }
}

/// The workers of a queue that are known, in the order of group and id: the first [`WORKERS_READ`].
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

/// A worker by its name, in each of the newest queues (`QUEUES_READ` at most) that knows it.
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
