//! Reads of facts about queues that may need somebody.
//!
//! Each reads a bounded number of rows from indexes; call them in a transaction of
//! [`super::page::begin`], whose plans they need.

use std::time::Duration;

use chrono::{DateTime, Utc};
use sqlx::PgConnection;
use tenure_api::ids::{TaskGroupId, TaskId};
use tenure_api::states::ReasonResolved;
use tenure_domain::policy::counts::Counted;

use super::decode::Row;
use super::events::Sequenced;

/// Queues with pending runs.
pub const QUEUES_READ: i64 = 1_000;
/// Paused or refiling queues, and queues with barred workers.
const LISTED_READ: i64 = 200;
/// Queues with failures within the retention of `failed_runs`.
const FAILED_QUEUES_READ: i64 = 5_000;
/// Failed runs of a queue.
const EXAMPLES_READ: i64 = 200;
/// Failed tasks that others need.
const BLOCKING_READ: i64 = 200;
/// Dependent tasks of each failed task.
const DEPENDENTS_READ: i64 = 100;
/// Quarantined workers, sessions and claims.
const BARRED_READ: i64 = 1_000;
const SESSIONS_READ: i64 = 5_000;
/// Workers of a queue.
const WORKERS_READ: i64 = 1_000;
/// `queue_minutes.step` of single minutes.
const MINUTE: i16 = 1;

/// A queue with pending runs.
#[derive(Debug, Clone)]
pub struct PendingQueue {
    pub key: i32,
    pub name: String,
    pub counted: Counted,
    /// Runs given to sessions and not accepted yet.
    pub assigned: i64,
    /// True if a worker has a live session.
    pub has_session: bool,
    /// Last contact of a worker without a session.
    pub last_seen: Option<DateTime<Utc>>,
}

/// Lists up to [`QUEUES_READ`] queues with pending runs, the fullest first.
pub async fn list_pending(conn: &mut PgConnection, sequenced: Sequenced) -> Result<Vec<PendingQueue>, sqlx::Error> {
    let rows = sqlx::query!(
        r#"-- problem_pending
        WITH summed AS MATERIALIZED (
            SELECT x.queue, sum(x.pending)::bigint AS pending, sum(x.claimed)::bigint AS claimed, sum(x.delayed)::bigint AS delayed,
                   sum(x.waiting)::bigint AS waiting
            FROM (SELECT queue, pending, claimed, delayed, waiting FROM counters
                  UNION ALL SELECT d.queue, d.pending, d.claimed, d.delayed, d.waiting
                  FROM unsequenced($1) n,
                       unnest(n.queues, n.pending, n.claimed, n.delayed, n.waiting) AS d(queue, pending, claimed, delayed, waiting)) x
            GROUP BY x.queue HAVING sum(x.pending) > 0 /* count */ ORDER BY sum(x.pending) DESC, x.queue LIMIT $2
        )
        SELECT q.id AS key, q.name, s.pending AS "pending!", s.claimed AS "claimed!", COALESCE(s.delayed, 0) AS "delayed!",
               COALESCE(s.waiting, 0) AS "waiting!", v.last_seen AS "last_seen?",
               EXISTS (SELECT FROM worker_sessions w WHERE w.queue = q.id AND w.ended IS NULL) AS "has_session!",
               (SELECT count(*) FROM (SELECT w.epoch FROM worker_sessions w WHERE w.queue = q.id AND w.ended IS NULL LIMIT $3) w
                JOIN pending p ON p.session = w.epoch AND p.hold = 3 /* Hold::Assigned */) AS "assigned!"
        FROM summed s JOIN task_queues q ON q.id = s.queue LEFT JOIN queue_views v ON v.queue = s.queue
        ORDER BY s.pending DESC, q.id"#,
        sequenced.0,
        QUEUES_READ,
        WORKERS_READ
    )
    .fetch_all(conn)
    .await?;
    let queues = rows.into_iter().map(|row| PendingQueue {
        key: row.key,
        name: row.name,
        counted: Counted { pending: row.pending, claimed: row.claimed, delayed: row.delayed, waiting: row.waiting },
        assigned: row.assigned,
        has_session: row.has_session,
        last_seen: row.last_seen,
    });
    Ok(queues.collect())
}

#[derive(Debug, Clone)]
pub struct PausedQueue {
    pub key: i32,
    pub name: String,
    pub since: DateTime<Utc>,
    pub by: String,
    pub reason: Option<String>,
    pub until: Option<DateTime<Utc>>,
    /// Folded count.
    pub pending: i64,
}

