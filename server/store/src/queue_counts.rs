//! Queues as shown: counts by hold, pauses and policies. [`super::counters`] has the counts that
//! workers read.

use chrono::{DateTime, Utc};
use sqlx::PgConnection;
use tenure_api::ids::TaskQueueId;
use tenure_api::policy::Backlog;

use super::admission::{Marks, runnable};
use super::dead_letters::COUNT_MAX;
use super::events::Sequenced;
use tenure_domain::policy::counts::Counted;
use tenure_domain::policy::guard::Pending;
use tenure_domain::policy::pause::Paused;

pub const ANNOUNCED_MAX: i64 = 1_000;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShownQueue {
    pub counted: Counted,
    /// Runs given to sessions and not accepted yet.
    pub assigned: i64,
    /// Waiting runs that would start now, given workers; not counted while paused.
    pub admissible: i64,
    pub paused: Option<Paused>,
    pub policy_version: Option<i64>,
    pub backlog: Option<LimitedBacklog>,
    /// Counted up to [`COUNT_MAX`].
    pub dead_letters: i64,
}

/// The backlog of a queue with a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LimitedBacklog {
    pub used: Pending,
    pub limit: Backlog,
}

impl LimitedBacklog {
    fn of(counted: Counted, bytes: i64, limit: Backlog) -> Option<Self> {
        let used = Pending { tasks: counted.pending + counted.delayed, bytes };
        (limit.tasks.is_some() || limit.bytes.is_some()).then_some(Self { used, limit })
    }
}

pub async fn find(
    conn: &mut PgConnection,
    sequenced: Sequenced,
    queue: &TaskQueueId,
) -> Result<Option<ShownQueue>, sqlx::Error> {
    let Some((id, mut shown)) = find_row(conn, sequenced, queue).await? else { return Ok(None) };
    if shown.paused.is_none() {
        shown.admissible = runnable::count(conn, id, shown.counted, &Marks::default()).await?;
    }
    Ok(Some(shown))
}

