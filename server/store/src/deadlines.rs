//! Ending tasks whose deadline has passed.

use chrono::{DateTime, Utc};
use sqlx::{Connection, PgConnection};
use tenure_api::states::ReasonResolved;
use uuid::Uuid;

use super::transitions::end_open;

/// What became of a slice of overdue tasks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slice {
    /// Deadlines that have passed and were not dealt with.
    pub found: usize,
    /// Those that are now.
    pub dealt_with: usize,
    /// Tasks that ended by it; the others were resolved before.
    pub ended: usize,
}

/// Ends up to `limit` tasks that are past their deadline and not resolved; no deadline is left before `from`.
pub async fn end_overdue(conn: &mut PgConnection, from: DateTime<Utc>, limit: i64) -> Result<Slice, sqlx::Error> {
    let mut transaction = conn.begin().await?;
    let due = sqlx::query!(
        r#"-- list_overdue
        -- The time is read first: a volatile function in the condition would be called for each row, without the index.
        WITH db_now AS MATERIALIZED (SELECT now FROM db_now)
        SELECT x.id, x.ctid::text AS "place!" FROM task_times x
        WHERE x.deadline >= $2 AND x.deadline <= (SELECT now FROM db_now)
        ORDER BY x.deadline LIMIT $1 FOR UPDATE SKIP LOCKED"#,
        limit,
        from
    )
    .fetch_all(&mut *transaction)
    .await?;
    if due.is_empty() {
        return Ok(Slice { found: 0, dealt_with: 0, ended: 0 });
    }
    // Tasks first, as every writer does; one that another transaction has locked is left to the next pass.
    let ids: Vec<Uuid> = due.iter().map(|row| row.id).collect();
    // The rows are locked, so that they stay where they are.
    let places: Vec<String> = due.iter().map(|row| row.place.clone()).collect();
    let locked: Vec<Uuid> = sqlx::query_scalar!(
        "-- lock_overdue\nSELECT id FROM tasks WHERE id = ANY($1) ORDER BY id FOR UPDATE SKIP LOCKED",
        &ids
    )
    .fetch_all(&mut *transaction)
    .await?;
    let ended = end_open::end_open(&mut transaction, &locked, ReasonResolved::DeadlineExceeded).await?.len();
    // A run that was claimed while we waited for its row is still unresolved: it keeps its deadline for the next pass.
    let dealt_with = sqlx::query!(
        "-- clear_deadlines
        UPDATE task_times x SET deadline = NULL FROM tasks t
        WHERE x.ctid = ANY($1::text[]::tid[]) AND t.id = x.id AND t.id = ANY($2) AND t.state > 1 /* State: resolved */",
        &places,
        &locked
    )
    .execute(&mut *transaction)
    .await?
    .rows_affected();
    transaction.commit().await?;
    Ok(Slice { found: due.len(), dealt_with: usize::try_from(dealt_with).unwrap_or(usize::MAX), ended })
}

/// Whether some deadline has passed that was not handled, even if its task is locked, such as by a pass that has not
/// committed.
pub async fn is_due(conn: &mut PgConnection) -> Result<bool, sqlx::Error> {
    sqlx::query_scalar!(
        r#"-- is_overdue
        WITH db_now AS MATERIALIZED (SELECT now FROM db_now)
        SELECT EXISTS (SELECT FROM task_times WHERE deadline <= (SELECT now FROM db_now)) AS "due!""#
    )
    .fetch_one(conn)
    .await
}

/// Whether a deadline passes within this time; none is left before `from`.
pub async fn is_near(
    conn: &mut PgConnection,
    from: DateTime<Utc>,
    within: std::time::Duration,
) -> Result<bool, sqlx::Error> {
    sqlx::query_scalar!(
        r#"-- deadline_is_near
        WITH db_now AS MATERIALIZED (SELECT now FROM db_now)
        SELECT EXISTS (
            SELECT FROM task_times x
            WHERE x.deadline >= $2 AND x.deadline <= (SELECT now FROM db_now) + make_interval(secs => $1)
        ) AS "near!""#,
        within.as_secs_f64(),
        from
    )
    .fetch_one(conn)
    .await
}
