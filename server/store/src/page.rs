//! Reads of the operator's page. Each reads a bounded number of rows from the end of an index, so
//! readers do not slow the queue down.
//!
//! Behind an old snapshot, millions of dead rows may precede them. So reads of pending runs and
//! claims begin at low-water marks and time out after a second. The rest of the page, with the age
//! of the oldest transaction, is still shown.

mod client_scopes;
mod edges;
mod failed;
mod failures;
mod groups;
mod held;
mod keys;
mod limits;
mod oldest;
mod priorities;
mod queues_by_name;
mod schedules;
mod system;
pub mod tasks;
mod trends;
mod worker_states;
mod workers;

use std::collections::HashMap;

use chrono::{DateTime, Utc};
use sqlx::{Connection, PgConnection, PgPool, Postgres, Transaction};
use tenure_api::ids::{RunId, TaskId};
use tenure_api::states::{Priority, ReasonCreated, ReasonResolved, RunState};

pub use self::client_scopes::{ClientScopes, ListedScopes, list_client_scopes};
pub use self::edges::{EdgeRow, list_edges};
pub use self::failed::{FAILED_READ, FailedRow, FailedRuns, list_failed, list_failed_of_queue};
pub use self::failures::{EndedTasks, FAILURES_READ, FailureCounts, count_ended, count_failed};
pub use self::groups::{
    GroupRow, GroupTaskRow, Member, NeedRow, Needs, find_group, find_last_end, list_definitions, list_group_failures,
    list_group_tasks, list_members, list_needs,
};
pub use self::held::{HeldRow, list_held};
pub use self::keys::{WAITING_READ, list_waiting_keys};
pub use self::limits::list_limits;
pub use self::oldest::{Asked, Oldest, list_oldest};
pub use self::priorities::{PriorityRow, list_priorities};
pub use self::queues_by_name::{list_named_queues, list_queues_by_name};
pub use self::schedules::{SCHEDULES_READ, list_schedules};
pub use self::system::{Connections, Program, TableSize, get_connections, list_tables};
pub use self::trends::list_pending_trends;
pub use self::worker_states::{WORKERS_COUNTED, WorkerStates, count_workers};
pub use self::workers::{
    Named, WORKERS_READ, WorkerRow, WorkerSession, list_known, list_named, list_of_name, list_sessions_of,
};
use super::decode::Row;
use super::events::Sequenced;
use super::failure::is_cancelled;
use super::low_water_marks::Marks;
pub use super::session::set_plans;
use tenure_domain::policy::counts::Counted;

pub const QUEUES_MAX: i64 = 200;
/// Claims read, by end of lease.
pub const CLAIMS_READ: i64 = 1_000;
pub const HIDDEN_READ: i64 = 1_000;
/// Newest rows of the outbox read; each has one batch of transitions.
pub const OUTBOX_READ: i64 = 1_000;
pub const ENDED_READ: i64 = 500;
/// Longer definitions, in bytes, are not read for a task's name.
const NAMED_DEFINITION_MAX: i32 = 16 << 10;
/// Timeout of an optional part of a page.
const PART_TIMEOUT: &str = "1s";

/// Begins a transaction for the statements below. Like hot sessions, it plans only with indexes and
/// nested loops. It times out before the page request.
pub async fn begin(pool: &PgPool) -> Result<Transaction<'static, Postgres>, sqlx::Error> {
    let mut transaction = pool.begin().await?;
    set_plans(&mut transaction).await?;
    Ok(transaction)
}

/// Begins an optional, read-only part of a page within the transaction of [`begin`].
async fn begin_part(conn: &mut PgConnection) -> Result<Transaction<'_, Postgres>, sqlx::Error> {
    let mut part = conn.begin().await?;
    sqlx::query!("-- page_part\nSELECT set_config('statement_timeout', $1, true)", PART_TIMEOUT)
        .fetch_one(&mut *part)
        .await?;
    Ok(part)
}

