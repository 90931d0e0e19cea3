//! A task group on the operator's page.

use chrono::{DateTime, Utc};
use sqlx::PgConnection;
use tenure_api::ids::{RunId, TaskId};
use tenure_api::states::{Priority, ReasonResolved, TaskState};
use uuid::Uuid;

use super::{NAMED_DEFINITION_MAX, begin_part, end_part};
use crate::decode::{Row, Undecodable};

/// Bytes of all definitions of a graph.
const DEFINITIONS_MAX: i64 = 2 << 20;
/// Dependencies read of each task.
const DEPENDENCIES_OF_TASK: i64 = 100;

#[derive(Debug)]
pub struct GroupRow {
    pub scheduler: String,
    pub expires: DateTime<Utc>,
    /// When the group was sealed against new tasks.
    pub sealed: Option<DateTime<Utc>>,
}

pub async fn find_group(conn: &mut PgConnection, id: Uuid) -> Result<Option<GroupRow>, sqlx::Error> {
    sqlx::query_as!(
        GroupRow,
        r#"-- page_group
        SELECT scheduler AS "scheduler!", expires AS "expires!", sealed FROM known_groups WHERE id = $1"#,
        id
    )
    .fetch_optional(conn)
    .await
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Member {
    pub id: Uuid,
    /// In the order of creation.
    pub seq: i64,
    pub state: TaskState,
}

/// Lists up to `limit` tasks of a group after `after`, by id. None on timeout.
pub async fn list_members(
    conn: &mut PgConnection,
    group: Uuid,
    after: Uuid,
    limit: i64,
) -> Result<Option<Vec<Member>>, sqlx::Error> {
    let mut part = begin_part(conn).await?;
    // The index of groups omits the task that a group is named after. Arrays, because a row for
    // each task takes several times as long.
    let row = sqlx::query!(
        r#"-- page_members
        SELECT COALESCE(array_agg(m.id), '{}') AS "ids!", COALESCE(array_agg(m.seq), '{}') AS "seqs!",
               COALESCE(array_agg(m.state), '{}') AS "states!"
        FROM (
            SELECT x.id, x.seq,
                   CASE WHEN c.seq IS NULL THEN x.state ELSE 2 /* TaskState::Running */::smallint END AS state
            FROM (
                (SELECT t.id, t.seq, t.state FROM tasks t WHERE t.id = $1 AND t.task_group = $1 AND t.id > $2)
                UNION ALL
                (SELECT t.id, t.seq, t.state FROM tasks t WHERE t.task_group = $1 AND t.id <> t.task_group AND t.id > $2
                 ORDER BY t.id LIMIT $3)
                ORDER BY id LIMIT $3
            ) x
            LEFT JOIN claims c ON c.seq = CASE WHEN x.state = 1 /* State::Unresolved */ THEN x.seq END
        ) m"#,
        group,
        after,
        limit
    )
    .fetch_one(&mut *part)
    .await;
    let Some(row) = end_part(part, row).await? else { return Ok(None) };
    let members = row.ids.into_iter().zip(row.seqs).zip(row.states);
    let decode = |((id, seq), code)| Ok(Member { id, seq, state: task_state(Row { table: "tasks", task: id }, code)? });
    members.map(decode).collect::<Result<Vec<_>, Undecodable>>().map(Some).map_err(sqlx::Error::from)
}

pub(super) fn task_state(columns: Row, code: i16) -> Result<TaskState, Undecodable> {
    TaskState::from_code(code).ok_or_else(|| columns.invalid("state", code))
}

/// A task with its last run.
#[derive(Debug)]
pub struct GroupTaskRow {
    pub seq: i64,
    pub task: TaskId,
    pub queue: String,
    pub priority: Priority,
    pub state: TaskState,
    pub run: Option<RunId>,
    pub reason: Option<ReasonResolved>,
    pub scheduled: Option<DateTime<Utc>>,
    pub started: Option<DateTime<Utc>>,
    pub resolved: Option<DateTime<Utc>>,
    /// Group and id.
    pub worker: Option<(String, String)>,
    /// None if long.
    pub definition: Option<String>,
}

/// Reads tasks by number. Omits expired ones.
pub async fn list_group_tasks(conn: &mut PgConnection, seqs: &[i64]) -> Result<Vec<GroupTaskRow>, sqlx::Error> {
    let rows = sqlx::query!(
        r#"-- page_group_tasks
        SELECT d.seq AS "seq!", d.id AS "id!", q.name AS "queue!", t.priority AS "priority!", t.run AS "run?",
               CASE WHEN c.seq IS NULL THEN t.state ELSE 2 /* TaskState::Running */::smallint END AS "state!",
               r.reason_resolved AS "reason?", COALESCE(r.scheduled, c.scheduled, p.scheduled) AS "scheduled?",
               COALESCE(r.started, c.started) AS "started?", r.resolved AS "resolved?",
               COALESCE(r.worker_group, c.worker_group) AS "worker_group?", COALESCE(r.worker_id, c.worker_id) AS "worker_id?",
               CASE WHEN octet_length(d.definition) <= $2 THEN d.definition END AS "definition?"
        FROM unnest($1::bigint[]) WITH ORDINALITY AS s(seq, n)
        JOIN task_definitions d ON d.seq = s.seq
        JOIN tasks t ON t.id = d.id
        JOIN task_queues q ON q.id = t.queue
        LEFT JOIN pending p ON t.state = 1 /* State::Unresolved */ AND p.seq = t.seq
        LEFT JOIN claims c ON t.state = 1 /* State::Unresolved */ AND c.seq = t.seq
        LEFT JOIN runs r ON t.state > 1 /* State: resolved */ AND r.seq = t.seq AND r.run = t.run
        ORDER BY s.n"#,
        seqs,
        NAMED_DEFINITION_MAX
    )
    .fetch_all(conn)
    .await?;
    rows.into_iter()
        .map(|row| {
            let columns = Row { table: "tasks", task: row.id };
            Ok(GroupTaskRow {
                seq: row.seq,
                task: columns.slug("id", row.id)?,
                queue: row.queue,
                priority: columns.priority(row.priority)?,
                state: task_state(columns, row.state)?,
                run: row.run.map(|run| columns.run(run)).transpose()?,
                reason: row.reason.map(|code| columns.reason_resolved(code)).transpose()?,
                scheduled: row.scheduled,
                started: row.started,
                resolved: row.resolved,
                worker: row.worker_group.zip(row.worker_id),
                definition: row.definition,
            })
        })
        .collect::<Result<_, Undecodable>>()
        .map_err(sqlx::Error::from)
}

/// Dependencies to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Needs {
    All,
    Unsatisfied,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NeedRow {
    pub dependent: Uuid,
    /// `tasks.seq`.
    pub required: i64,
    pub satisfied: bool,
    /// True if any end of the required task satisfies it.
    pub any_end: bool,
}

/// Lists up to `limit` dependencies of these tasks, unsatisfied ones of each task first. None on
/// timeout.
pub async fn list_needs(
    conn: &mut PgConnection,
    dependents: &[Uuid],
    needs: Needs,
    limit: i64,
) -> Result<Option<Vec<NeedRow>>, sqlx::Error> {
    let mut part = begin_part(conn).await?;
    // A comparison, so that the index finds unsatisfied ones.
    let satisfied_most = needs == Needs::All;
    let rows = sqlx::query_as!(
        NeedRow,
        r#"-- page_needs
        SELECT s.dependent AS "dependent!", e.required AS "required!", e.satisfied AS "satisfied!", e.any_end AS "any_end!"
        FROM unnest($1::uuid[]) AS s(dependent)
        CROSS JOIN LATERAL (
            SELECT e.required, e.satisfied, e.any_end FROM dependencies e
            WHERE e.dependent = s.dependent AND e.satisfied <= $2 ORDER BY e.satisfied LIMIT $3
        ) e
        LIMIT $4"#,
        dependents,
        satisfied_most,
        DEPENDENCIES_OF_TASK,
        limit
    )
    .fetch_all(&mut *part)
    .await;
    end_part(part, rows).await
}

/// Filters tasks, by number, to failed tasks and exceptions.
pub async fn list_group_failures(conn: &mut PgConnection, seqs: &[i64]) -> Result<Vec<i64>, sqlx::Error> {
    sqlx::query_scalar!(
        r#"-- page_group_failures
        SELECT d.seq AS "seq!" FROM unnest($1::bigint[]) AS s(seq)
        JOIN task_definitions d ON d.seq = s.seq
        JOIN tasks t ON t.id = d.id
        WHERE t.state IN (4, 5) /* State: resolved badly */"#,
        seqs
    )
    .fetch_all(conn)
    .await
}

/// Reads definitions by task number, up to 2 MiB together. Omits long ones. None on
/// timeout.
pub async fn list_definitions(
    conn: &mut PgConnection,
    seqs: &[i64],
) -> Result<Option<Vec<(i64, String)>>, sqlx::Error> {
    let mut part = begin_part(conn).await?;
    let rows = sqlx::query!(
        r#"-- page_definitions
        SELECT y.seq AS "seq!", y.definition AS "definition!"
        FROM (
            SELECT x.seq, x.definition, sum(x.length) OVER (ORDER BY x.n) AS length
            FROM (
                SELECT d.seq, s.n, d.definition, octet_length(d.definition) AS length
                FROM unnest($1::bigint[]) WITH ORDINALITY AS s(seq, n) JOIN task_definitions d ON d.seq = s.seq
            ) x WHERE x.length <= $2
        ) y WHERE y.length <= $3"#,
        seqs,
        NAMED_DEFINITION_MAX,
        DEFINITIONS_MAX
    )
    .fetch_all(&mut *part)
    .await;
    let rows = end_part(part, rows).await?;
    Ok(rows.map(|rows| rows.into_iter().map(|row| (row.seq, row.definition)).collect()))
}

/// Returns when the last run of these tasks ended.
pub async fn find_last_end(conn: &mut PgConnection, seqs: &[i64]) -> Result<Option<DateTime<Utc>>, sqlx::Error> {
    sqlx::query_scalar!(
        r#"-- page_group_end
        SELECT max(r.resolved) FROM unnest($1::bigint[]) AS s(seq) JOIN runs r ON r.seq = s.seq"#,
        seqs
    )
    .fetch_one(conn)
    .await
}
