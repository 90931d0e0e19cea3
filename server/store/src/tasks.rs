//! Reads tasks for statuses, diagnoses and definitions.

use std::collections::HashMap;

use chrono::{DateTime, Utc};
use sqlx::PgConnection;
use tenure_api::states::Priority;
use uuid::Uuid;

use super::codes::State;
use super::decode::{Row, Undecodable, task_columns};
use super::queues::parse_name;
use tenure_domain::task::{EndedRun, Last, Task, Tenancy};

/// A task with internal counters.
#[derive(Debug)]
pub struct Loaded {
    pub task: Task,
    pub requeues: u16,
    /// Runs that ended without using a retry.
    pub free_runs: u16,
    pub now: DateTime<Utc>,
}

struct TaskRow {
    id: Uuid,
    seq: i64,
    queue: String,
    priority: i16,
    state: i16,
    retries_left: i16,
    requeues: i16,
    free_runs: i16,
    last_run: Option<i16>,
    scheduler: String,
    project: String,
    task_group: Uuid,
    deadline: DateTime<Utc>,
    expires: DateTime<Utc>,
    reason_created: Option<i16>,
    scheduled: Option<DateTime<Utc>>,
    started: Option<DateTime<Utc>>,
    taken_until: Option<DateTime<Utc>>,
    worker_group: Option<String>,
    worker_id: Option<String>,
    now: DateTime<Utc>,
}

struct RunRow {
    seq: i64,
    run: i16,
    state: i16,
    reason_created: i16,
    reason_resolved: i16,
    ended_by: Option<i16>,
    scheduled: DateTime<Utc>,
    started: Option<DateTime<Utc>>,
    resolved: DateTime<Utc>,
    taken_until: Option<DateTime<Utc>>,
    worker_group: Option<String>,
    worker_id: Option<String>,
}

/// Reads tasks; repeated ids are allowed, and missing tasks omitted. Two statements suffice: until
/// a purge, the history is append-only.
pub async fn load(conn: &mut PgConnection, ids: &[Uuid]) -> Result<HashMap<Uuid, Loaded>, sqlx::Error> {
    let rows = sqlx::query_as!(
        TaskRow,
        r#"-- load_tasks
        WITH db_now AS MATERIALIZED (SELECT now FROM db_now)
        SELECT t.id, t.seq, q.name AS queue, t.priority, t.state, t.retries_left, t.requeues, t.free_runs, t.run AS last_run,
               d.scheduler, d.project, d.task_group, d.deadline, d.expires,
               COALESCE(p.reason_created, c.reason_created) AS reason_created,
               COALESCE(p.scheduled, c.scheduled) AS scheduled,
               c.started AS "started?", c.taken_until AS "taken_until?", c.worker_group AS "worker_group?",
               c.worker_id AS "worker_id?", db_now.now AS "now!"
        FROM unnest($1::uuid[]) AS i(id)
        JOIN tasks t ON t.id = i.id
        JOIN task_queues q ON q.id = t.queue
        JOIN task_definitions d ON d.seq = t.seq
        LEFT JOIN LATERAL (
            SELECT x.reason_created, x.scheduled FROM pending x WHERE t.state = 1 /* State::Unresolved */ AND x.seq = t.seq LIMIT 1
        ) p ON true
        LEFT JOIN LATERAL (
            SELECT x.reason_created, x.scheduled, x.started, x.taken_until, x.worker_group, x.worker_id
            FROM claims x WHERE t.state = 1 /* State::Unresolved */ AND x.seq = t.seq LIMIT 1
        ) c ON true
        CROSS JOIN db_now"#,
        ids
    )
    .fetch_all(&mut *conn)
    .await?;
    // Deduplicated: the history of a task can be taken once.
    let rows: HashMap<Uuid, TaskRow> = rows.into_iter().map(|row| (row.id, row)).collect();
    let with_history: Vec<i64> = rows
        .values()
        .filter(|row| row.state > State::Unresolved.code() || row.last_run > Some(0))
        .map(|row| row.seq)
        .collect();
    let mut history = load_history(conn, &with_history).await?;
    rows.into_values()
        .filter_map(|row| {
            let ended = history.remove(&row.seq).unwrap_or_default();
            // A resolved task has runs, unless it was purged between the statements.
            if row.state > State::Unresolved.code() && ended.is_empty() {
                return None;
            }
            let id = row.id;
            Some(decode(row, ended).map(|loaded| (id, loaded)).map_err(sqlx::Error::from))
        })
        .collect()
}