/// Ends a part and its timeout. None if the read timed out.
async fn end_part<T>(part: Transaction<'_, Postgres>, read: Result<T, sqlx::Error>) -> Result<Option<T>, sqlx::Error> {
    let found = match read {
        Ok(found) => Some(found),
        Err(error) if is_cancelled(&error) => None,
        Err(error) => return Err(error),
    };
    part.rollback().await?;
    Ok(found)
}

#[derive(Debug)]
pub struct QueueRow {
    pub key: i32,
    /// `provisionerId/workerType`.
    pub name: String,
    pub pending: i64,
    pub claimed: i64,
    pub delayed: i64,
    /// Pending runs that wait for admission.
    pub waiting: i64,
    pub paused: Option<DateTime<Utc>>,
}

impl QueueRow {
    #[must_use]
    pub fn counted(&self) -> Counted {
        let Self { pending, claimed, delayed, waiting, .. } = *self;
        Counted { pending, claimed, delayed, waiting }
    }

    #[must_use]
    pub fn asked(&self, marks: Marks) -> Asked {
        Asked { marks, counted: self.counted() }
    }
}

/// Lists the fullest and the newest queues, or one queue.
pub async fn list_queues(
    conn: &mut PgConnection,
    sequenced: Sequenced,
    only: Option<i32>,
) -> Result<Vec<QueueRow>, sqlx::Error> {
    sqlx::query_as!(
        QueueRow,
        r#"-- page_queues
        WITH summed AS MATERIALIZED (
            SELECT x.queue, sum(x.pending)::bigint AS pending, sum(x.claimed)::bigint AS claimed, sum(x.delayed)::bigint AS delayed,
                   sum(x.waiting)::bigint AS waiting
            FROM (SELECT queue, pending, claimed, delayed, waiting FROM counters
                  UNION ALL SELECT d.queue, d.pending, d.claimed, d.delayed, d.waiting
                  FROM unsequenced($3) n,
                       unnest(n.queues, n.pending, n.claimed, n.delayed, n.waiting) AS d(queue, pending, claimed, delayed, waiting)
                  UNION ALL SELECT $2, 0 /* count */, 0 /* count */, 0 /* count */, 0 /* count */
                  UNION ALL (SELECT id, 0 /* count */, 0 /* count */, 0 /* count */, 0 /* count */ FROM task_queues ORDER BY id DESC LIMIT $1)) x
            WHERE $2::int IS NULL OR x.queue = $2
            GROUP BY x.queue ORDER BY sum(x.pending + x.claimed) DESC, x.queue DESC LIMIT $1
        )
        SELECT q.id AS key, q.name, s.pending AS "pending!", s.claimed AS "claimed!", COALESCE(s.delayed, 0) AS "delayed!",
               COALESCE(s.waiting, 0) AS "waiting!", q.paused
        FROM summed s JOIN task_queues q ON q.id = s.queue
        ORDER BY s.pending + s.claimed DESC, q.name"#,
        QUEUES_MAX,
        only,
        sequenced.0
    )
    .fetch_all(conn)
    .await
}

/// Counts up to [`HIDDEN_READ`] hidden messages by queue, from the mark. None on timeout.
pub async fn list_hidden(
    conn: &mut PgConnection,
    from: DateTime<Utc>,
) -> Result<Option<HashMap<i32, i64>>, sqlx::Error> {
    let mut part = begin_part(conn).await?;
    let rows = sqlx::query!(
        r#"-- page_hidden
        SELECT h.queue, count(*) AS "hidden!"
        FROM (SELECT queue FROM pending WHERE hidden_until >= $2 /* mark */ AND hidden_until < '2999-01-01'
              ORDER BY hidden_until LIMIT $1) h
        GROUP BY h.queue"#,
        HIDDEN_READ,
        from
    )
    .fetch_all(&mut *part)
    .await;
    let rows = end_part(part, rows).await?;
    Ok(rows.map(|rows| rows.into_iter().map(|row| (row.queue, row.hidden)).collect()))
}

