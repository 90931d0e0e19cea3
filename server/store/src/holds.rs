//! Runs that are held: what holds one, and whether a hold ends soon. [`super::transitions::end_hold`] ends them.
//!
//! A statement that looks for held runs by something else than their place says `hold IS NOT DISTINCT FROM`. From `hold = 1` the
//! planner infers that `pending_held` has them all, and with statistics from before there were any it would rather read that index
//! from end to end than look up one row.

use chrono::{DateTime, Utc};
use sqlx::{Connection, PgConnection};
use uuid::Uuid;

use super::session::plan_as_hot;

/// Whether a task's pending run is held.
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

/// Whether a delay is over that was not ended, even if its row is locked, such as by a pass that has not committed.
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

/// Whether a delay ends within this time; none is over before `from`.
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
