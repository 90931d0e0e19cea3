//! Lists of tasks by conditions.
//!
//! A list reads keys from one index, a bounded number at a time, and then the details of these
//! tasks. Conditions without an index are compared with the details. A key whose task was purged or
//! has another state by now has no details.

use chrono::{DateTime, Utc};
use sqlx::{PgConnection, PgPool, Postgres, Transaction};
use tenure_api::ids::{RunId, TaskGroupId, TaskId, TaskQueueId};
use tenure_api::states::{EndedBy, Priority, ReasonResolved, TaskState};
use uuid::Uuid;

use super::oldest::may_start;
use super::{NAMED_DEFINITION_MAX, PART_TIMEOUT, list_queues};
use crate::admission::runnable::list_limits;
use crate::decode::{Row, Undecodable};
use crate::events::Sequenced;
use crate::low_water_marks::Marks;
use crate::queues::parse_name;
use tenure_domain::task_filter::{Needles, Position};

/// Newest tasks that have short ids.
pub const SHORT_IDS_MAX: i64 = 10_000;
/// Queues whose dead letters a list of all failures has.
const QUEUES_MAX: i64 = 1_000;

/// A task in the order of an index.
#[derive(Debug, Clone, Copy)]
pub struct Key {
    pub seq: i64,
    /// The run that failed, which may no longer be the last one. None in other lists.
    pub run: Option<RunId>,
    pub position: Position,
}

impl Key {
    fn of_task(seq: i64, position: Position) -> Self {
        Self { seq, run: None, position }
    }
}

/// Begins the transaction of a list. Its statements time out after a second.
pub async fn begin(pool: &PgPool) -> Result<Transaction<'static, Postgres>, sqlx::Error> {
    let mut transaction = super::begin(pool).await?;
    sqlx::query!("-- page_part\nSELECT set_config('statement_timeout', $1, true)", PART_TIMEOUT)
        .fetch_one(&mut *transaction)
        .await?;
    Ok(transaction)
}

/// Lists tasks created before `before`, newest first.
pub async fn list_created(conn: &mut PgConnection, before: i64, limit: i64) -> Result<Vec<Key>, sqlx::Error> {
    let rows = sqlx::query_scalar!(
        "-- list_created_tasks\nSELECT d.seq FROM task_definitions d WHERE d.seq < $1 ORDER BY d.seq DESC LIMIT $2",
        before,
        limit
    )
    .fetch_all(conn)
    .await?;
    Ok(rows.into_iter().map(|seq| Key::of_task(seq, Position::Created(seq))).collect())
}

/// Lists the tasks of a group, by id.
pub async fn list_of_group(
    conn: &mut PgConnection,
    group: TaskGroupId,
    after: Uuid,
    limit: i64,
) -> Result<Vec<Key>, sqlx::Error> {
    // The index of groups omits the task that a group is named after.
    let rows = sqlx::query!(
        r#"-- list_tasks_of_group
        SELECT x.id AS "id!", x.seq AS "seq!" FROM (
            (SELECT t.id, t.seq FROM tasks t WHERE t.id = $1 AND t.task_group = $1 AND t.id > $2)
            UNION ALL
            (SELECT t.id, t.seq FROM tasks t WHERE t.task_group = $1 AND t.id <> t.task_group AND t.id > $2
             ORDER BY t.id LIMIT $3)
        ) x ORDER BY x.id LIMIT $3"#,
        group.uuid(),
        after,
        limit
    )
    .fetch_all(conn)
    .await?;
    rows.into_iter()
        .map(|row| {
            let task = Row { table: "tasks", task: row.id }.slug("id", row.id)?;
            Ok(Key::of_task(row.seq, Position::Group(task)))
        })
        .collect::<Result<_, Undecodable>>()
        .map_err(sqlx::Error::from)
}