#[derive(Clone, Copy, Debug, Default)]
pub struct Filter<'a> {
    pub queues: Option<&'a [i32]>,
    /// Group and id.
    pub worker: Option<(&'a str, &'a str)>,
}

#[derive(Debug)]
pub struct ClaimRow {
    pub task: TaskId,
    pub run: RunId,
    pub queue: String,
    pub worker_group: String,
    pub worker_id: String,
    pub started: DateTime<Utc>,
    pub taken_until: DateTime<Utc>,
    /// None if long.
    pub definition: Option<String>,
}

/// Lists claims by end of lease, out of the first [`CLAIMS_READ`] from the mark. None on timeout.
pub async fn list_claims(
    conn: &mut PgConnection,
    from: DateTime<Utc>,
    filter: Filter<'_>,
    limit: i64,
) -> Result<Option<Vec<ClaimRow>>, sqlx::Error> {
    let mut part = begin_part(conn).await?;
    let rows = sqlx::query!(
        r#"-- page_claims
        WITH first AS MATERIALIZED (
            SELECT seq, id, run, queue, worker_group, worker_id, started, taken_until
            FROM claims WHERE taken_until >= $7 /* mark */ ORDER BY taken_until LIMIT $1
        ),
        selected AS MATERIALIZED (
            SELECT f.* FROM first f
            WHERE ($2::int[] IS NULL OR f.queue = ANY($2))
              AND ($3::text IS NULL OR (f.worker_group = $3 AND f.worker_id = $4))
            ORDER BY f.taken_until LIMIT $5
        )
        SELECT s.id, s.run, q.name AS queue, s.worker_group, s.worker_id, s.started, s.taken_until,
               CASE WHEN octet_length(d.definition) <= $6 THEN d.definition END AS definition
        FROM selected s JOIN task_queues q ON q.id = s.queue JOIN task_definitions d ON d.seq = s.seq
        ORDER BY s.taken_until, s.id"#,
        CLAIMS_READ,
        filter.queues,
        filter.worker.map(|(group, _)| group),
        filter.worker.map(|(_, id)| id),
        limit,
        NAMED_DEFINITION_MAX,
        from
    )
    .fetch_all(&mut *part)
    .await;
    let Some(rows) = end_part(part, rows).await? else { return Ok(None) };
    rows.into_iter()
        .map(|row| {
            let columns = Row { table: "claims", task: row.id };
            Ok(ClaimRow {
                task: columns.slug("id", row.id)?,
                run: columns.run(row.run)?,
                queue: row.queue,
                worker_group: row.worker_group,
                worker_id: row.worker_id,
                started: row.started,
                taken_until: row.taken_until,
                definition: row.definition,
            })
        })
        .collect::<Result<Vec<_>, sqlx::Error>>()
        .map(Some)
}

#[derive(Debug)]
pub struct HolderRow {
    pub queue: String,
    pub worker_group: String,
    pub worker_id: String,
    pub running: i64,
    pub last_claimed: DateTime<Utc>,
}

/// Lists workers with claims, out of the last [`CLAIMS_READ`] by end of lease, down to the mark.
/// None on timeout.
pub async fn list_holders(
    conn: &mut PgConnection,
    from: DateTime<Utc>,
    only: Option<i32>,
) -> Result<Option<Vec<HolderRow>>, sqlx::Error> {
    let mut part = begin_part(conn).await?;
    let rows = sqlx::query_as!(
        HolderRow,
        r#"-- page_holders
        WITH newest AS MATERIALIZED (
            SELECT queue, worker_group, worker_id, started FROM claims
            WHERE taken_until >= $3 /* mark */ ORDER BY taken_until DESC LIMIT $1
        ),
        holders AS MATERIALIZED (
            SELECT queue, worker_group, worker_id, count(*) AS running, max(started) AS last_claimed FROM newest
            WHERE $2::int IS NULL OR queue = $2
            GROUP BY queue, worker_group, worker_id
        )
        SELECT q.name AS queue, h.worker_group, h.worker_id, h.running AS "running!", h.last_claimed AS "last_claimed!"
        FROM holders h JOIN task_queues q ON q.id = h.queue
        ORDER BY h.last_claimed DESC"#,
        CLAIMS_READ,
        only,
        from
    )
    .fetch_all(&mut *part)
    .await;
    end_part(part, rows).await
}

