//! Workers: contacts, declarations and quarantines. [`super::queue_views`] has their queues.

use std::collections::HashMap;
use std::time::Duration;

use chrono::{DateTime, Utc};
use sqlx::PgConnection;
use uuid::Uuid;

use super::due_marks::DueMarks;
use super::facts;
use tenure_domain::presence::SILENT_AFTER;
use tenure_domain::worker::{
    QUARANTINED_KEPT, QUARANTINES_MAX, RECENT_MAX, Recent, Visibility, WORKER_KEPT, WorkerKey,
};

/// `due` is raised only by this much, so that few updates touch an index.
const DUE_STEP: Duration = Duration::from_secs(6 * 3_600);

#[derive(Debug)]
pub struct SeenWorker<'a> {
    pub key: &'a WorkerKey,
    /// Age of the first contact since the last write.
    pub first: Duration,
    /// Age of the last contact.
    pub last: Duration,
    pub recent: &'a [Recent],
}

/// Records contacts of workers; idempotent. Claims of one batch have the same time, and must be
/// given in order of claiming.
pub async fn see(conn: &mut PgConnection, seen: &[SeenWorker<'_>]) -> Result<(), sqlx::Error> {
    let queues: Vec<i32> = seen.iter().map(|worker| worker.key.queue).collect();
    let groups: Vec<&str> = seen.iter().map(|worker| worker.key.group.as_str()).collect();
    let ids: Vec<&str> = seen.iter().map(|worker| worker.key.id.as_str()).collect();
    let first: Vec<f64> = seen.iter().map(|worker| worker.first.as_secs_f64()).collect();
    let last: Vec<f64> = seen.iter().map(|worker| worker.last.as_secs_f64()).collect();
    let recent = || (1_i64..).zip(seen).flat_map(|(n, worker)| worker.recent.iter().map(move |claim| (n, claim)));
    let of: Vec<i64> = recent().map(|(n, _)| n).collect();
    let tasks: Vec<Uuid> = recent().map(|(_, claim)| claim.task).collect();
    let runs: Vec<i16> = recent().map(|(_, claim)| claim.run).collect();
    let claimed: Vec<DateTime<Utc>> = recent().map(|(_, claim)| claim.claimed).collect();
    sqlx::query!(
        r#"-- see_workers
        WITH db_now AS MATERIALIZED (SELECT now FROM db_now),
        input AS MATERIALIZED (
            SELECT i.*, db_now.now - make_interval(secs => i.first) AS first_seen,
                   db_now.now - make_interval(secs => i.last) AS last_seen
            FROM unnest($1::int[] /* queues */, $2::text[] /* worker groups */, $3::text[] /* worker ids */, $4::float8[] /* first */, $5::float8[] /* last */)
                WITH ORDINALITY AS i(queue, worker_group, worker_id, first, last, n), db_now
        ),
        recent AS MATERIALIZED (
            SELECT r.n, array_agg(r.task ORDER BY r.claimed, r.place) AS tasks,
                   array_agg(r.run ORDER BY r.claimed, r.place) AS runs,
                   array_agg(r.claimed ORDER BY r.claimed, r.place) AS claimed
            FROM unnest($6::bigint[] /* members */, $7::uuid[] /* tasks */, $8::smallint[] /* runs */, $9::timestamptz[] /* claimed */)
                WITH ORDINALITY AS r(n, task, run, claimed, place)
            GROUP BY r.n
        )
        INSERT INTO workers AS w (queue, worker_group, worker_id, first_claim, last_seen, expires, due, recent_tasks,
                                  recent_runs, recent_claimed)
        SELECT i.queue, i.worker_group, i.worker_id, i.first_seen, i.last_seen,
               i.last_seen + make_interval(secs => $10 /* WORKER_KEPT */), i.last_seen + make_interval(secs => $10),
               COALESCE(r.tasks, '{}'), COALESCE(r.runs, '{}'), COALESCE(r.claimed, '{}')
        FROM input i LEFT JOIN recent r ON r.n = i.n
        -- In order, so that two servers cannot deadlock.
        ORDER BY i.queue, i.worker_group COLLATE "C", i.worker_id COLLATE "C"
        ON CONFLICT (queue, worker_group, worker_id) DO UPDATE SET
            last_seen = GREATEST(w.last_seen, EXCLUDED.last_seen),
            expires = GREATEST(w.expires, EXCLUDED.expires),
            due = CASE WHEN EXCLUDED.due > w.due + make_interval(secs => $11) THEN EXCLUDED.due ELSE w.due END,
            (recent_tasks, recent_runs, recent_claimed) = (
                SELECT COALESCE(array_agg(m.task ORDER BY m.claimed, m.place), '{}'),
                       COALESCE(array_agg(m.run ORDER BY m.claimed, m.place), '{}'),
                       COALESCE(array_agg(m.claimed ORDER BY m.claimed, m.place), '{}')
                FROM (
                    SELECT r.task, r.run, r.claimed, min(r.place) AS place
                    FROM unnest(w.recent_tasks || EXCLUDED.recent_tasks, w.recent_runs || EXCLUDED.recent_runs,
                                w.recent_claimed || EXCLUDED.recent_claimed)
                        WITH ORDINALITY AS r(task, run, claimed, place)
                    GROUP BY r.task, r.run, r.claimed
                    ORDER BY r.claimed DESC, min(r.place) DESC LIMIT $12
                ) m
            )"#,
        &queues,
        &groups as &[&str],
        &ids as &[&str],
        &first,
        &last,
        &of,
        &tasks,
        &runs,
        &claimed,
        WORKER_KEPT.as_secs_f64(),
        DUE_STEP.as_secs_f64(),
        RECENT_MAX as i64,
    )
    .execute(conn)
    .await?;
    Ok(())
}

#[derive(Debug, Clone)]
pub struct WorkerRow {
    pub worker_group: String,
    pub worker_id: String,
    pub first_claim: DateTime<Utc>,
    pub last_seen: DateTime<Utc>,
    pub expires: DateTime<Utc>,
    /// May be in the past.
    pub quarantine_until: Option<DateTime<Utc>>,
    /// Tasks of its last claims, oldest first.
    pub recent_tasks: Vec<Uuid>,
    pub recent_runs: Vec<i16>,
    pub now: DateTime<Utc>,
}

impl WorkerRow {
    pub fn visibility(&self) -> Visibility {
        Visibility { expires: self.expires, quarantine_until: self.quarantine_until }
    }
}

/// Returns a worker, if it is shown.
pub async fn find(conn: &mut PgConnection, key: &WorkerKey) -> Result<Option<WorkerRow>, sqlx::Error> {
    sqlx::query_as!(
        WorkerRow,
        r#"-- find_worker
        WITH db_now AS MATERIALIZED (SELECT now FROM db_now)
        SELECT w.worker_group, w.worker_id, w.first_claim, w.last_seen, w.expires, w.quarantine_until, w.recent_tasks,
               w.recent_runs, db_now.now AS "now!"
        FROM workers w, db_now
        WHERE w.queue = $1 AND w.worker_group = $2 AND w.worker_id = $3
          AND (w.expires > db_now.now OR w.quarantine_until > db_now.now)"#,
        key.queue,
        key.group,
        key.id
    )
    .fetch_optional(conn)
    .await
}

/// Returns a worker, shown or not.
pub async fn get(conn: &mut PgConnection, key: &WorkerKey) -> Result<WorkerRow, sqlx::Error> {
    sqlx::query_as!(
        WorkerRow,
        r#"-- get_worker
        SELECT w.worker_group, w.worker_id, w.first_claim, w.last_seen, w.expires, w.quarantine_until, w.recent_tasks,
               w.recent_runs, db_now.now AS "now!"
        FROM workers w, db_now
        WHERE w.queue = $1 AND w.worker_group = $2 AND w.worker_id = $3"#,
        key.queue,
        key.group,
        key.id
    )
    .fetch_one(conn)
    .await
}

#[derive(Debug, Clone, Copy)]
pub struct Wanted<'a> {
    pub queue: i32,
    /// If set, only workers that are, or are not, quarantined.
    pub quarantined: Option<bool>,
    /// Group and id.
    pub after: (&'a str, &'a str),
    pub limit: i64,
}