/// Lists pending runs of a queue from its low-water marks, in the order of the queue.
pub async fn list_pending(
    conn: &mut PgConnection,
    queue: i32,
    marks: Marks,
    after: i64,
    limit: i64,
) -> Result<Vec<Key>, sqlx::Error> {
    let rows = sqlx::query!(
        r#"-- list_pending_tasks
        WITH first AS MATERIALIZED (
            SELECT w.seq, w.ord FROM task_queues q CROSS JOIN generate_series(0, 6) /* Priority: all */ AS p(priority)
            CROSS JOIN (VALUES (true), (false)) AS h(hidden)
            CROSS JOIN LATERAL (
                SELECT w.seq, w.ord FROM pending w
                WHERE w.queue = $1 AND w.priority = p.priority::smallint
                  AND (w.hidden_until IS NOT NULL) = h.hidden AND w.reserved_until IS NULL AND w.ord > $2
                  AND w.ord > CASE WHEN q.cursor_epoch = $4 THEN ($5::bigint[] /* marks */)[p.priority + 1] ELSE 0 /* ord */ END
                ORDER BY w.ord LIMIT $3
            ) w
            WHERE q.id = $1
            UNION ALL
            SELECT w.seq, w.ord FROM pending w WHERE w.reserved_until < '2999-01-01' AND w.queue = $1 AND w.ord > $2
            UNION ALL
            (SELECT w.seq, w.ord FROM pending w WHERE w.hold IS NOT NULL AND w.queue = $1 AND w.ord > $2
             ORDER BY w.ord LIMIT $3)
        )
        SELECT f.seq AS "seq!", f.ord AS "ord!" FROM first f ORDER BY f.ord LIMIT $3"#,
        queue,
        after,
        limit,
        marks.epoch,
        &marks.marks[..]
    )
    .fetch_all(conn)
    .await?;
    Ok(rows.into_iter().map(|row| Key::of_task(row.seq, Position::Queued(row.ord))).collect())
}

/// Lists pending runs of a queue that a delay or a limit holds or that are assigned, in the order of
/// the queue.
pub async fn list_held(conn: &mut PgConnection, queue: i32, after: i64, limit: i64) -> Result<Vec<Key>, sqlx::Error> {
    let rows = sqlx::query!(
        "-- list_held_tasks
        SELECT w.seq, w.ord FROM pending w WHERE w.hold IS NOT NULL AND w.queue = $1 AND w.ord > $2
        ORDER BY w.ord LIMIT $3",
        queue,
        after,
        limit
    )
    .fetch_all(conn)
    .await?;
    Ok(rows.into_iter().map(|row| Key::of_task(row.seq, Position::Queued(row.ord))).collect())
}

/// True if the limits of a queue, without the limits of its keys, let a run start.
pub async fn is_admitting(conn: &mut PgConnection, sequenced: Sequenced, queue: i32) -> Result<bool, sqlx::Error> {
    let Some(limited) = list_limits(conn, &[queue]).await?.remove(&queue) else { return Ok(true) };
    let counted = list_queues(conn, sequenced, Some(queue)).await?.first().map(super::QueueRow::counted);
    Ok(may_start(&limited.allowed(counted.unwrap_or_default())))
}

/// Lists claimed runs of all queues, by the end of their leases. A renewed one comes again.
pub async fn list_running(
    conn: &mut PgConnection,
    (taken_until, seq): (DateTime<Utc>, i64),
    limit: i64,
) -> Result<Vec<Key>, sqlx::Error> {
    let rows = sqlx::query!(
        "-- list_running_tasks
        SELECT c.taken_until, c.seq FROM claims c WHERE (c.taken_until, c.seq) > ($1, $2)
        ORDER BY c.taken_until, c.seq LIMIT $3",
        taken_until,
        seq,
        limit
    )
    .fetch_all(conn)
    .await?;
    let key = |taken_until, seq| Key::of_task(seq, Position::Running(taken_until, seq));
    Ok(rows.into_iter().map(|row| key(row.taken_until, row.seq)).collect())
}

