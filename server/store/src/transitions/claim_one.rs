//! Claims one named run, in a transaction that has locked its task. The cold counterpart of
//! [`super::claim`].

use sqlx::PgConnection;
use uuid::Uuid;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Claimed {
    /// None if the run was ready, not assigned.
    pub key: Option<i64>,
}

/// Claims one named run before its deadline, unless its queue is paused. The run must be ready in a
/// queue without limits, or assigned to this session. The caller has locked the task.
pub async fn claim_one(
    conn: &mut PgConnection,
    id: Uuid,
    run: i16,
    worker_group: &str,
    worker_id: &str,
    lease: std::time::Duration,
    session: Option<i64>,
) -> Result<Option<Claimed>, sqlx::Error> {
    let key = sqlx::query_scalar!(
        r#"-- claim_task
        WITH db_now AS MATERIALIZED (SELECT now FROM db_now),
        deleted AS (
            DELETE FROM pending p USING tasks t, task_queues q, db_now
            WHERE t.id = $1 AND p.seq = t.seq AND p.run = $2 AND (p.hold IS NULL AND q.key_by IS NULL
                   OR p.hold IS NOT DISTINCT FROM 3 /* Hold::Assigned */ AND p.session = $6)
              AND p.deadline > db_now.now
              AND q.id = t.queue AND q.paused IS NULL
            RETURNING p.*, make_interval(secs => COALESCE(q.claim_timeout, $5)) AS lease,
                      make_interval(secs => q.complete_time) AS complete_time
        ),
        inserted AS (
            INSERT INTO claims (seq, id, run, queue, ord, waited, deadline, scheduled, reason_created, retries_left, traits, key_id,
                                started, taken_until, complete_by, worker_group, worker_id, batch, session)
            SELECT seq, id, run, queue, ord, waited, deadline, scheduled, reason_created, retries_left, traits, key_id, db_now.now,
                   db_now.now + lease,
                   CASE WHEN traits & 3 /* Traits::DELIVERY */ = 2 /* Delivery::AtMostOnce */ THEN NULL
                        WHEN traits & 8 /* Traits::OWN_COMPLETE_TIME */ <> 0 /* count */ THEN db_now.now + make_interval(secs => (
                            SELECT NULLIF(o.complete_time, 0 /* count */) FROM task_options o WHERE o.seq = deleted.seq))
                        ELSE db_now.now + complete_time END,
                   $3, $4, gen_random_uuid(), $6 /* session */
            FROM deleted, db_now
        ),
        emitted AS (
            INSERT INTO outbox_new
                (at, taken_until, events, kinds, seqs, runs, retries_left, priorities, queues, pending, claimed)
            SELECT db_now.now, db_now.now + lease, 1 /* count */, ARRAY[2 /* Kind::Claimed */]::smallint[],
                   ARRAY[seq], ARRAY[run], ARRAY[retries_left], ARRAY[priority], ARRAY[queue], ARRAY[-1 /* count */],
                   ARRAY[1 /* count */]
            FROM deleted, db_now
        )
        SELECT key_id FROM deleted"#,
        id,
        run,
        worker_group,
        worker_id,
        lease.as_secs_f64(),
        session
    )
    .fetch_optional(conn)
    .await?;
    Ok(key.map(|key| Claimed { key }))
}
