//! Ends tasks past their deadline.

use chrono::{DateTime, Utc};
use sqlx::{Connection, PgConnection};
use tenure_api::states::ReasonResolved;
use uuid::Uuid;

use super::due::{self, Ctid};
use super::failure::{Class, classify};
use super::session::avoid_scans;
use super::transitions::end_open::{self, Ended};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Slice {
    pub found: usize,
    pub dealt_with: usize,
    /// Tasks that ended. The others were resolved before.
    pub ended: Ended,
}

/// Handling of runs that other transactions have locked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LockedRuns {
    Waited,
    /// Skip their tasks.
    Left,
}

/// Ends up to `limit` unresolved tasks past their deadline; no deadline is left before `from`. A
/// run that stays locked blocks only its own task.
pub async fn end_overdue(conn: &mut PgConnection, from: DateTime<Utc>, limit: i64) -> Result<Slice, sqlx::Error> {
    match end_slice(conn, from, limit, LockedRuns::Waited).await {
        Err(error) if classify(&error) == Class::Contention => end_slice(conn, from, limit, LockedRuns::Left).await,
        ended => ended,
    }
}

async fn end_slice(
    conn: &mut PgConnection,
    from: DateTime<Utc>,
    limit: i64,
    runs: LockedRuns,
) -> Result<Slice, sqlx::Error> {
    let mut transaction = conn.begin().await?;
    avoid_scans(&mut transaction).await?;
    let due = list_overdue(&mut transaction, from, limit).await?;
    if due.places.is_empty() {
        return Ok(Slice { found: 0, dealt_with: 0, ended: Ended::default() });
    }
    let found = due.ids.len() + due.idle;
    // Tasks before runs, like all writers. Locked tasks are left to the next pass.
    let mut locked: Vec<Uuid> = sqlx::query_scalar!(
        "-- lock_overdue\nSELECT id FROM tasks WHERE id = ANY($1) ORDER BY id FOR UPDATE SKIP LOCKED",
        &due.ids
    )
    .fetch_all(&mut *transaction)
    .await?;
    if runs == LockedRuns::Left {
        locked = lock_free_runs(&mut transaction, &locked).await?;
    }
    let ended = end_open::end_open(&mut transaction, &locked, ReasonResolved::DeadlineExceeded).await?;
    // Tasks locked by others stay.
    let dealt_with = if locked.is_empty() && !due.ids.is_empty() {
        0
    } else {
        due::refile_deadlines(&mut transaction, &due.places, &locked).await? + due.idle
    };
    transaction.commit().await?;
    Ok(Slice { found, dealt_with, ended })
}

/// Filters these locked tasks to those whose open run is not locked, or which have none. Locks
/// these runs.
async fn lock_free_runs(transaction: &mut PgConnection, tasks: &[Uuid]) -> Result<Vec<Uuid>, sqlx::Error> {
    sqlx::query_scalar!(
        "-- lock_free_runs
        WITH waiting AS MATERIALIZED (
            SELECT p.seq FROM tasks t JOIN pending p ON p.seq = t.seq WHERE t.id = ANY($1) FOR UPDATE OF p SKIP LOCKED
        ),
        held AS MATERIALIZED (
            SELECT c.seq FROM tasks t JOIN claims c ON c.seq = t.seq WHERE t.id = ANY($1) FOR UPDATE OF c SKIP LOCKED
        )
        SELECT t.id FROM tasks t
        WHERE t.id = ANY($1)
          AND (t.state <> 1 /* State::Unresolved */ OR t.seq IN (SELECT seq FROM waiting) OR t.seq IN (SELECT seq FROM held))",
        tasks
    )
    .fetch_all(transaction)
    .await
}

/// Overdue tasks, and their rows of `due`, which are locked.
struct Overdue {
    ids: Vec<Uuid>,
    places: Vec<Ctid>,
    /// Number of rows without an overdue task: the earliest was purged.
    idle: usize,
}

async fn list_overdue(transaction: &mut PgConnection, from: DateTime<Utc>, limit: i64) -> Result<Overdue, sqlx::Error> {
    let rows = sqlx::query!(
        r#"-- list_overdue
        -- The time is read first: a volatile function in the condition would be called for each row, without the index.
        WITH db_now AS MATERIALIZED (SELECT now FROM db_now),
        due_rows AS MATERIALIZED (
            SELECT x.ctid AS place, x.seqs FROM due x
            WHERE x.deadline >= $2 AND x.deadline <= (SELECT now FROM db_now)
            ORDER BY x.deadline LIMIT $1 FOR UPDATE SKIP LOCKED
        )
        SELECT r.place::text AS "place!", d.id AS "id?" FROM due_rows r
        LEFT JOIN LATERAL (
            SELECT d.id FROM unnest(r.seqs) AS s(seq) JOIN task_definitions d ON d.seq = s.seq
            WHERE d.deadline <= (SELECT now FROM db_now)
        ) d ON true
        LIMIT $1"#,
        limit,
        from
    )
    .fetch_all(transaction)
    .await?;
    let mut places: Vec<Ctid> = rows.iter().map(|row| Ctid(row.place.clone())).collect();
    places.dedup();
    let idle = rows.iter().filter(|row| row.id.is_none()).count();
    Ok(Overdue { ids: rows.into_iter().filter_map(|row| row.id).collect(), places, idle })
}

/// True if a deadline has passed and was not handled, even if its task is locked, as by an
/// uncommitted pass.
pub async fn is_due(conn: &mut PgConnection) -> Result<bool, sqlx::Error> {
    sqlx::query_scalar!(
        r#"-- is_overdue
        WITH db_now AS MATERIALIZED (SELECT now FROM db_now)
        SELECT EXISTS (SELECT FROM due WHERE deadline <= (SELECT now FROM db_now)) AS "due!""#
    )
    .fetch_one(conn)
    .await
}

/// True if a deadline passes within this time; none is left before `from`.
pub async fn is_near(
    conn: &mut PgConnection,
    from: DateTime<Utc>,
    within: std::time::Duration,
) -> Result<bool, sqlx::Error> {
    sqlx::query_scalar!(
        r#"-- deadline_is_near
        WITH db_now AS MATERIALIZED (SELECT now FROM db_now)
        SELECT EXISTS (
            SELECT FROM due x
            WHERE x.deadline >= $2 AND x.deadline <= (SELECT now FROM db_now) + make_interval(secs => $1)
        ) AS "near!""#,
        within.as_secs_f64(),
        from
    )
    .fetch_one(conn)
    .await
}