pub async fn load_history(conn: &mut PgConnection, seqs: &[i64]) -> Result<HashMap<i64, Vec<EndedRun>>, sqlx::Error> {
    let mut history: HashMap<i64, Vec<EndedRun>> = HashMap::new();
    if seqs.is_empty() {
        return Ok(history);
    }
    let rows = sqlx::query_as!(
        RunRow,
        r#"-- load_runs
        SELECT r.seq, r.run, r.state, r.reason_created, r.reason_resolved, r.ended_by, r.scheduled, r.started, r.resolved,
               r.taken_until, r.worker_group, r.worker_id
        FROM runs r WHERE r.seq = ANY($1) ORDER BY r.seq, r.run"#,
        seqs
    )
    .fetch_all(conn)
    .await?;
    for row in rows {
        let seq = row.seq;
        history.entry(seq).or_default().push(ended_run(row)?);
    }
    Ok(history)
}

/// Returns the definition as JSON text, and the current priority.
pub async fn find_definition_and_priority(
    conn: &mut PgConnection,
    id: Uuid,
) -> Result<Option<(String, Priority)>, sqlx::Error> {
    let row = sqlx::query!(
        "-- find_definition_and_priority
        SELECT d.definition, t.priority FROM tasks t JOIN task_definitions d ON d.seq = t.seq WHERE t.id = $1",
        id
    )
    .fetch_optional(conn)
    .await?;
    let Some(row) = row else { return Ok(None) };
    Ok(Some((row.definition, Row { table: "tasks", task: id }.priority(row.priority)?)))
}

/// Returns the original definition as JSON text.
pub async fn find_definition(conn: &mut PgConnection, id: Uuid) -> Result<Option<String>, sqlx::Error> {
    sqlx::query_scalar!(
        "-- find_definition\nSELECT d.definition FROM tasks t JOIN task_definitions d ON d.seq = t.seq WHERE t.id = $1",
        id
    )
    .fetch_optional(conn)
    .await
}

/// Returns definitions by id, up to `bytes_max`, and at least one.
pub async fn list_definitions(
    conn: &mut PgConnection,
    ids: &[Uuid],
    bytes_max: i64,
) -> Result<Vec<(Uuid, String)>, sqlx::Error> {
    let rows = sqlx::query!(
        "-- list_definitions
        SELECT x.id, d.definition
        FROM (SELECT t.id, t.seq, sum(octet_length(d.definition)) OVER (ORDER BY t.id)
                                  - octet_length(d.definition) AS before
              FROM unnest($1::uuid[]) AS i(id) JOIN tasks t ON t.id = i.id JOIN task_definitions d ON d.seq = t.seq) x
        JOIN task_definitions d ON d.seq = x.seq
        WHERE x.before < $2 ORDER BY x.id",
        ids,
        bytes_max
    )
    .fetch_all(conn)
    .await?;
    Ok(rows.into_iter().map(|row| (row.id, row.definition)).collect())
}

/// Filters `ids` to existing tasks, in order.
pub async fn list_existing(conn: &mut PgConnection, ids: &[Uuid]) -> Result<Vec<Uuid>, sqlx::Error> {
    sqlx::query_scalar!(
        "-- list_existing
        SELECT t.id FROM unnest($1::uuid[]) AS i(id) JOIN tasks t ON t.id = i.id ORDER BY t.id",
        ids
    )
    .fetch_all(conn)
    .await
}