/// Lists failed runs before a time and a task, latest first: of a queue, or of all. The list
/// of all queues lacks dead letters beyond the first `QUEUES_MAX` queues that have some.
pub async fn list_failed(
    conn: &mut PgConnection,
    queue: Option<i32>,
    (resolved, seq): (DateTime<Utc>, i64),
    limit: i64,
) -> Result<Vec<Key>, sqlx::Error> {
    let key = |resolved, seq, run| Key { seq, run: run_of(run), position: Position::Failed(resolved, seq) };
    let Some(queue) = queue else {
        // No index has the order of all queues.
        let rows = sqlx::query!(
            r#"-- list_failed_tasks
            WITH RECURSIVE known AS (
                (SELECT f.queue, 1 /* count */::bigint AS n FROM failed_runs f WHERE f.dead ORDER BY f.queue LIMIT 1)
                UNION ALL
                SELECT (SELECT f.queue FROM failed_runs f WHERE f.dead AND f.queue > k.queue ORDER BY f.queue LIMIT 1), k.n + 1
                FROM known k WHERE k.queue IS NOT NULL AND k.n < $4
            )
            SELECT x.resolved AS "resolved!", x.seq AS "seq!", x.run AS "run!" FROM (
                (SELECT f.resolved, f.seq, f.run FROM failed_runs f WHERE NOT f.dead AND (f.resolved, f.seq) < ($1, $2)
                 ORDER BY f.resolved DESC, f.seq DESC LIMIT $3)
                UNION ALL
                SELECT f.resolved, f.seq, f.run FROM known k CROSS JOIN LATERAL (
                    SELECT f.resolved, f.seq, f.run FROM failed_runs f
                    WHERE f.queue = k.queue AND f.dead AND (f.resolved, f.seq) < ($1, $2)
                    ORDER BY f.resolved DESC, f.seq DESC LIMIT $3
                ) f
            ) x ORDER BY x.resolved DESC, x.seq DESC LIMIT $3"#,
            resolved,
            seq,
            limit,
            QUEUES_MAX
        )
        .fetch_all(conn)
        .await?;
        return Ok(rows.into_iter().map(|row| key(row.resolved, row.seq, row.run)).collect());
    };
    let rows = sqlx::query!(
        "-- list_failed_tasks_of_queue
        SELECT f.resolved, f.seq, f.run FROM failed_runs f WHERE f.queue = $1 AND (f.resolved, f.seq) < ($2, $3)
        ORDER BY f.resolved DESC, f.seq DESC LIMIT $4",
        queue,
        resolved,
        seq,
        limit
    )
    .fetch_all(conn)
    .await?;
    Ok(rows.into_iter().map(|row| key(row.resolved, row.seq, row.run)).collect())
}

fn run_of(number: i16) -> Option<RunId> {
    u16::try_from(number).ok().and_then(RunId::new)
}

/// Lists tasks with an id in a range among the newest [`SHORT_IDS_MAX`], newest first.
pub async fn list_of_short_id(
    conn: &mut PgConnection,
    (first, last): (Uuid, Uuid),
    limit: i64,
) -> Result<Vec<i64>, sqlx::Error> {
    sqlx::query_scalar!(
        r#"-- list_tasks_of_short_id
        SELECT d.seq AS "seq!" FROM (SELECT x.seq, x.id FROM task_definitions x ORDER BY x.seq DESC LIMIT $1) d
        WHERE d.id >= $2 AND d.id <= $3 ORDER BY d.seq DESC LIMIT $4"#,
        SHORT_IDS_MAX,
        first,
        last,
        limit
    )
    .fetch_all(conn)
    .await
}

/// Conditions that are compared with details. None accepts all.
#[derive(Debug, Clone, Default)]
pub struct Conditions<'a> {
    pub queue: Option<i32>,
    pub state: Option<TaskState>,
    /// Only runs that are assigned, or that limits hold.
    pub held: bool,
    /// See [`is_admitting`].
    pub is_admitting: bool,
    pub reason: Option<ReasonResolved>,
    /// Group and id.
    pub worker: Option<(&'a str, &'a str)>,
    pub project: Option<&'a str>,
    pub needles: Needles,
}