#[derive(Debug)]
pub struct EndedRow {
    pub task: TaskId,
    pub run: RunId,
    pub queue: String,
    pub state: RunState,
    pub reason_created: ReasonCreated,
    pub reason: ReasonResolved,
    pub resolved: DateTime<Utc>,
    /// Group and id.
    pub worker: Option<(String, String)>,
    /// True if another run followed.
    pub retried: bool,
    /// The reported failure as JSON; read with [`Ends::Failures`] only.
    pub failure: Option<String>,
    /// None if long.
    pub definition: Option<String>,
}

/// Transitions that end a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ends {
    All,
    /// All except successes and cancellations.
    Failures,
}

impl Ends {
    fn kinds(self) -> &'static [i16] {
        match self {
            Self::All => &[3, 4, 5, 6, 15],
            Self::Failures => &[4, 5, 6, 15],
        }
    }
}

/// Lists the last ended runs, newest first, out of [`ENDED_READ`] in the newest [`OUTBOX_READ`]
/// batches. So runs need no index by time.
pub async fn list_ended(
    conn: &mut PgConnection,
    sequenced: Sequenced,
    ends: Ends,
    filter: Filter<'_>,
    limit: i64,
) -> Result<Vec<EndedRow>, sqlx::Error> {
    let rows = sqlx::query!(
        r#"-- page_ended
        WITH newest AS MATERIALIZED (
            (SELECT true AS is_new, id, kinds, seqs, runs FROM unsequenced($9) ORDER BY id DESC LIMIT $1 /* OUTBOX_READ */)
            UNION ALL (SELECT false, id, kinds, seqs, runs FROM outbox ORDER BY id DESC LIMIT $1)
        ),
        ended AS MATERIALIZED (
            SELECT o.is_new, o.id, t.n, t.kind, t.seq, t.run
            FROM newest o CROSS JOIN LATERAL unnest(o.kinds, o.seqs, o.runs) WITH ORDINALITY AS t(kind, seq, run, n)
            WHERE o.kinds && $2::smallint[] /* kinds */ AND t.kind = ANY($2)
            ORDER BY o.is_new DESC, o.id DESC, t.n DESC LIMIT $3 /* ENDED_READ */
        ),
        selected AS MATERIALIZED (
            SELECT e.is_new, e.id AS batch, e.n, e.kind, r.*, d.id, t.queue
            FROM ended e JOIN runs r ON r.seq = e.seq AND r.run = e.run
            JOIN task_definitions d ON d.seq = e.seq JOIN tasks t ON t.id = d.id
            WHERE ($4::int[] /* queues */ IS NULL OR t.queue = ANY($4))
              AND ($5::text /* worker group */ IS NULL OR (r.worker_group = $5 AND r.worker_id = $6 /* worker id */))
              AND (NOT $10::boolean /* failures */ OR r.reason_resolved <> 3 /* ReasonResolved::Canceled */)
            ORDER BY e.is_new DESC, e.id DESC, e.n DESC LIMIT $7 /* limit */
        )
        SELECT s.id, s.run, q.name AS queue, s.state, s.reason_created, s.reason_resolved, s.resolved, s.worker_group,
               s.worker_id, s.kind IN (6, 15) /* Kind: retried */ AS "retried!",
               CASE WHEN $10 THEN (SELECT x.failure FROM results x WHERE x.seq = s.seq AND x.run = s.run) END AS failure,
               CASE WHEN octet_length(d.definition) <= $8 /* NAMED_DEFINITION_MAX */ THEN d.definition END AS definition
        FROM selected s JOIN task_queues q ON q.id = s.queue JOIN task_definitions d ON d.seq = s.seq
        ORDER BY s.is_new DESC, s.batch DESC, s.n DESC"#,
        OUTBOX_READ,
        ends.kinds(),
        ENDED_READ,
        filter.queues,
        filter.worker.map(|(group, _)| group),
        filter.worker.map(|(_, id)| id),
        limit,
        NAMED_DEFINITION_MAX,
        sequenced.0,
        ends == Ends::Failures
    )
    .fetch_all(conn)
    .await?;
    rows.into_iter()
        .map(|row| {
            let columns = Row { table: "runs", task: row.id };
            Ok(EndedRow {
                task: columns.slug("id", row.id)?,
                run: columns.run(row.run)?,
                queue: row.queue,
                state: columns.state(row.state)?,
                reason_created: columns.reason_created(row.reason_created)?,
                reason: columns.reason_resolved(row.reason_resolved)?,
                resolved: row.resolved,
                worker: row.worker_group.zip(row.worker_id),
                retried: row.retried,
                failure: row.failure,
                definition: row.definition,
            })
        })
        .collect()
}