pub async fn list_paused(conn: &mut PgConnection) -> Result<Vec<PausedQueue>, sqlx::Error> {
    sqlx::query_as!(
        PausedQueue,
        r#"-- problem_paused
        SELECT q.id AS key, q.name, q.paused AS "since!", COALESCE(q.paused_by, '') AS "by!", q.pause_reason AS reason,
               q.paused_until AS until, COALESCE(c.pending, 0) AS "pending!"
        FROM task_queues q LEFT JOIN counters c ON c.queue = q.id
        WHERE q.paused IS NOT NULL ORDER BY q.id LIMIT $1"#,
        LISTED_READ
    )
    .fetch_all(conn)
    .await
}

#[derive(Debug, Clone)]
pub struct RefilingQueue {
    pub name: String,
    /// Change of the policy.
    pub since: DateTime<Utc>,
}

pub async fn list_refiling(conn: &mut PgConnection) -> Result<Vec<RefilingQueue>, sqlx::Error> {
    sqlx::query_as!(
        RefilingQueue,
        "-- problem_refiling
        SELECT q.name, p.updated AS since FROM queue_policies p JOIN task_queues q ON q.id = p.queue
        WHERE p.refile_stage <> 0 /* Stage::Done */ ORDER BY p.queue LIMIT $1",
        LISTED_READ
    )
    .fetch_all(conn)
    .await
}

/// Workers of a queue without any that may get runs.
#[derive(Debug, Clone)]
pub struct BarredQueue {
    pub key: i32,
    pub name: String,
    pub quarantined: i64,
    /// Frozen, not quarantined.
    pub frozen: i64,
    /// End of the first quarantine.
    pub until: Option<DateTime<Utc>>,
    /// Group and id of the first worker.
    pub first: Vec<String>,
    /// Folded count.
    pub pending: i64,
}

/// Lists queues all of whose workers are quarantined or frozen. Workers count that hold a claim, or
/// were in contact within `contact`. `claims` is the low-water mark of claims.
pub async fn list_barred(
    conn: &mut PgConnection,
    contact: Duration,
    claims: DateTime<Utc>,
) -> Result<Vec<BarredQueue>, sqlx::Error> {
    sqlx::query_as!(
        BarredQueue,
        r#"-- problem_barred
        WITH db_now AS MATERIALIZED (SELECT now FROM db_now),
        candidates AS MATERIALIZED (
            SELECT x.queue FROM (
                (SELECT w.queue FROM workers w WHERE w.quarantine_until > (SELECT now FROM db_now)
                 ORDER BY w.quarantine_until DESC LIMIT $3)
                UNION ALL
                SELECT s.queue FROM (
                    SELECT s.queue, s.frozen FROM worker_sessions s WHERE s.ended IS NULL
                    ORDER BY s.queue, s.worker_group, s.worker_id LIMIT $4
                ) s WHERE s.frozen
            ) x GROUP BY x.queue ORDER BY x.queue LIMIT $5
        ),
        holders AS MATERIALIZED (
            SELECT DISTINCT c.queue, c.worker_group, c.worker_id FROM (
                SELECT c.queue, c.worker_group, c.worker_id FROM claims c
                WHERE c.taken_until >= $2 /* mark */ ORDER BY c.taken_until LIMIT $4
            ) c WHERE (c.queue IN (SELECT s.queue FROM candidates s)) IS TRUE
        ),
        known AS MATERIALIZED (
            SELECT w.queue, w.worker_group COLLATE "default" AS worker_group, w.worker_id COLLATE "default" AS worker_id,
                   w.last_seen, w.quarantine_until
            FROM candidates i CROSS JOIN LATERAL (
                SELECT w.queue, w.worker_group, w.worker_id, w.last_seen, w.quarantine_until FROM workers w
                WHERE w.queue = i.queue ORDER BY w.worker_group, w.worker_id LIMIT $6
            ) w
        ),
        live AS MATERIALIZED (
            SELECT k.queue, k.worker_group, k.worker_id, k.quarantine_until,
                   COALESCE(k.quarantine_until > db_now.now, false) AS quarantined, COALESCE(s.frozen, false) AS frozen
            FROM known k CROSS JOIN db_now
            LEFT JOIN worker_sessions s
                ON s.queue = k.queue AND s.worker_group = k.worker_group AND s.worker_id = k.worker_id AND s.ended IS NULL
            WHERE s.queue IS NOT NULL OR k.last_seen > db_now.now - make_interval(secs => $1)
               OR ((k.queue, k.worker_group, k.worker_id) IN (SELECT h.queue, h.worker_group, h.worker_id FROM holders h)) IS TRUE
        ),
        barred AS MATERIALIZED (
            SELECT l.queue, count(*) FILTER (WHERE l.quarantined) AS quarantined,
                   count(*) FILTER (WHERE l.frozen AND NOT l.quarantined) AS frozen,
                   min(l.quarantine_until) FILTER (WHERE l.quarantined) AS until,
                   min(ARRAY[l.worker_group, l.worker_id]) AS first
            FROM live l GROUP BY l.queue HAVING bool_and(l.quarantined OR l.frozen)
        )
        SELECT q.id AS key, q.name, b.quarantined AS "quarantined!", b.frozen AS "frozen!", b.until AS "until?", b.first AS "first!",
               COALESCE(c.pending, 0) AS "pending!"
        FROM barred b JOIN task_queues q ON q.id = b.queue LEFT JOIN counters c ON c.queue = b.queue
        ORDER BY q.id"#,
        contact.as_secs_f64(),
        claims,
        BARRED_READ,
        SESSIONS_READ,
        LISTED_READ,
        WORKERS_READ
    )
    .fetch_all(conn)
    .await
}