#[derive(Debug)]
pub struct Details {
    /// Index in the list of tasks.
    pub index: usize,
    pub task: TaskId,
    pub queue: TaskQueueId,
    pub project: String,
    pub scheduler: String,
    pub group: TaskGroupId,
    pub state: TaskState,
    pub priority: Priority,
    pub last_run: Option<RunId>,
    pub deadline: DateTime<Utc>,
    /// Of the last run, as are the other times.
    pub scheduled: Option<DateTime<Utc>>,
    pub started: Option<DateTime<Utc>>,
    pub resolved: Option<DateTime<Utc>>,
    pub reason: Option<ReasonResolved>,
    pub ended_by: Option<EndedBy>,
    /// Group and id.
    pub worker: Option<(String, String)>,
    /// None above `NAMED_DEFINITION_MAX`.
    pub definition: Option<String>,
    /// JSON text; none unless there is a needle.
    pub tags: Option<String>,
}

struct DetailsRow {
    n: i64,
    id: Uuid,
    queue: String,
    project: String,
    scheduler: String,
    task_group: Uuid,
    state: i16,
    priority: i16,
    run: Option<i16>,
    deadline: DateTime<Utc>,
    scheduled: Option<DateTime<Utc>>,
    started: Option<DateTime<Utc>>,
    resolved: Option<DateTime<Utc>>,
    reason_resolved: Option<i16>,
    ended_by: Option<i16>,
    worker_group: Option<String>,
    worker_id: Option<String>,
    definition: Option<String>,
    tags: Option<String>,
}