fn decode(row: TaskRow, mut ended: Vec<EndedRun>) -> Result<Loaded, Undecodable> {
    let columns = Row { table: "tasks", task: row.id };
    let last = match (row.last_run, row.scheduled, row.reason_created) {
        (None, ..) => Last::Unscheduled,
        (Some(run), Some(scheduled), Some(reason)) if row.state == State::Unresolved.code() => {
            let open = columns.open_run(run, reason, scheduled)?;
            // Drop runs that ended after the first statement.
            ended.retain(|earlier| earlier.run.run < open.run);
            match tenancy(row.worker_group, row.worker_id, row.started, row.taken_until) {
                Some(tenancy) => Last::Running(open, tenancy),
                None => Last::Pending(open),
            }
        }
        (Some(run), ..) => {
            // Drop runs that a rerun has added since.
            let last = columns.run(run)?;
            ended.retain(|earlier| earlier.run.run <= last);
            Last::Ended
        }
    };
    let queue = parse_name(&row.queue).map_err(|_| Undecodable::queue(row.id))?;
    Ok(Loaded {
        requeues: columns.retries(row.requeues)?,
        free_runs: columns.retries(row.free_runs)?,
        now: row.now,
        task: task_columns!(row).task("tasks", queue, last, ended)?,
    })
}

fn tenancy(
    worker_group: Option<String>,
    worker_id: Option<String>,
    started: Option<DateTime<Utc>>,
    taken_until: Option<DateTime<Utc>>,
) -> Option<Tenancy> {
    Some(Tenancy { worker_group: worker_group?, worker_id: worker_id?, started: started?, taken_until: taken_until? })
}

fn ended_run(row: RunRow) -> Result<EndedRun, Undecodable> {
    let columns = Row { table: "runs", task: Uuid::from_u64_pair(0, row.seq.cast_unsigned()) };
    Ok(EndedRun {
        run: columns.open_run(row.run, row.reason_created, row.scheduled)?,
        state: columns.state(row.state)?,
        reason: columns.reason_resolved(row.reason_resolved)?,
        ended_by: columns.ended_by(row.ended_by)?,
        resolved: row.resolved,
        tenancy: tenancy(row.worker_group, row.worker_id, row.started, row.taken_until),
    })
}

/// Locks the row of a task, waiting.
pub async fn lock(conn: &mut PgConnection, id: Uuid) -> Result<(), sqlx::Error> {
    sqlx::query!("-- lock_task\nSELECT FROM tasks WHERE id = $1 FOR UPDATE", id).execute(conn).await?;
    Ok(())
}

/// Locks the rows of tasks in the order of their ids, waiting.
pub async fn lock_all(conn: &mut PgConnection, ids: &[Uuid]) -> Result<(), sqlx::Error> {
    sqlx::query!("-- lock_tasks\nSELECT FROM tasks WHERE id = ANY($1) ORDER BY id FOR UPDATE", ids)
        .execute(conn)
        .await?;
    Ok(())
}

pub async fn lock_in_queue(conn: &mut PgConnection, id: Uuid) -> Result<Option<i32>, sqlx::Error> {
    sqlx::query_scalar!("-- lock_task\nSELECT queue FROM tasks WHERE id = $1 FOR UPDATE", id).fetch_optional(conn).await
}

pub async fn list_resolved(conn: &mut PgConnection, ids: &[Uuid]) -> Result<Vec<Uuid>, sqlx::Error> {
    sqlx::query_scalar!(
        "-- list_resolved
        SELECT t.id FROM unnest($1::uuid[]) AS i(id) JOIN tasks t ON t.id = i.id WHERE t.state > 1 /* State: resolved */",
        ids
    )
    .fetch_all(conn)
    .await
}

pub async fn was_resolved(conn: &mut PgConnection, id: Uuid) -> Result<bool, sqlx::Error> {
    let resolved = sqlx::query_scalar!(
        r#"-- was_resolved
        SELECT (state > 1 /* State: resolved */ OR resolved_before) AS "resolved!" FROM tasks WHERE id = $1"#,
        id
    )
    .fetch_optional(conn)
    .await?;
    Ok(resolved.unwrap_or_default())
}