pub async fn list(conn: &mut PgConnection, wanted: Wanted<'_>) -> Result<Vec<WorkerRow>, sqlx::Error> {
    sqlx::query_as!(
        WorkerRow,
        r#"-- list_workers
        WITH db_now AS MATERIALIZED (SELECT now FROM db_now)
        SELECT w.worker_group, w.worker_id, w.first_claim, w.last_seen, w.expires, w.quarantine_until,
               w.recent_tasks, w.recent_runs, db_now.now AS "now!"
        FROM workers w, db_now
        WHERE w.queue = $1 AND (w.worker_group, w.worker_id) > ($2, $3)
          AND (w.expires > db_now.now OR w.quarantine_until > db_now.now)
          AND ($4::boolean IS NULL OR COALESCE(w.quarantine_until > db_now.now, false) = $4)
        ORDER BY w.worker_group, w.worker_id LIMIT $5"#,
        wanted.queue,
        wanted.after.0,
        wanted.after.1,
        wanted.quarantined,
        wanted.limit
    )
    .fetch_all(conn)
    .await
}

/// Inserts a worker, perhaps without contact, and lists it at least until `expires`.
pub async fn declare(conn: &mut PgConnection, key: &WorkerKey, expires: DateTime<Utc>) -> Result<(), sqlx::Error> {
    sqlx::query!(
        "-- declare_worker
        WITH db_now AS MATERIALIZED (SELECT now FROM db_now)
        INSERT INTO workers AS w (queue, worker_group, worker_id, first_claim, last_seen, expires, due)
        -- Not before the clock: the low-water mark may be there already.
        SELECT $1, $2, $3, db_now.now, db_now.now, $4, GREATEST($4, db_now.now) FROM db_now
        ON CONFLICT (queue, worker_group, worker_id) DO UPDATE SET
            last_seen = GREATEST(w.last_seen, EXCLUDED.last_seen),
            expires = GREATEST(w.expires, EXCLUDED.expires)",
        key.queue,
        key.group,
        key.id,
        expires
    )
    .execute(conn)
    .await?;
    Ok(())
}

