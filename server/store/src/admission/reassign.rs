//! Takes back the runs of a lost scheduler, slice by slice, so that its successor gives them out
//! again. Runs given out since have higher positions. Processed runs are not found again, so the
//! pass needs no state.

use chrono::{DateTime, Utc};
use sqlx::PgConnection;
use uuid::Uuid;

use super::Leader;
use crate::session::idle_briefly;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reassigning {
    pub queue: i32,
    /// When the scheduler was replaced.
    pub before: DateTime<Utc>,
    /// Last position given out before.
    pub ord: i64,
}

/// An unfinished run given out before the replacement.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GivenOut {
    pub seq: i64,
    pub id: Uuid,
    pub run: i16,
    pub accepted: bool,
    /// Future end of its time limit.
    pub until: Option<DateTime<Utc>>,
}

/// Locks a queue, paused or not, whose runs must be given out again, in this term of its scheduler.
pub async fn lock_reassigning(
    transaction: &mut PgConnection,
    queue: i32,
    leader: Leader,
) -> Result<Option<Reassigning>, sqlx::Error> {
    idle_briefly(transaction).await?;
    let row = sqlx::query!(
        r#"-- lock_reassigning
        SELECT reassign_before AS "before!", reassign_ord AS "ord!" FROM admission_queues
        WHERE queue = $1 AND server = $2 AND term = $3 AND reassign_before IS NOT NULL AND reassign_ord IS NOT NULL
        FOR UPDATE SKIP LOCKED"#,
        queue,
        leader.server,
        leader.term
    )
    .fetch_optional(transaction)
    .await?;
    Ok(row.map(|row| Reassigning { queue, before: row.before, ord: row.ord }))
}

/// Lists the first runs to give out again, without locks. Omits at-most-once runs, and runs claimed
/// without a session before the queue assigned runs. A continuing claim is listed until its time
/// limit is set.
pub async fn list_given_out(
    transaction: &mut PgConnection,
    of: Reassigning,
    limit: i64,
) -> Result<Vec<GivenOut>, sqlx::Error> {
    sqlx::query_as!(
        GivenOut,
        r#"-- list_given_out
        WITH db_now AS MATERIALIZED (SELECT now FROM db_now)
        SELECT g.seq AS "seq!", g.id AS "id!", g.run AS "run!", g.accepted AS "accepted!", g.until
        FROM worker_sessions s JOIN task_queues q ON q.id = s.queue
        CROSS JOIN LATERAL (
            (SELECT p.seq, p.id, p.run, p.ord, false AS accepted, NULL::timestamptz AS until FROM pending p
             WHERE p.session = s.epoch AND p.hold = 3 /* Hold::Assigned */ AND p.ord <= $2 /* ord */
               AND COALESCE(p.traits & 3 /* Traits::DELIVERY */, 0 /* Delivery::Retries */) <> 2 /* Delivery::AtMostOnce */
             ORDER BY p.ord LIMIT $3)
            UNION ALL
            (SELECT c.seq, c.id, c.run, c.ord, true, u.until FROM claims c
             CROSS JOIN LATERAL (
                SELECT $4::timestamptz /* before */ + make_interval(secs =>
                    CASE WHEN c.traits & 8 /* Traits::OWN_COMPLETE_TIME */ <> 0 /* count */ THEN (
                             SELECT NULLIF(o.complete_time, 0 /* count */) FROM task_options o WHERE o.seq = c.seq)
                         ELSE q.complete_time END) AS at
             ) own
             -- What should have ended by now ends at once.
             CROSS JOIN LATERAL (SELECT CASE WHEN own.at > (SELECT now FROM db_now) THEN own.at END AS until) u
             WHERE c.session = s.epoch AND c.ord <= $2 AND (u.until IS NULL OR c.complete_by IS DISTINCT FROM u.until)
               AND COALESCE(c.traits & 3 /* Traits::DELIVERY */, 0 /* Delivery::Retries */) <> 2 /* Delivery::AtMostOnce */
             ORDER BY c.ord LIMIT $3)
        ) g
        WHERE s.queue = $1 AND s.ended IS NULL
        ORDER BY g.ord LIMIT $3"#,
        of.queue,
        of.ord,
        limit,
        of.before
    )
    .fetch_all(transaction)
    .await
}

/// Locks unlocked tasks whose runs are still assigned, and returns their `seq`.
pub async fn lock_still_assigned(transaction: &mut PgConnection, tasks: &[Uuid]) -> Result<Vec<i64>, sqlx::Error> {
    let locked = sqlx::query_scalar!(
        "-- lock_assigned_tasks\nSELECT id FROM tasks WHERE id = ANY($1) ORDER BY id FOR UPDATE SKIP LOCKED",
        tasks
    )
    .fetch_all(&mut *transaction)
    .await?;
    sqlx::query_scalar!(
        "-- list_still_assigned
        SELECT p.seq FROM tasks t JOIN pending p ON p.seq = t.seq
        WHERE t.id = ANY($1) AND p.hold IS NOT DISTINCT FROM 3 /* Hold::Assigned */ ORDER BY p.seq",
        &locked
    )
    .fetch_all(transaction)
    .await
}

pub async fn end_reassigning(transaction: &mut PgConnection, queue: i32) -> Result<(), sqlx::Error> {
    sqlx::query!(
        "-- end_reassigning
        UPDATE admission_queues SET reassign_before = NULL, reassign_ord = NULL WHERE queue = $1",
        queue
    )
    .execute(transaction)
    .await?;
    Ok(())
}
