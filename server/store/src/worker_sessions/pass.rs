//! Queries on many sessions, for passes and waiting requests.

use chrono::{DateTime, TimeDelta, Utc};
use sqlx::{Connection, PgConnection};
use tenure_api::states::SessionEnd;
use tenure_domain::session::{CLOCK_EVERY, ENDED_KEPT, OUTAGE, STRAYS_EXPECTED, STRAYS_LOOKED_FOR};

use super::read_end;
use crate::admission::lock_runs_of;
#[cfg(feature = "test-util")]
use crate::breakage::{Breakage, is_on};

/// Filters `epochs` to ended sessions, with the cause. Missing sessions count as expired.
pub async fn list_ended(conn: &mut PgConnection, epochs: &[i64]) -> Result<Vec<(i64, SessionEnd)>, sqlx::Error> {
    let rows = sqlx::query!(
        r#"-- list_ended_sessions
        SELECT i.epoch AS "epoch!", COALESCE(s.end_reason, 1 /* SessionEnd::Expired */::smallint) AS "end_reason!"
        FROM unnest($1::bigint[]) AS i(epoch)
        LEFT JOIN LATERAL (SELECT s.epoch, s.end_reason FROM worker_sessions s WHERE s.epoch = i.epoch LIMIT 1) s ON true
        WHERE s.epoch IS NULL OR s.end_reason IS NOT NULL"#,
        epochs
    )
    .fetch_all(conn)
    .await?;
    rows.into_iter().map(|row| Ok((row.epoch, read_end(row.end_reason)?))).collect()
}

/// Columns that may have changed since the renewal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StillLive {
    pub epoch: i64,
    pub until: DateTime<Utc>,
    pub policy_version: i64,
}

pub async fn list_live(conn: &mut PgConnection, epochs: &[i64]) -> Result<Vec<StillLive>, sqlx::Error> {
    sqlx::query_as!(
        StillLive,
        r#"-- list_live_sessions
        SELECT s.epoch, s.until,
               -- The queue may be lost after a failover.
               COALESCE((SELECT q.policy_version FROM task_queues q WHERE q.id = s.queue), 0 /* count */) AS "policy_version!"
        FROM unnest($1::bigint[]) AS i(epoch)
        CROSS JOIN LATERAL (
            SELECT s.epoch, s.until, s.queue FROM worker_sessions s WHERE s.epoch = i.epoch AND s.ended IS NULL LIMIT 1) s"#,
        epochs
    )
    .fetch_all(conn)
    .await
}

/// The minimum that every pass reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Glance {
    pub now: DateTime<Utc>,
    /// True if a session ended within [`STRAYS_EXPECTED`].
    pub ended_recently: bool,
}

