//! The clock for all times in the database, and the offset of the manual clock.

use chrono::{DateTime, Utc};
use sqlx::PgConnection;

use super::advisory;

pub async fn get_now(conn: &mut PgConnection) -> Result<DateTime<Utc>, sqlx::Error> {
    sqlx::query_scalar!(
        r#"-- get_now
        SELECT tenure_now() AS "now!""#
    )
    .fetch_one(conn)
    .await
}

pub async fn get_real_now(conn: &mut PgConnection) -> Result<DateTime<Utc>, sqlx::Error> {
    sqlx::query_scalar!(
        r#"-- get_real_now
        SELECT clock_timestamp() AS "now!""#
    )
    .fetch_one(conn)
    .await
}

/// Advances the manual clock and returns its time.
pub async fn advance(conn: &mut PgConnection, seconds: f64) -> Result<DateTime<Utc>, sqlx::Error> {
    sqlx::query!(
        "-- advance_clock
        WITH turn AS MATERIALIZED (SELECT pg_advisory_xact_lock($2))
        UPDATE clock SET clock_offset = clock_offset + make_interval(secs => $1) FROM turn",
        seconds,
        advisory::CLOCK
    )
    .execute(&mut *conn)
    .await?;
    get_now(conn).await
}

pub async fn get_offset(conn: &mut PgConnection) -> Result<f64, sqlx::Error> {
    sqlx::query_scalar!(
        r#"-- get_offset
        SELECT extract(epoch FROM clock_offset)::float8 AS "seconds!" FROM clock"#
    )
    .fetch_one(conn)
    .await
}
