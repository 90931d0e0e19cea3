//! Ends sessions, and locks them against ends and renewals.

use sqlx::PgConnection;
use tenure_api::states::{Delivery, SessionEnd};
use tenure_domain::policy::terms::Traits;
use tenure_domain::session::{Identity, OUTAGE};
use uuid::Uuid;

use super::identity;
#[cfg(feature = "test-util")]
use crate::breakage::{Breakage, is_on};
use crate::decode::Row;
use crate::session::idle_briefly;

/// A locked claim of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Held {
    pub id: Uuid,
    pub run: i16,
    /// Decides the cost of its loss.
    pub delivery: Delivery,
    /// Runs of the task that ended without using a retry.
    pub free_runs: u16,
}

/// Marks a live session as ended, and locks it. This is the first statement of the ending
/// transaction, which PostgreSQL aborts after one second of idleness. With `overdue`, ends only an
/// expired session, and none if no server has scanned sessions for [`OUTAGE`]. None if nothing
/// was ended.
pub async fn end(
    transaction: &mut PgConnection,
    epoch: i64,
    by: SessionEnd,
    overdue: bool,
) -> Result<Option<Identity>, sqlx::Error> {
    idle_briefly(&mut *transaction).await?;
    // An update alone would not wait for `FOR KEY SHARE` locks.
    let row = sqlx::query!(
        "-- end_session
        WITH db_now AS MATERIALIZED (SELECT now FROM db_now),
        locked AS MATERIALIZED (
            SELECT epoch FROM worker_sessions
            WHERE epoch = $1 AND ended IS NULL
              AND (NOT $3::boolean /* overdue */ OR until <= (SELECT now FROM db_now)
                   AND NOT EXISTS (SELECT FROM session_clock
                                   WHERE at < clock_timestamp() - make_interval(secs => $4 /* OUTAGE */)))
            FOR UPDATE
        )
        UPDATE worker_sessions s SET ended = db_now.now, end_reason = $2 /* by */
        FROM locked l, task_queues q, db_now WHERE s.epoch = l.epoch AND q.id = s.queue
        RETURNING s.id, s.epoch, q.name AS queue, s.worker_group, s.worker_id, s.ttl, s.started",
        epoch,
        by.code(),
        overdue,
        OUTAGE.as_seconds_f64()
    )
    .fetch_optional(transaction)
    .await?;
    row.map(|row| identity!(row)).transpose()
}

/// Locks the tasks of up to `limit` assigned and `limit` claimed runs of a session. Waits for
/// locks. One statement locks them in order of id, like all others that lock many tasks, to avoid
/// deadlocks.
pub async fn lock_tasks(transaction: &mut PgConnection, epoch: i64, limit: i64) -> Result<Vec<Uuid>, sqlx::Error> {
    sqlx::query_scalar!(
        "-- lock_session_tasks
        SELECT t.id FROM tasks t
        WHERE t.id = ANY(ARRAY(
            (SELECT p.id FROM pending p WHERE p.session = $1 AND p.hold = 3 /* Hold::Assigned */ ORDER BY p.ord LIMIT $2)
            UNION ALL
            (SELECT c.id FROM claims c WHERE c.session = $1 ORDER BY c.ord LIMIT $2)))
        ORDER BY t.id FOR UPDATE",
        epoch,
        limit
    )
    .fetch_all(transaction)
    .await
}

/// Locks and returns the claims that a session still holds on these locked tasks, in order of
/// `seq`. Waits for locks.
pub async fn lock_held(transaction: &mut PgConnection, epoch: i64, tasks: &[Uuid]) -> Result<Vec<Held>, sqlx::Error> {
    #[cfg(feature = "test-util")]
    if is_on(Breakage::LeakSession) {
        return Ok(Vec::new());
    }
    if tasks.is_empty() {
        return Ok(Vec::new());
    }
    let claims = sqlx::query!(
        r#"-- lock_session_claims
        SELECT c.id, c.run, COALESCE(c.traits & $3 /* Traits::DELIVERY */, 0)::smallint AS "delivery!", t.free_runs
        FROM claims c JOIN tasks t ON t.id = c.id
        WHERE c.session = $1 AND t.id = ANY($2)
        ORDER BY c.seq FOR UPDATE OF c"#,
        epoch,
        tasks,
        Traits::DELIVERY
    )
    .fetch_all(transaction)
    .await?;
    claims
        .into_iter()
        .map(|claim| {
            let columns = Row { table: "claims", task: claim.id };
            let delivery = Delivery::from_code(claim.delivery);
            Ok(Held {
                id: claim.id,
                run: claim.run,
                delivery: delivery.ok_or_else(|| columns.invalid("traits", claim.delivery))?,
                free_runs: claim.free_runs.unsigned_abs(),
            })
        })
        .collect()
}

/// Last statement of an end: adds to the number of returned runs, and deletes the inbox. Returns
/// the number of remaining claims.
pub async fn close(transaction: &mut PgConnection, epoch: i64, returned: i64) -> Result<i64, sqlx::Error> {
    let held = sqlx::query_scalar!(
        r#"-- close_session
        WITH emptied AS (DELETE FROM session_inbox WHERE epoch = $1)
        UPDATE worker_sessions SET returned = returned + $2 WHERE epoch = $1
        RETURNING (SELECT count(*) FROM claims c WHERE c.session = $1)
            + (SELECT count(*) FROM pending p WHERE p.session = $1 AND p.hold = 3 /* Hold::Assigned */) AS "held!""#,
        epoch,
        returned
    )
    .fetch_optional(transaction)
    .await?;
    Ok(held.unwrap_or_default())
}

/// Locks a session against other ends and renewals.
pub async fn lock(conn: &mut PgConnection, epoch: i64) -> Result<(), sqlx::Error> {
    sqlx::query!("-- lock_session\nSELECT FROM worker_sessions WHERE epoch = $1 FOR NO KEY UPDATE", epoch)
        .execute(conn)
        .await?;
    Ok(())
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Liveness {
    /// Live until the end of the transaction.
    Live,
    /// Ended or missing.
    Ended,
    /// Being ended.
    Locked,
}

/// Locks a live session against its end while it is given a run. Does not wait, and does not block
/// renewals.
pub async fn lock_against_end(transaction: &mut PgConnection, epoch: i64) -> Result<Liveness, sqlx::Error> {
    let locked = sqlx::query!(
        "-- share_session\nSELECT FROM worker_sessions WHERE epoch = $1 AND ended IS NULL FOR KEY SHARE SKIP LOCKED",
        epoch
    )
    .fetch_optional(&mut *transaction)
    .await?;
    if locked.is_some() {
        return Ok(Liveness::Live);
    }
    let live =
        sqlx::query!("-- is_session_live\nSELECT FROM worker_sessions WHERE epoch = $1 AND ended IS NULL", epoch)
            .fetch_optional(transaction)
            .await?;
    Ok(if live.is_some() { Liveness::Locked } else { Liveness::Ended })
}