#[derive(Debug, Clone, Copy)]
pub struct Quarantine<'a> {
    pub until: DateTime<Utc>,
    pub info: Option<&'a str>,
    /// The client that sets it.
    pub client_id: &'a str,
}

/// Name of the quarantines in [`crate::facts`].
pub const FACT: &str = "quarantines";

/// Changes the quarantine of a shown worker. True if it exists.
pub async fn quarantine(conn: &mut PgConnection, key: &WorkerKey, change: Quarantine<'_>) -> Result<bool, sqlx::Error> {
    let changed = sqlx::query!(
        "-- quarantine_worker
        WITH db_now AS MATERIALIZED (SELECT now FROM db_now),
        changed AS (
            UPDATE workers w SET quarantine_until = $4 /* until */,
                   expires = GREATEST(w.expires, db_now.now + make_interval(secs => $5 /* QUARANTINED_KEPT */)),
                   due = GREATEST(w.expires, db_now.now + make_interval(secs => $5))
            FROM db_now
            WHERE w.queue = $1 /* queue */ AND w.worker_group = $2 /* worker group */ AND w.worker_id = $3 /* worker id */
              AND (w.expires > db_now.now OR w.quarantine_until > db_now.now)
            RETURNING w.queue
        ),
        noted AS (
            INSERT INTO worker_quarantines (queue, worker_group, worker_id, client_id, updated, quarantine_until, info)
            SELECT changed.queue, $2, $3, $6 /* client */, db_now.now, $4, $7 /* info */ FROM changed, db_now
        )
        SELECT FROM changed",
        key.queue,
        key.group,
        key.id,
        change.until,
        QUARANTINED_KEPT.as_secs_f64(),
        change.client_id,
        change.info
    )
    .fetch_optional(&mut *conn)
    .await?
    .is_some();
    if changed {
        sqlx::query!(
            "-- purge_old_quarantines
            DELETE FROM worker_quarantines
            WHERE queue = $1 AND worker_group = $2 AND worker_id = $3 AND id <= (
                SELECT q.id FROM worker_quarantines q
                WHERE q.queue = $1 AND q.worker_group = $2 AND q.worker_id = $3
                ORDER BY q.id DESC OFFSET $4 LIMIT 1
            )",
            key.queue,
            key.group,
            key.id,
            QUARANTINES_MAX as i64
        )
        .execute(&mut *conn)
        .await?;
        facts::raise(conn, FACT).await?;
    }
    Ok(changed)
}