/// Lists queues with a failed run within `within`.
pub async fn list_failing(conn: &mut PgConnection, within: Duration) -> Result<Vec<i32>, sqlx::Error> {
    // The queues are walked by the first column of the key.
    sqlx::query_scalar!(
        r#"-- problem_failing
        WITH RECURSIVE known AS (
            (SELECT f.queue, 1 /* count */::bigint AS n FROM failed_runs f ORDER BY f.queue LIMIT 1)
            UNION ALL
            SELECT (SELECT f.queue FROM failed_runs f WHERE f.queue > k.queue ORDER BY f.queue LIMIT 1), k.n + 1
            FROM known k WHERE k.queue IS NOT NULL AND k.n < $2
        )
        SELECT k.queue AS "queue!" FROM known k
        WHERE k.queue IS NOT NULL AND EXISTS (
            SELECT FROM failed_runs f
            WHERE f.queue = k.queue AND f.resolved >= (SELECT now FROM db_now) - make_interval(secs => $1)
        )"#,
        within.as_secs_f64(),
        FAILED_QUEUES_READ
    )
    .fetch_all(conn)
    .await
}

/// Ends of the tasks of a queue within some minutes.
#[derive(Debug, Clone)]
pub struct EndedRow {
    pub queue: i32,
    pub name: String,
    /// True for the later part of the time.
    pub is_recent: bool,
    /// None for runs that were lost with their workers.
    pub reason: Option<ReasonResolved>,
    pub number: i64,
    /// The first minute with one.
    pub since: DateTime<Utc>,
}

/// Sums the ends within `recent`, and within `before` before that.
pub async fn count_ended(
    conn: &mut PgConnection,
    queues: &[i32],
    recent: Duration,
    before: Duration,
) -> Result<Vec<EndedRow>, sqlx::Error> {
    let rows = sqlx::query!(
        r#"-- problem_ends
        WITH db_now AS MATERIALIZED (SELECT now FROM db_now),
        minutes AS MATERIALIZED (
            SELECT i.queue, m.minute, m.lost, m.reasons, m.ends, m.minute >= db_now.now - make_interval(secs => $2) AS recent
            FROM unnest($1::int[]) AS i(queue) CROSS JOIN db_now CROSS JOIN LATERAL (
                SELECT m.minute, m.lost, m.reasons, m.ends FROM queue_minutes m
                WHERE m.queue = i.queue AND m.step = $4 /* minute */
                  AND m.minute >= (SELECT now FROM db_now) - make_interval(secs => $3 /* recent and before */)
            ) m
        ),
        summed AS (
            SELECT m.queue, m.recent, NULL::smallint AS reason, sum(m.lost)::bigint AS number, min(m.minute) AS since
            FROM minutes m WHERE m.lost > 0 /* count */ GROUP BY m.queue, m.recent
            UNION ALL
            SELECT m.queue, m.recent, e.reason, sum(e.ends)::bigint, min(m.minute)
            FROM minutes m CROSS JOIN LATERAL unnest(m.reasons, m.ends) AS e(reason, ends)
            WHERE e.ends > 0 /* count */ GROUP BY m.queue, m.recent, e.reason
        )
        SELECT s.queue AS "queue!", q.name, s.recent AS "recent!", s.reason AS "reason?", s.number AS "number!", s.since AS "since!"
        FROM summed s JOIN task_queues q ON q.id = s.queue"#,
        queues,
        recent.as_secs_f64(),
        (recent + before).as_secs_f64(),
        MINUTE
    )
    .fetch_all(conn)
    .await?;
    let ended = rows.into_iter().filter_map(|row| {
        // A reason of a later release is not counted.
        let reason = match row.reason {
            Some(code) => Some(ReasonResolved::from_code(code)?),
            None => None,
        };
        let (queue, name, is_recent) = (row.queue, row.name, row.recent);
        Some(EndedRow { queue, name, is_recent, reason, number: row.number, since: row.since })
    });
    Ok(ended.collect())
}

