//! Numbers of workers of several queues by their presence.

use std::collections::HashMap;

use chrono::{DateTime, Utc};
use sqlx::PgConnection;
use tenure_domain::presence::SILENT_AFTER;

use super::{CLAIMS_READ, begin_part, end_part};

/// Workers counted of each queue, by group and id.
pub const WORKERS_COUNTED: i64 = 100;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WorkerStates {
    pub queue: i32,
    pub working: i64,
    pub idle: i64,
    pub silent: i64,
    pub quarantined: i64,
    pub frozen: i64,
    /// Workers read, with removed ones, up to [`WORKERS_COUNTED`].
    pub read: i64,
}

/// Counts the workers of these queues. Of the claims, the last `CLAIMS_READ` by end of lease are
/// read, down to the mark. Queues without workers are omitted; none on timeout.
pub async fn count_workers(
    conn: &mut PgConnection,
    queues: &[i32],
    claims: DateTime<Utc>,
) -> Result<Option<HashMap<i32, WorkerStates>>, sqlx::Error> {
    let mut part = begin_part(conn).await?;
    let states = sqlx::query_as!(
        WorkerStates,
        r#"-- page_worker_states
        WITH db_now AS MATERIALIZED (SELECT now FROM db_now),
        busy AS MATERIALIZED (
            SELECT DISTINCT c.queue, c.worker_group, c.worker_id FROM (
                SELECT c.queue, c.worker_group, c.worker_id FROM claims c
                WHERE c.taken_until >= $2 /* mark */ ORDER BY c.taken_until DESC LIMIT $3 /* CLAIMS_READ */
            ) c WHERE c.queue = ANY($1)
        ),
        known AS MATERIALIZED (
            SELECT w.queue, w.worker_group COLLATE "default" AS worker_group, w.worker_id COLLATE "default" AS worker_id,
                   w.last_seen, w.quarantine_until
            FROM unnest($1::int[] /* queues */) AS i(queue) CROSS JOIN LATERAL (
                SELECT w.queue, w.worker_group, w.worker_id, w.last_seen, w.quarantine_until FROM workers w
                WHERE w.queue = i.queue
                  AND (w.expires > (SELECT now FROM db_now) OR w.quarantine_until > (SELECT now FROM db_now))
                ORDER BY w.worker_group, w.worker_id LIMIT $4 /* WORKERS_COUNTED */
            ) w
        ),
        present AS MATERIALIZED (
            SELECT k.queue, COALESCE(k.quarantine_until > db_now.now, false) AS quarantined,
                   ((k.queue, k.worker_group, k.worker_id) IN (SELECT b.queue, b.worker_group, b.worker_id FROM busy b)) IS TRUE
                       AS running,
                   COALESCE(s.frozen AND s.until > db_now.now, false) AS frozen,
                   COALESCE(r.removed >= c.contact, false) AS removed,
                   db_now.now - c.contact > make_interval(secs => $5 /* SILENT_AFTER */) AS silent
            FROM known k CROSS JOIN db_now
            -- By key for each worker, so that the planner never reads a whole table.
            LEFT JOIN LATERAL (
                SELECT x.frozen, x.until, x.ttl FROM worker_sessions x
                WHERE x.queue = k.queue AND x.worker_group = k.worker_group AND x.worker_id = k.worker_id AND x.ended IS NULL
                LIMIT 1
            ) s ON true
            LEFT JOIN LATERAL (
                SELECT x.removed FROM worker_removals x
                WHERE x.queue = k.queue AND x.worker_group = k.worker_group AND x.worker_id = k.worker_id LIMIT 1
            ) r ON true
            -- The greatest date that is not null.
            CROSS JOIN LATERAL (
                SELECT GREATEST(k.last_seen, s.until - make_interval(secs => s.ttl)) AS contact
            ) c
        )
        SELECT p.queue AS "queue!", count(*) AS "read!",
               count(*) FILTER (WHERE p.quarantined AND NOT p.removed) AS "quarantined!",
               count(*) FILTER (WHERE p.frozen AND NOT (p.quarantined OR p.removed)) AS "frozen!",
               count(*) FILTER (WHERE p.running AND NOT (p.quarantined OR p.frozen OR p.removed)) AS "working!",
               count(*) FILTER (WHERE NOT (p.running OR p.quarantined OR p.frozen OR p.removed OR p.silent)) AS "idle!",
               count(*) FILTER (WHERE p.silent AND NOT (p.running OR p.quarantined OR p.frozen OR p.removed)) AS "silent!"
        FROM present p GROUP BY p.queue"#,
        queues,
        claims,
        CLAIMS_READ,
        WORKERS_COUNTED,
        SILENT_AFTER.as_seconds_f64()
    )
    .fetch_all(&mut *part)
    .await;
    let states = end_part(part, states).await?;
    Ok(states.map(|states| states.into_iter().map(|states| (states.queue, states)).collect()))
}