#[derive(Debug, Clone)]
pub struct QuarantineRow {
    pub client_id: String,
    pub updated: DateTime<Utc>,
    pub quarantine_until: DateTime<Utc>,
    pub info: Option<String>,
}

pub async fn list_quarantines(conn: &mut PgConnection, key: &WorkerKey) -> Result<Vec<QuarantineRow>, sqlx::Error> {
    sqlx::query_as!(
        QuarantineRow,
        "-- list_quarantines
        SELECT client_id, updated, quarantine_until, info FROM worker_quarantines
        WHERE queue = $1 AND worker_group = $2 AND worker_id = $3 ORDER BY id",
        key.queue,
        key.group,
        key.id
    )
    .fetch_all(conn)
    .await
}

/// Lists all quarantines in effect.
pub async fn list_quarantined(conn: &mut PgConnection) -> Result<HashMap<WorkerKey, DateTime<Utc>>, sqlx::Error> {
    let rows = sqlx::query!(
        r#"-- list_quarantined
        SELECT w.queue, w.worker_group, w.worker_id, w.quarantine_until AS "until!" FROM workers w
        WHERE w.quarantine_until > (SELECT now FROM db_now)"#
    )
    .fetch_all(conn)
    .await?;
    let known = rows
        .into_iter()
        .map(|row| (WorkerKey { queue: row.queue, group: row.worker_group, id: row.worker_id }, row.until));
    Ok(known.collect())
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerCounts {
    pub queue: String,
    /// Workers shown.
    pub total: i64,
    pub quarantined: i64,
    /// Workers with a claim, not quarantined.
    pub running: i64,
    /// Those whose sessions take no more tasks, not quarantined, with or without a claim.
    pub frozen: i64,
    /// Those with a claim, neither quarantined nor frozen.
    pub working: i64,
    /// Those without a claim that have lately contacted a server.
    pub idle: i64,
    pub silent: i64,
}

/// Counts shown workers by their presence. A removed worker is only in the total. Reads all claims
/// and workers: call it every half minute, not per request. Nothing precedes the marks.
pub async fn count(conn: &mut PgConnection, marks: &DueMarks) -> Result<Vec<WorkerCounts>, sqlx::Error> {
    sqlx::query_as!(
        WorkerCounts,
        r#"-- count_workers
        WITH db_now AS MATERIALIZED (SELECT now FROM db_now),
        busy AS MATERIALIZED (SELECT DISTINCT c.queue, c.worker_group, c.worker_id FROM claims c WHERE c.taken_until >= $1),
        shown AS MATERIALIZED (
            SELECT w.queue, COALESCE(w.quarantine_until > db_now.now, false) AS quarantined,
                   (w.queue, w.worker_group, w.worker_id) IN (SELECT b.queue, b.worker_group, b.worker_id FROM busy b)
                       AS running,
                   COALESCE(s.frozen, false) AS frozen, db_now.now,
                   -- The greatest date that is not null.
                   GREATEST(w.last_seen, s.until - make_interval(secs => s.ttl)) AS contact, r.removed
            FROM workers w CROSS JOIN db_now
            -- By key for each worker, so that the planner never reads a whole table.
            LEFT JOIN LATERAL (
                SELECT x.frozen, x.until, x.ttl FROM worker_sessions x
                WHERE x.queue = w.queue AND x.worker_group = w.worker_group COLLATE "default"
                  AND x.worker_id = w.worker_id COLLATE "default" AND x.ended IS NULL LIMIT 1
            ) s ON true
            LEFT JOIN LATERAL (
                SELECT x.removed FROM worker_removals x
                WHERE x.queue = w.queue AND x.worker_group = w.worker_group COLLATE "default"
                  AND x.worker_id = w.worker_id COLLATE "default" LIMIT 1
            ) r ON true
            WHERE w.due >= $2 AND (w.expires > db_now.now OR w.quarantine_until > db_now.now)
        ),
        present AS MATERIALIZED (
            SELECT s.queue, s.quarantined, s.running, s.frozen, COALESCE(s.removed >= s.contact, false) AS removed,
                   s.now - s.contact > make_interval(secs => $3 /* SILENT_AFTER */) AS silent
            FROM shown s
        )
        -- A name is looked up for each queue, not for each worker.
        SELECT q.name AS queue, c.total AS "total!", c.quarantined AS "quarantined!", c.running AS "running!",
               c.frozen AS "frozen!", c.working AS "working!", c.idle AS "idle!", c.silent AS "silent!"
        FROM (
            SELECT p.queue, count(*) AS total, count(*) FILTER (WHERE p.quarantined) AS quarantined,
                   count(*) FILTER (WHERE p.running AND NOT p.quarantined) AS running,
                   count(*) FILTER (WHERE p.frozen AND NOT p.quarantined AND NOT p.removed) AS frozen,
                   count(*) FILTER (WHERE p.running AND NOT (p.quarantined OR p.frozen OR p.removed)) AS working,
                   count(*) FILTER (WHERE NOT (p.running OR p.quarantined OR p.frozen OR p.removed OR p.silent)) AS idle,
                   count(*) FILTER (WHERE p.silent AND NOT (p.running OR p.quarantined OR p.frozen OR p.removed))
                       AS silent
            FROM present p GROUP BY p.queue
        ) c JOIN task_queues q ON q.id = c.queue
        ORDER BY q.name"#,
        marks.claims,
        marks.workers,
        SILENT_AFTER.as_seconds_f64()
    )
    .fetch_all(conn)
    .await
}

#[derive(Debug)]
pub struct HeldClaim {
    pub worker: WorkerKey,
    pub claim: Recent,
}

/// Lists the last made or renewed claims, in order of claiming for each worker.
pub async fn list_held(conn: &mut PgConnection, limit: i64) -> Result<Vec<HeldClaim>, sqlx::Error> {
    let rows = sqlx::query!(
        "-- list_held
        SELECT c.queue, c.worker_group, c.worker_id, c.id, c.run, c.started
        FROM (SELECT * FROM claims ORDER BY taken_until DESC LIMIT $1) c JOIN tasks t ON t.id = c.id
        -- Within a batch runs are claimed by priority and place.
        ORDER BY c.started, t.priority, c.ord",
        limit
    )
    .fetch_all(conn)
    .await?;
    let held = rows.into_iter().map(|row| HeldClaim {
        worker: WorkerKey { queue: row.queue, group: row.worker_group, id: row.worker_id },
        claim: Recent { task: row.id, run: row.run, claimed: row.started },
    });
    Ok(held.collect())
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Purged {
    pub found: i64,
    pub purged: i64,
}

/// Purges a slice of workers that are no longer shown, with their quarantines.
pub async fn purge(conn: &mut PgConnection, from: DateTime<Utc>, limit: i64) -> Result<Purged, sqlx::Error> {
    // Joined by `ctid`, stable while locked: no statistics can cause a table scan.
    sqlx::query_as!(
        Purged,
        r#"-- purge_seen_workers
        WITH db_now AS MATERIALIZED (SELECT now FROM db_now),
        due AS MATERIALIZED (
            SELECT w.ctid AS place, w.expires <= db_now.now AND COALESCE(w.quarantine_until <= db_now.now, true) AS over
            FROM workers w, db_now
            WHERE w.due >= $2 AND w.due <= (SELECT now FROM db_now)
            ORDER BY w.due LIMIT $1 FOR UPDATE OF w SKIP LOCKED
        ),
        deleted AS (
            DELETE FROM workers w WHERE w.ctid = ANY(ARRAY(SELECT place FROM due WHERE over))
            RETURNING w.queue, w.worker_group, w.worker_id
        ),
        histories AS (
            DELETE FROM worker_quarantines WHERE id = ANY(ARRAY(
                SELECT q.id FROM deleted CROSS JOIN LATERAL (
                    SELECT q.id FROM worker_quarantines q
                    WHERE q.queue = deleted.queue AND q.worker_group = deleted.worker_group AND q.worker_id = deleted.worker_id
                    OFFSET 0
                ) q
            ))
        ),
        later AS (
            UPDATE workers w SET due = GREATEST(w.expires, w.quarantine_until)
            WHERE w.ctid = ANY(ARRAY(SELECT place FROM due WHERE NOT over))
        )
        SELECT (SELECT count(*) FROM due) AS "found!", (SELECT count(*) FROM deleted) AS "purged!""#,
        limit,
        from
    )
    .fetch_one(conn)
    .await
}