/// Failed runs that have this in common.
#[derive(Debug, Clone)]
pub struct FailureRow {
    pub queue: i32,
    pub reason: ReasonResolved,
    pub exit_code: Option<i32>,
    /// Group and id.
    pub worker: Option<(String, String)>,
    pub number: i64,
}

/// Groups the latest failed runs of these queues within `within`.
pub async fn list_failures(
    conn: &mut PgConnection,
    queues: &[i32],
    within: Duration,
) -> Result<Vec<FailureRow>, sqlx::Error> {
    let rows = sqlx::query!(
        r#"-- problem_failures
        SELECT i.queue AS "queue!", f.reason AS "reason!", f.exit_code AS "exit_code?", f.worker_group AS "worker_group?",
               f.worker_id AS "worker_id?", count(*) AS "number!"
        FROM unnest($1::int[]) AS i(queue) CROSS JOIN LATERAL (
            SELECT f.reason, f.exit_code, f.worker_group, f.worker_id FROM failed_runs f
            WHERE f.queue = i.queue AND f.resolved >= (SELECT now FROM db_now) - make_interval(secs => $2)
              AND f.reason <> 3 /* ReasonResolved::Canceled */
            ORDER BY f.resolved DESC LIMIT $3
        ) f
        GROUP BY i.queue, f.reason, f.exit_code, f.worker_group, f.worker_id"#,
        queues,
        within.as_secs_f64(),
        EXAMPLES_READ
    )
    .fetch_all(conn)
    .await?;
    let failures = rows.into_iter().filter_map(|row| {
        Some(FailureRow {
            queue: row.queue,
            reason: ReasonResolved::from_code(row.reason)?,
            exit_code: row.exit_code,
            worker: row.worker_group.zip(row.worker_id),
            number: row.number,
        })
    });
    Ok(failures.collect())
}

/// Tasks of a group that need a failed task.
#[derive(Debug, Clone)]
pub struct BlockedRow {
    pub group: TaskGroupId,
    pub required: TaskId,
    /// Queue of the failed task.
    pub queue: String,
    pub reason: ReasonResolved,
    pub failed: DateTime<Utc>,
    pub tasks: i64,
    /// True if there may be more.
    pub at_least: bool,
}

/// Lists tasks that cannot run because they need one of the latest failed tasks. A failed task that
/// was rerun or has expired blocks no task.
pub async fn list_blocked(conn: &mut PgConnection) -> Result<Vec<BlockedRow>, sqlx::Error> {
    let rows = sqlx::query!(
        r#"-- problem_blocked
        WITH latest AS MATERIALIZED (
            SELECT f.seq, f.queue, f.resolved, f.reason FROM failed_runs f WHERE f.blocks ORDER BY f.resolved DESC LIMIT $1
        ),
        required AS MATERIALIZED (
            SELECT DISTINCT ON (l.seq) l.seq, l.queue, l.resolved, l.reason FROM latest l ORDER BY l.seq, l.resolved DESC
        )
        SELECT d.id AS "required!", q.name AS queue, r.reason AS "reason!", r.resolved AS "failed!", x.task_group AS "task_group!",
               x.tasks AS "tasks!", x.read AS "read!"
        FROM required r JOIN task_definitions d ON d.seq = r.seq
        JOIN tasks t ON t.id = d.id AND t.state IN (4, 5) /* State: resolved badly */
        JOIN task_queues q ON q.id = r.queue
        CROSS JOIN LATERAL (
            SELECT w.task_group, count(*) AS tasks, sum(count(*)) OVER ()::bigint AS read FROM (
                SELECT e.dependent FROM dependencies e
                WHERE e.required = r.seq AND NOT e.any_end AND NOT e.satisfied ORDER BY e.dependent LIMIT $2
            ) e JOIN tasks w ON w.id = e.dependent AND w.state = 0 /* State::Unscheduled */
            GROUP BY w.task_group
        ) x
        ORDER BY r.resolved DESC"#,
        BLOCKING_READ,
        DEPENDENTS_READ
    )
    .fetch_all(conn)
    .await?;
    rows.into_iter()
        .map(|row| {
            let columns = Row { table: "failed_runs", task: row.required };
            Ok(BlockedRow {
                group: columns.slug("task_group", row.task_group)?,
                required: columns.slug("id", row.required)?,
                queue: row.queue,
                reason: columns.reason_resolved(row.reason)?,
                failed: row.failed,
                tasks: row.tasks,
                at_least: row.read >= DEPENDENTS_READ,
            })
        })
        .collect::<Result<Vec<_>, sqlx::Error>>()
}
