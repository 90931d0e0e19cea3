//! Pending to running, for one named run: the cold counterpart of [`super::claim`], in a transaction that has locked
//! the task.

use sqlx::PgConnection;
use uuid::Uuid;

/// Claims one named run, if it is pending, ready or assigned to this session, before its deadline, and in a queue that is not paused. The task's row is
/// locked by the caller.
pub async fn claim_one(
    conn: &mut PgConnection,
    id: Uuid,
    run: i16,
    worker_group: &str,
    worker_id: &str,
    lease: std::time::Duration,
    session: Option<i64>,
) -> Result<bool, sqlx::Error> {
    let claimed = sqlx::query_scalar!(
        r#"-- claim_task
        WITH db_now AS MATERIALIZED (SELECT now FROM db_now),
        deleted AS (
            DELETE FROM pending p USING tasks t, task_queues q, db_now
            WHERE t.id = $1 AND p.seq = t.seq AND p.run = $2 AND (p.hold IS NULL OR p.hold IS NOT DISTINCT FROM 3 /* Hold::Assigned */ AND p.session = $6)
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
        SELECT count(*) > 0 AS "claimed!" FROM deleted"#,
        id,
        run,
        worker_group,
        worker_id,
        lease.as_secs_f64(),
        session
    )
    .fetch_one(conn)
    .await?;
    Ok(claimed)
}