/// Returns the details of tasks that meet the conditions, in the order of `seqs`.
pub async fn list_details(
    conn: &mut PgConnection,
    seqs: &[i64],
    conditions: &Conditions<'_>,
) -> Result<Vec<Details>, sqlx::Error> {
    let Conditions { queue, state, held, is_admitting, reason, worker, project, needles } = conditions;
    let (group, id) = worker.unzip();
    let rows = sqlx::query_as!(
        DetailsRow,
        r#"-- list_task_details
        WITH db_now AS MATERIALIZED (SELECT now FROM db_now),
        found AS MATERIALIZED (
            SELECT i.n, d.seq, d.id, d.scheduler, d.project, d.task_group, d.deadline, t.queue, t.priority, t.run,
                   CASE WHEN t.state = 1 /* State::Unresolved */ AND c.started IS NOT NULL
                        THEN 2 /* TaskState::Running */::smallint ELSE t.state END AS state,
                   p.hold, p.key_id, COALESCE(p.scheduled, c.scheduled, r.scheduled) AS scheduled,
                   COALESCE(c.started, r.started) AS started, r.resolved, r.reason_resolved, r.ended_by,
                   COALESCE(c.worker_group, r.worker_group) AS worker_group, COALESCE(c.worker_id, r.worker_id) AS worker_id
            FROM unnest($1::bigint[]) WITH ORDINALITY AS i(seq, n)
            CROSS JOIN LATERAL (SELECT x.* FROM task_definitions x WHERE x.seq = i.seq LIMIT 1) d
            CROSS JOIN LATERAL (
                SELECT x.* FROM tasks x WHERE x.id = d.id AND ($2::int /* queue */ IS NULL OR x.queue = $2) LIMIT 1
            ) t
            LEFT JOIN LATERAL (
                SELECT x.* FROM pending x WHERE t.state = 1 /* State::Unresolved */ AND x.seq = i.seq LIMIT 1
            ) p ON true
            LEFT JOIN LATERAL (
                SELECT x.* FROM claims x WHERE t.state = 1 /* State::Unresolved */ AND x.seq = i.seq LIMIT 1
            ) c ON true
            LEFT JOIN LATERAL (
                SELECT x.* FROM runs x WHERE t.state > 1 /* State: resolved */ AND x.seq = i.seq AND x.run = t.run LIMIT 1
            ) r ON true
        )
        SELECT f.n AS "n!", f.id AS "id!", q.name AS "queue!", f.project AS "project!", f.scheduler AS "scheduler!",
               f.task_group AS "task_group!", f.state AS "state!", f.priority AS "priority!", f.run AS "run?",
               f.deadline AS "deadline!", f.scheduled AS "scheduled?", f.started AS "started?", f.resolved AS "resolved?",
               f.reason_resolved AS "reason_resolved?", f.ended_by AS "ended_by?", f.worker_group AS "worker_group?",
               f.worker_id AS "worker_id?",
               CASE WHEN octet_length(d.definition) <= $13 /* NAMED_DEFINITION_MAX */ THEN d.definition END AS "definition?",
               CASE WHEN $12::text /* tag */ IS NOT NULL THEN d.tags END AS "tags?"
        FROM found f JOIN task_queues q ON q.id = f.queue JOIN task_definitions d ON d.seq = f.seq
        WHERE ($3::smallint /* state */ IS NULL OR f.state = $3)
          AND (NOT $4::boolean /* held */ OR f.hold = 3 /* Hold::Assigned */
               OR (f.hold = 2 /* Hold::Waiting */ AND NOT ($5::boolean /* is admitting */ AND EXISTS (
                   SELECT FROM admission_heads h WHERE h.key_id = f.key_id AND h.priority = f.priority
                     AND (h.ready OR COALESCE(h.at <= (SELECT now FROM db_now), false))
               ))))
          AND ($6::smallint /* reason */ IS NULL OR f.reason_resolved = $6)
          AND ($7::text /* worker group */ IS NULL OR (f.worker_group = $7 AND f.worker_id = $8 /* worker id */))
          AND ($9::text /* project */ IS NULL OR f.project = $9)
          AND CASE WHEN $10::text /* name */ IS NULL AND $11::text /* owner */ IS NULL THEN true
                   WHEN octet_length(d.definition) > $13 THEN false
                   ELSE ($10 IS NULL OR strpos(lower(d.definition COLLATE "C"), $10) > 0 /* count */)
                    AND ($11 IS NULL OR strpos(d.definition, $11) > 0 /* count */) END
          AND ($12 IS NULL OR strpos(d.tags, $12) > 0 /* count */)
        ORDER BY f.n"#,
        seqs,
        *queue,
        state.map(TaskState::code),
        *held,
        *is_admitting,
        reason.map(ReasonResolved::code),
        group,
        id,
        *project,
        needles.name.as_deref(),
        needles.owner.as_deref(),
        needles.tag.as_deref(),
        NAMED_DEFINITION_MAX
    )
    .fetch_all(conn)
    .await?;
    rows.into_iter().map(Details::try_from).collect::<Result<_, _>>().map_err(sqlx::Error::from)
}

impl TryFrom<DetailsRow> for Details {
    type Error = Undecodable;

    fn try_from(row: DetailsRow) -> Result<Self, Undecodable> {
        let columns = Row { table: "tasks", task: row.id };
        Ok(Self {
            // Ordinals begin at 1.
            index: usize::try_from(row.n - 1).unwrap_or_default(),
            task: columns.slug("id", row.id)?,
            queue: parse_name(&row.queue).map_err(|_| Undecodable::queue(row.id))?,
            project: row.project,
            scheduler: row.scheduler,
            group: columns.slug("task_group", row.task_group)?,
            state: TaskState::from_code(row.state).ok_or_else(|| columns.invalid("state", row.state))?,
            priority: columns.priority(row.priority)?,
            last_run: row.run.map(|run| columns.run(run)).transpose()?,
            deadline: row.deadline,
            scheduled: row.scheduled,
            started: row.started,
            resolved: row.resolved,
            reason: row.reason_resolved.map(|code| columns.reason_resolved(code)).transpose()?,
            ended_by: columns.ended_by(row.ended_by)?,
            worker: row.worker_group.zip(row.worker_id),
            definition: row.definition,
            tags: row.tags,
        })
    }
}