/// Reads no live session.
pub async fn glance(conn: &mut PgConnection) -> Result<Glance, sqlx::Error> {
    // The order forces the index, from its newest end.
    sqlx::query_as!(
        Glance,
        r#"-- glance_at_sessions
        SELECT db_now.now AS "now!",
               EXISTS (SELECT FROM (SELECT FROM worker_sessions
                                    WHERE ended > db_now.now - make_interval(secs => $1 /* STRAYS_EXPECTED */)
                                    ORDER BY ended DESC LIMIT 1) recent) AS "ended_recently!"
        FROM db_now"#,
        STRAYS_EXPECTED.as_seconds_f64()
    )
    .fetch_one(conn)
    .await
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Expiring {
    pub epoch: i64,
    pub until: DateTime<Utc>,
}

/// Lists live sessions that expire by this date, earliest first. Reads all live sessions.
pub async fn list_expiring(
    conn: &mut PgConnection,
    by: DateTime<Utc>,
    limit: i64,
) -> Result<Vec<Expiring>, sqlx::Error> {
    sqlx::query_as!(
        Expiring,
        "-- list_expiring_sessions
        SELECT epoch, until FROM worker_sessions WHERE ended IS NULL AND until <= $1 ORDER BY until LIMIT $2",
        by,
        limit
    )
    .fetch_all(conn)
    .await
}

/// True if a session is live, or ended within [`STRAYS_LOOKED_FOR`].
pub async fn any_recent(conn: &mut PgConnection) -> Result<bool, sqlx::Error> {
    // The order forces the indexes; otherwise the planner may scan ended sessions.
    sqlx::query_scalar!(
        r#"-- any_recent_session
        SELECT EXISTS (SELECT FROM (SELECT FROM worker_sessions WHERE ended IS NULL
                                    ORDER BY queue, worker_group, worker_id LIMIT 1) live)
            OR EXISTS (SELECT FROM (SELECT FROM worker_sessions
                                    WHERE ended > (SELECT now FROM db_now) - make_interval(secs => $1 /* STRAYS_LOOKED_FOR */)
                                    ORDER BY ended DESC LIMIT 1) recent) AS "any!""#,
        STRAYS_LOOKED_FOR.as_seconds_f64()
    )
    .fetch_one(conn)
    .await
}

/// Lists sessions that ended within this time and hold claims committed after their end.
pub async fn list_strays(conn: &mut PgConnection, within: TimeDelta) -> Result<Vec<(i64, SessionEnd)>, sqlx::Error> {
    #[cfg(feature = "test-util")]
    if is_on(Breakage::LeakSession) {
        return Ok(Vec::new());
    }
    let rows = sqlx::query!(
        r#"-- list_strays
        SELECT s.epoch, s.end_reason AS "end_reason!" FROM worker_sessions s
        CROSS JOIN LATERAL (
            (SELECT FROM claims c WHERE c.session = s.epoch LIMIT 1)
            UNION ALL
            (SELECT FROM pending p WHERE p.session = s.epoch AND p.hold = 3 /* Hold::Assigned */ LIMIT 1)
            LIMIT 1
        ) held
        WHERE s.ended > (SELECT now FROM db_now) - make_interval(secs => $1 /* within */)"#,
        within.as_seconds_f64()
    )
    .fetch_all(conn)
    .await?;
    rows.into_iter().map(|row| Ok((row.epoch, read_end(row.end_reason)?))).collect()
}

/// Updates the session clock, in real time, if it is older than [`CLOCK_EVERY`]. If it is older
/// than [`OUTAGE`], extends all live sessions in the same transaction. Returns their number.
pub async fn tick_clock(conn: &mut PgConnection) -> Result<u64, sqlx::Error> {
    // A future time predates a clock change, and is ignored.
    let fresh = sqlx::query_scalar!(
        r#"-- read_session_clock
        SELECT at BETWEEN clock_timestamp() - make_interval(secs => $1 /* CLOCK_EVERY */) AND clock_timestamp() AS "fresh!"
        FROM session_clock"#,
        CLOCK_EVERY.as_seconds_f64()
    )
    .fetch_optional(&mut *conn)
    .await?;
    match fresh {
        Some(true) => Ok(0),
        Some(false) => set_clock(conn).await,
        None => {
            sqlx::query!(
                "-- start_session_clock\nINSERT INTO session_clock (at) VALUES (clock_timestamp()) ON CONFLICT DO NOTHING"
            )
            .execute(conn)
            .await?;
            Ok(0)
        }
    }
}

async fn set_clock(conn: &mut PgConnection) -> Result<u64, sqlx::Error> {
    let mut transaction = conn.begin().await?;
    // Another server that has the lock does the same.
    let clock = sqlx::query!(
        r#"-- lock_session_clock
        WITH clock AS MATERIALIZED (SELECT clock_timestamp() AS now)
        SELECT clock.now AS "now!", extract(epoch FROM clock.now - s.at)::float8 AS "age!"
        FROM session_clock s, clock FOR UPDATE OF s SKIP LOCKED"#
    )
    .fetch_optional(&mut *transaction)
    .await?;
    let Some(clock) = clock else { return Ok(0) };
    if (0.0..=CLOCK_EVERY.as_seconds_f64()).contains(&clock.age) {
        return Ok(0);
    }
    let extended = if clock.age > OUTAGE.as_seconds_f64() { extend(&mut transaction).await? } else { 0 };
    // The judged time, not the time of this statement: the next pass finds an outage in between.
    sqlx::query!("-- set_session_clock\nUPDATE session_clock SET at = $1", clock.now)
        .execute(&mut *transaction)
        .await?;
    transaction.commit().await?;
    Ok(extended)
}

/// Extends live sessions, and the accept times of their runs, as if renewed and given now. Omits
/// those started or renewed within the outage time, which had a server, such as the first session
/// after a long pause. Locks sessions, then tasks, waiting, then runs, like all others.
async fn extend(transaction: &mut PgConnection) -> Result<u64, sqlx::Error> {
    let extended = sqlx::query!(
        "-- extend_sessions
        UPDATE worker_sessions s SET until = db_now.now + make_interval(secs => s.ttl), extended = true
        FROM db_now
        WHERE s.ended IS NULL AND s.until < db_now.now + make_interval(secs => s.ttl - $1::float8 /* OUTAGE */)",
        OUTAGE.as_seconds_f64()
    )
    .execute(&mut *transaction)
    .await?;
    extend_accept_times(transaction).await?;
    Ok(extended.rows_affected())
}

/// Runs could not be accepted either.
async fn extend_accept_times(transaction: &mut PgConnection) -> Result<(), sqlx::Error> {
    let tasks = sqlx::query_scalar!(
        "-- lock_extended_tasks
        SELECT t.id FROM tasks t
        WHERE t.id = ANY(ARRAY(
            SELECT p.id FROM worker_sessions s JOIN task_queues q ON q.id = s.queue
            JOIN pending p ON p.session = s.epoch AND p.hold = 3 /* Hold::Assigned */
            WHERE s.ended IS NULL AND q.accept_time IS NOT NULL
              AND p.held_until < (SELECT now FROM db_now) + make_interval(secs => q.accept_time - $1::float8 /* OUTAGE */)))
        ORDER BY t.id FOR UPDATE",
        OUTAGE.as_seconds_f64()
    )
    .fetch_all(&mut *transaction)
    .await?;
    let runs = lock_runs_of(transaction, &tasks).await?;
    if runs.is_empty() {
        return Ok(());
    }
    sqlx::query!(
        "-- extend_accept_times
        UPDATE pending p SET held_until = LEAST(p.deadline, db_now.now + make_interval(secs => q.accept_time))
        FROM task_queues q, db_now
        WHERE p.seq = ANY($1) AND q.id = p.queue AND q.accept_time IS NOT NULL
          AND p.held_until < db_now.now + make_interval(secs => q.accept_time - $2::float8 /* OUTAGE */)",
        &runs,
        OUTAGE.as_seconds_f64()
    )
    .execute(transaction)
    .await?;
    Ok(())
}

/// Purges sessions that ended a day ago, and their inboxes. Uses arrays, because PostgreSQL 18 may
/// plan a join with the whole table instead of the limited list.
pub async fn purge(conn: &mut PgConnection, limit: i64) -> Result<u64, sqlx::Error> {
    let purged = sqlx::query!(
        "-- purge_sessions
        WITH gone AS MATERIALIZED (
            SELECT epoch FROM worker_sessions
            WHERE ended <= (SELECT now FROM db_now) - make_interval(secs => $2 /* ENDED_KEPT */)
            ORDER BY ended LIMIT $1 FOR UPDATE SKIP LOCKED
        ),
        emptied AS (DELETE FROM session_inbox WHERE epoch = ANY(ARRAY(SELECT epoch FROM gone))),
        turns AS (DELETE FROM session_turns WHERE epoch = ANY(ARRAY(SELECT epoch FROM gone)))
        DELETE FROM worker_sessions WHERE epoch = ANY(ARRAY(SELECT epoch FROM gone))",
        limit,
        ENDED_KEPT.as_seconds_f64()
    )
    .execute(conn)
    .await?;
    Ok(purged.rows_affected())
}

pub async fn count_live(conn: &mut PgConnection) -> Result<i64, sqlx::Error> {
    sqlx::query_scalar!(
        "-- count_live_sessions\nSELECT count(*) AS \"count!\" FROM worker_sessions WHERE ended IS NULL"
    )
    .fetch_one(conn)
    .await
}