async fn find_row(
    conn: &mut PgConnection,
    sequenced: Sequenced,
    queue: &TaskQueueId,
) -> Result<Option<(i32, ShownQueue)>, sqlx::Error> {
    let row = sqlx::query!(
        r#"-- find_queue_counts
        WITH changed AS MATERIALIZED (
            SELECT sum(d.pending) AS pending, sum(d.claimed) AS claimed, sum(d.delayed) AS delayed,
                   sum(d.waiting) AS waiting, sum(d.bytes)::bigint AS bytes
            FROM unsequenced($2) n,
                 unnest(n.queues, n.pending, n.claimed, n.delayed, n.waiting, n.bytes)
                     AS d(queue, pending, claimed, delayed, waiting, bytes)
            WHERE d.queue = (SELECT id FROM task_queues WHERE name = $1)
        )
        SELECT q.id, q.paused, q.paused_until, q.paused_by, q.pause_reason, p.version AS "policy_version?", q.backlog_tasks,
               q.backlog_bytes, COALESCE(b.bytes, 0) + COALESCE(c.bytes, 0) AS "bytes!",
               COALESCE(b.pending, 0) + COALESCE(c.pending, 0) AS "pending!",
               COALESCE(b.claimed, 0) + COALESCE(c.claimed, 0) AS "claimed!",
               COALESCE(b.delayed, 0) + COALESCE(c.delayed, 0) AS "delayed!",
               COALESCE(b.waiting, 0) + COALESCE(c.waiting, 0) AS "waiting!",
               (SELECT count(*) FROM worker_sessions w JOIN pending p ON p.session = w.epoch AND p.hold = 3 /* Hold::Assigned */
                WHERE w.queue = q.id AND w.ended IS NULL) AS "assigned!",
               (SELECT count(*) FROM (SELECT FROM failed_runs f WHERE f.queue = q.id AND f.dead LIMIT $3) f) AS "dead_letters!"
        FROM task_queues q LEFT JOIN counters b ON b.queue = q.id
        LEFT JOIN queue_policies p ON p.queue = q.id AND p.policy IS NOT NULL
        CROSS JOIN changed c
        WHERE q.name = $1"#,
        queue.as_str(),
        sequenced.0,
        COUNT_MAX
    )
    .fetch_optional(conn)
    .await?;
    Ok(row.map(|row| {
        let counted =
            Counted { pending: row.pending, claimed: row.claimed, delayed: row.delayed, waiting: row.waiting };
        let limit = Backlog { tasks: row.backlog_tasks, bytes: row.backlog_bytes };
        let shown = ShownQueue {
            counted,
            assigned: row.assigned,
            admissible: 0,
            paused: row.paused.zip(row.paused_by).map(|(since, by)| Paused {
                since,
                by,
                reason: row.pause_reason,
                until: row.paused_until,
            }),
            policy_version: row.policy_version,
            backlog: LimitedBacklog::of(counted, row.bytes, limit),
            dead_letters: row.dead_letters,
        };
        (row.id, shown)
    }))
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedQueue {
    /// `task_queues.id`.
    pub id: i32,
    pub name: String,
    pub counted: Counted,
    /// As in [`ShownQueue`], like `admissible`.
    pub assigned: i64,
    pub admissible: i64,
    pub paused: Option<DateTime<Utc>>,
    /// Start of refiling.
    pub refiling: Option<DateTime<Utc>>,
    /// Announcements not yet in a decision, up to [`ANNOUNCED_MAX`].
    pub announced: i64,
    pub backlog: Option<LimitedBacklog>,
    pub now: DateTime<Utc>,
}

struct Row {
    id: i32,
    name: String,
    pending: i64,
    claimed: i64,
    delayed: i64,
    waiting: i64,
    bytes: i64,
    assigned: i64,
    paused: Option<DateTime<Utc>>,
    refiling: Option<DateTime<Utc>>,
    announced: i64,
    backlog_tasks: Option<i64>,
    backlog_bytes: Option<i64>,
    now: DateTime<Utc>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Listing {
    /// All queues that ever had a pending run, are paused, or are refiling.
    All,
    /// Without queues that have no run, unless paused or refiling.
    Open,
}

/// Lists queues with counts, by name.
pub async fn list(
    conn: &mut PgConnection,
    sequenced: Sequenced,
    listing: Listing,
    marks: &Marks,
) -> Result<Vec<ListedQueue>, sqlx::Error> {
    let (marked, xids) = marks.of_queues();
    let rows = sqlx::query_as!(
        Row,
        r#"-- list_queue_counts
        WITH db_now AS MATERIALIZED (SELECT now FROM db_now),
        summed AS MATERIALIZED (
            SELECT x.queue, sum(x.pending)::bigint AS pending, sum(x.claimed)::bigint AS claimed, sum(x.delayed)::bigint AS delayed,
                   sum(x.waiting)::bigint AS waiting, sum(x.bytes)::bigint AS bytes
            FROM (SELECT queue, pending, claimed, delayed, waiting, bytes FROM counters
                  WHERE $2 /* all */ OR pending <> 0 OR claimed <> 0 /* count */ OR delayed <> 0 /* count */ OR waiting <> 0 /* count */
                  UNION ALL
                  SELECT d.queue, d.pending, d.claimed, COALESCE(d.delayed, 0), COALESCE(d.waiting, 0), COALESCE(d.bytes, 0)
                  FROM unsequenced($1) n,
                       unnest(n.queues, n.pending, n.claimed, n.delayed, n.waiting, n.bytes)
                           AS d(queue, pending, claimed, delayed, waiting, bytes)) x
            GROUP BY x.queue
        )
        SELECT q.id, q.name, COALESCE(s.pending, 0) AS "pending!", COALESCE(s.claimed, 0) AS "claimed!",
               COALESCE(s.delayed, 0) AS "delayed!", COALESCE(s.waiting, 0) AS "waiting!", COALESCE(s.bytes, 0) AS "bytes!",
               (SELECT count(*) FROM worker_sessions w JOIN pending p ON p.session = w.epoch AND p.hold = 3 /* Hold::Assigned */
                WHERE w.queue = q.id AND w.ended IS NULL) AS "assigned!", q.paused, p.updated AS "refiling?",
               -- Ordered, so that it goes by the index.
               CASE WHEN q.key_by IS NULL THEN 0 /* count */ ELSE (SELECT count(*) FROM (
                   SELECT FROM admission_work w WHERE w.queue = q.id AND w.xid >= COALESCE(m.xid, 0 /* id */) ORDER BY w.xid, w.id LIMIT $3) w) END AS "announced!",
               q.backlog_tasks, q.backlog_bytes, db_now.now AS "now!"
        FROM task_queues q LEFT JOIN summed s ON s.queue = q.id
        LEFT JOIN unnest($4::int[], $5::bigint[]) AS m(queue, xid) ON m.queue = q.id
        LEFT JOIN queue_policies p ON p.queue = q.id AND p.refile_stage <> 0 /* Stage::Done */
        CROSS JOIN db_now
        WHERE s.queue IS NOT NULL OR q.paused IS NOT NULL OR p.queue IS NOT NULL
        ORDER BY q.name COLLATE "C""#,
        sequenced.0,
        listing == Listing::All,
        ANNOUNCED_MAX,
        &marked,
        &xids
    )
    .fetch_all(&mut *conn)
    .await?;
    let mut listed = Vec::with_capacity(rows.len());
    for row in rows {
        let Row {
            id,
            name,
            pending,
            claimed,
            delayed,
            waiting,
            bytes,
            assigned,
            paused,
            refiling,
            announced,
            backlog_tasks,
            backlog_bytes,
            now,
        } = row;
        let counted = Counted { pending, claimed, delayed, waiting };
        let admissible = if paused.is_some() { 0 } else { runnable::count(conn, id, counted, marks).await? };
        let limit = Backlog { tasks: backlog_tasks, bytes: backlog_bytes };
        let backlog = LimitedBacklog::of(counted, bytes, limit);
        let queue = ListedQueue { id, name, counted, assigned, admissible, paused, refiling, announced, backlog, now };
        listed.push(queue);
    }
    Ok(listed)
}
