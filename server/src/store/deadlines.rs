//! Ending tasks whose deadline has passed.

use sqlx::{Connection, PgConnection};
use uuid::Uuid;

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

/// Ends up to `limit` tasks that are past their deadline and not resolved.
pub async fn end_overdue(conn: &mut PgConnection, limit: i64) -> Result<Slice, sqlx::Error> {
    let mut transaction = conn.begin().await?;
    let due = sqlx::query!(
        "-- list_overdue
        -- The moment stands apart: a volatile function in the condition would be called for each row, without the index.
        WITH moment AS MATERIALIZED (SELECT now FROM moment)
        SELECT x.id, x.deadline FROM task_times x WHERE x.deadline <= (SELECT now FROM moment)
        ORDER BY x.deadline LIMIT $1 FOR UPDATE SKIP LOCKED",
        limit
    )
    .fetch_all(&mut *transaction)
    .await?;
    if due.is_empty() {
        return Ok(Slice { found: 0, dealt_with: 0, ended: 0 });
    }
    let latest = due.iter().filter_map(|row| row.deadline).max();
    // Tasks first, as every writer does; whoever holds one keeps it until the next pass.
    let ids: Vec<Uuid> = due.iter().map(|row| row.id).collect();
    let locked: Vec<Uuid> = sqlx::query_scalar!(
        "-- lock_overdue\nSELECT id FROM tasks WHERE id = ANY($1) ORDER BY id FOR UPDATE SKIP LOCKED",
        &ids
    )
    .fetch_all(&mut *transaction)
    .await?;
    let ended = end(&mut transaction, &locked).await?;
    // A run that was claimed while we waited for its row is still unresolved: it keeps its deadline for the next pass.
    let dealt_with = sqlx::query!(
        "-- forget_deadlines
        UPDATE task_times x SET deadline = NULL FROM tasks t
        WHERE x.deadline <= $1 AND x.id = ANY($2) AND t.id = x.id AND t.state > 1",
        latest,
        &locked
    )
    .execute(&mut *transaction)
    .await?
    .rows_affected();
    transaction.commit().await?;
    Ok(Slice { found: due.len(), dealt_with: usize::try_from(dealt_with).unwrap_or(usize::MAX), ended })
}

/// Whether some deadline has passed that was not dealt with, whoever may hold it: another pass that has not committed, too.
pub async fn is_due(conn: &mut PgConnection) -> Result<bool, sqlx::Error> {
    sqlx::query_scalar!(
        r#"-- is_overdue
        WITH moment AS MATERIALIZED (SELECT now FROM moment)
        SELECT EXISTS (SELECT FROM task_times WHERE deadline <= (SELECT now FROM moment)) AS "due!""#
    )
    .fetch_one(conn)
    .await
}

/// Ends these tasks, whose rows are locked, as deadline-exceeded: from pending, from running, from unscheduled.
async fn end(transaction: &mut PgConnection, locked: &[Uuid]) -> Result<usize, sqlx::Error> {
    let ended = sqlx::query_scalar!(
        r#"-- end_overdue
        WITH moment AS MATERIALIZED (SELECT now FROM moment),
        open AS MATERIALIZED (SELECT id, seq, queue, run, state, retries_left FROM tasks WHERE id = ANY($1) AND state < 2),
        unqueued AS (
            DELETE FROM pending p USING open WHERE p.seq = open.seq
            RETURNING p.seq, p.run, p.queue, p.scheduled, p.reason_created
        ),
        released AS (
            DELETE FROM claims c USING open WHERE c.seq = open.seq
            RETURNING c.seq, c.run, c.queue, c.scheduled, c.reason_created, c.started, c.taken_until, c.worker_group,
                      c.worker_id
        ),
        ended AS (
            SELECT seq, run, queue, scheduled, reason_created, NULL::timestamptz AS started,
                   NULL::timestamptz AS taken_until, NULL::text AS worker_group, NULL::text AS worker_id,
                   1 AS pending, 0 AS claimed
            FROM unqueued
            UNION ALL
            SELECT seq, run, queue, scheduled, reason_created, started, taken_until, worker_group, worker_id, 0, 1
            FROM released
            UNION ALL
            -- A task that never had a run gets one, made only to carry the exception (reason 4).
            SELECT seq, 0, queue, moment.now, 4, NULL, NULL, NULL, NULL, 0, 0 FROM open, moment WHERE open.state = 0
        ),
        history AS (
            INSERT INTO runs (seq, run, state, reason_created, reason_resolved, scheduled, started, resolved,
                              taken_until, worker_group, worker_id)
            SELECT seq, run, 5, reason_created, 2, scheduled, started, moment.now, taken_until, worker_group, worker_id
            FROM ended, moment
        ),
        moved AS (
            UPDATE tasks t SET state = 5, run = ended.run FROM ended, open WHERE open.seq = ended.seq AND t.id = open.id
        ),
        counted AS (
            INSERT INTO counter_deltas (queue, pending, claimed)
            SELECT queue, -sum(pending), -sum(claimed) FROM ended GROUP BY queue
        ),
        told AS (
            INSERT INTO outbox (at, kinds, seqs, runs, retries_left)
            SELECT min(moment.now), array_agg(5::smallint), array_agg(ended.seq), array_agg(ended.run::smallint),
                   array_agg(open.retries_left)
            FROM ended JOIN open ON open.seq = ended.seq, moment HAVING count(*) > 0
            RETURNING id, cardinality(seqs) AS events
        ),
        told_of AS (INSERT INTO outbox_new (id, events) SELECT id, events FROM told)
        SELECT count(*) AS "n!" FROM ended"#,
        locked
    )
    .fetch_one(transaction)
    .await?;
    Ok(usize::try_from(ended).unwrap_or_default())
}