#[derive(Debug)]
pub struct WaitingRow {
    pub task: TaskId,
    pub run: RunId,
    pub priority: Priority,
    pub scheduled: DateTime<Utc>,
    pub deadline: DateTime<Utc>,
    pub hidden_until: Option<DateTime<Utc>>,
    /// None if long.
    pub definition: Option<String>,
}

/// Lists the next pending runs of a queue, from its low-water marks. None on timeout.
pub async fn list_waiting(
    conn: &mut PgConnection,
    queue: i32,
    marks: Marks,
    limit: i64,
) -> Result<Option<Vec<WaitingRow>>, sqlx::Error> {
    let mut part = begin_part(conn).await?;
    let rows = sqlx::query!(
        r#"-- page_waiting
        WITH first AS MATERIALIZED (
            SELECT w.* FROM task_queues q CROSS JOIN generate_series(0, 6) /* Priority: all */ AS p(priority)
            CROSS JOIN (VALUES (true), (false)) AS h(hidden)
            CROSS JOIN LATERAL (
                SELECT w.* FROM pending w
                WHERE w.queue = $1 AND w.priority = p.priority::smallint
                  AND (w.hidden_until IS NOT NULL) = h.hidden AND w.reserved_until IS NULL
                  AND w.ord > CASE WHEN q.cursor_epoch = $4 THEN ($5::bigint[] /* marks */)[p.priority + 1] ELSE 0 /* ord */ END
                ORDER BY w.ord LIMIT $2
            ) w
            WHERE q.id = $1
            UNION ALL
            SELECT w.* FROM generate_series(0, 6) /* Priority: all */ AS p(priority)
            CROSS JOIN LATERAL (
                SELECT w.* FROM pending w
                WHERE w.queue = $1 AND w.priority = p.priority::smallint AND w.hold = 2 /* Hold::Waiting */
                ORDER BY w.ord LIMIT $2
            ) w
            ORDER BY priority, ord LIMIT $2
        )
        SELECT f.id AS "id!", f.run AS "run!", f.priority AS "priority!", f.scheduled AS "scheduled!",
               f.deadline AS "deadline!", f.hidden_until,
               CASE WHEN octet_length(d.definition) <= $3 THEN d.definition END AS definition
        FROM first f JOIN task_definitions d ON d.seq = f.seq
        ORDER BY f.priority, f.ord"#,
        queue,
        limit,
        NAMED_DEFINITION_MAX,
        marks.epoch,
        &marks.marks[..]
    )
    .fetch_all(&mut *part)
    .await;
    let Some(rows) = end_part(part, rows).await? else { return Ok(None) };
    rows.into_iter()
        .map(|row| {
            let columns = Row { table: "pending", task: row.id };
            Ok(WaitingRow {
                task: columns.slug("id", row.id)?,
                run: columns.run(row.run)?,
                priority: columns.priority(row.priority)?,
                scheduled: row.scheduled,
                deadline: row.deadline,
                hidden_until: row.hidden_until,
                definition: row.definition,
            })
        })
        .collect::<Result<Vec<_>, sqlx::Error>>()
        .map(Some)
}
