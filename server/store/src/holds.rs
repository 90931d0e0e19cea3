//! Held runs. [`super::transitions::end_hold`] ends holds.
//!
//! Statements that find held runs other than by position use `hold IS NOT DISTINCT FROM`. From
//! `hold = 1` the planner infers that `pending_held` has them all. With statistics from before
//! there were any, it would scan that index instead of looking up one row.

use chrono::{DateTime, Utc};
use sqlx::{Connection, PgConnection};
use uuid::Uuid;

use super::session::plan_as_hot;

pub async fn is_held(conn: &mut PgConnection, task: Uuid) -> Result<bool, sqlx::Error> {
    sqlx::query_scalar!(
        r#"-- is_held
        -- Not a condition, for which the planner would read all held runs where its statistics know of none.
        SELECT COALESCE((SELECT p.hold IS NOT NULL FROM tasks t JOIN pending p ON p.seq = t.seq WHERE t.id = $1), false) AS "held!""#,
        task
    )
    .fetch_one(conn)
    .await
}

/// True if a delay is over but was not ended, even if its row is locked, as by an uncommitted pass.
pub async fn is_due(conn: &mut PgConnection) -> Result<bool, sqlx::Error> {
    let mut transaction = conn.begin().await?;
    plan_as_hot(&mut transaction).await?;
    let due = sqlx::query_scalar!(
        r#"-- is_hold_due
        WITH db_now AS MATERIALIZED (SELECT now FROM db_now)
        SELECT EXISTS (
            SELECT FROM pending
            WHERE held_until <= (SELECT now FROM db_now) AND deadline > (SELECT now FROM db_now)
              AND hold IS NOT DISTINCT FROM 1 /* Hold::Delay */
        ) AS "due!""#
    )
    .fetch_one(&mut *transaction)
    .await?;
    transaction.commit().await?;
    Ok(due)
}

/// True if a delay ends within this time; none is left before `from`.
pub async fn is_near(
    conn: &mut PgConnection,
    from: DateTime<Utc>,
    within: std::time::Duration,
) -> Result<bool, sqlx::Error> {
    sqlx::query_scalar!(
        r#"-- hold_is_near
        WITH db_now AS MATERIALIZED (SELECT now FROM db_now)
        SELECT EXISTS (
            SELECT FROM pending
            WHERE held_until >= $2 AND held_until <= (SELECT now FROM db_now) + make_interval(secs => $1)
        ) AS "near!""#,
        within.as_secs_f64(),
        from
    )
    .fetch_one(conn)
    .await
}
