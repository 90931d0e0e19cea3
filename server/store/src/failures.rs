//! The table `failed_runs`: failed runs by queue and time, copied from the event log.

use std::time::Duration;

use sqlx::{Connection, PgConnection};

use super::log_readers::Part;
use super::session::plan_as_hot;

/// Copies the failed runs of a part of the log, and returns their number. Runs of purged tasks are
/// omitted.
///
/// A run blocks if its task ended with it and other tasks need that task to be completed. Tasks
/// that are created later are not counted.
///
/// The last run of a task is a dead letter if the queue's policy lists them now, until the task gets
/// another run.
pub async fn note(transaction: &mut PgConnection, part: Part) -> Result<u64, sqlx::Error> {
    // Statistics do not show how few of the rows have failures.
    plan_as_hot(transaction).await?;
    let noted = sqlx::query!(
        "-- note_failed_runs
        WITH part AS MATERIALIZED (
            SELECT x.kinds, x.seqs, x.runs FROM outbox_order o JOIN outbox x ON x.id = o.outbox_id
            WHERE o.first > $1 ORDER BY o.first LIMIT $2
        ),
        ended AS MATERIALIZED (
            SELECT e.seq, e.run, bool_or(e.kind IN (4, 5) /* Kind: resolved badly */) AS final
            FROM part CROSS JOIN LATERAL unnest(part.kinds, part.seqs, part.runs) AS e(kind, seq, run)
            WHERE part.kinds && '{4,5,6,15}' /* Kind: of failed runs */ AND e.kind IN (4, 5, 6, 15) /* Kind: of failed runs */
            GROUP BY e.seq, e.run
        ),
        -- Tasks that were run again.
        revived AS (
            UPDATE failed_runs f SET dead = false
            FROM part CROSS JOIN LATERAL unnest(part.kinds, part.seqs, part.runs) AS e(kind, seq, run)
            WHERE (SELECT true FROM failed_runs x WHERE x.dead LIMIT 1) AND part.kinds && '{8}' /* Kind::Scheduled */
              AND e.kind = 8 /* Kind::Scheduled */ AND f.seq = e.seq AND f.dead AND f.run < e.run
        ),
        -- A subquery for each row, so that the planner never reads a whole table.
        failed AS MATERIALIZED (
            SELECT e.seq, e.run, e.final, r.state, r.reason_resolved, r.ended_by, r.resolved, r.worker_group, r.worker_id,
                   t.queue,
                   t.run = e.run AND t.state IN (4, 5) /* State: resolved badly */
                   AND r.reason_resolved <> 3 /* ReasonResolved::Canceled */
                   AND (SELECT q.dead_letters FROM task_queues q WHERE q.id = t.queue) AS dead,
                   (SELECT (x.failure::json ->> 'exitCode')::int FROM results x WHERE x.seq = e.seq AND x.run = e.run) AS exit_code,
                   e.final AND EXISTS (
                       SELECT FROM dependencies w WHERE w.required = e.seq AND NOT w.satisfied AND NOT w.any_end
                   ) AS blocks
            FROM ended e JOIN runs r ON r.seq = e.seq AND r.run = e.run
            CROSS JOIN LATERAL (
                SELECT t.queue, t.run, t.state FROM task_definitions d JOIN tasks t ON t.id = d.id WHERE d.seq = e.seq LIMIT 1
            ) t
        )
        INSERT INTO failed_runs (queue, resolved, seq, run, state, reason, ended_by, exit_code, worker_group, worker_id, final, blocks,
                                 dead)
        SELECT f.queue, f.resolved, f.seq, f.run, f.state, f.reason_resolved, f.ended_by, f.exit_code, f.worker_group,
               f.worker_id, f.final, f.blocks, COALESCE(f.dead, false)
        FROM failed f
        ON CONFLICT DO NOTHING",
        part.after,
        part.rows
    )
    .execute(transaction)
    .await?
    .rows_affected();
    Ok(noted)
}

/// Deletes up to `limit` rows older than `kept`, the oldest first, except dead letters.
pub async fn purge(conn: &mut PgConnection, kept: Duration, limit: i64) -> Result<u64, sqlx::Error> {
    let mut transaction = conn.begin().await?;
    plan_as_hot(&mut transaction).await?;
    let purged = sqlx::query!(
        "-- purge_failed_runs
        WITH old AS MATERIALIZED (
            SELECT f.queue, f.resolved, f.seq, f.run FROM failed_runs f
            WHERE NOT f.dead AND f.resolved <= (SELECT now FROM db_now) - make_interval(secs => $1)
            ORDER BY f.resolved LIMIT $2
        )
        DELETE FROM failed_runs f USING old
        WHERE f.queue = old.queue AND f.resolved = old.resolved AND f.seq = old.seq AND f.run = old.run AND NOT f.dead",
        kept.as_secs_f64(),
        limit
    )
    .execute(&mut *transaction)
    .await?
    .rows_affected();
    transaction.commit().await?;
    Ok(purged)
}
