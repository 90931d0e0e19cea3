//! Unscheduled to pending: the dependencies of a task are satisfied, or scheduleTask runs it without waiting for them.

use sqlx::PgConnection;
use tenure_api::states::ReasonCreated;
use uuid::Uuid;

/// Which tasks may be scheduled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    /// Those for which no dependency is unsatisfied.
    Ready,
    /// All.
    Always,
}

/// Schedules those of these tasks that are unscheduled; their rows were locked by an earlier statement of this
/// transaction. Answers the queues that have work now, one for each task that was scheduled.
pub async fn schedule(conn: &mut PgConnection, locked: &[Uuid], when: When) -> Result<Vec<i32>, sqlx::Error> {
    sqlx::query_scalar!(
        "-- schedule_tasks
        WITH db_now AS MATERIALIZED (SELECT now FROM db_now),
        ready AS MATERIALIZED (
            SELECT t.id, t.seq, t.queue, t.priority, t.retries_left, d.deadline
            FROM unnest($1::uuid[]) AS i(id) JOIN tasks t ON t.id = i.id JOIN task_definitions d ON d.seq = t.seq
            WHERE t.state = 0 /* State::Unscheduled */
              AND ($2 OR NOT EXISTS (SELECT FROM dependencies e WHERE e.dependent = t.id AND NOT e.satisfied))
            ORDER BY t.seq
        ),
        moved AS (UPDATE tasks t SET state = 1 /* State::Unresolved */, run = 0 /* run */ FROM ready WHERE t.id = ready.id),
        runs_pending AS (
            INSERT INTO pending (seq, id, run, queue, priority, deadline, scheduled, reason_created, retries_left)
            SELECT seq, id, 0 /* run */, queue, priority, deadline, db_now.now, $3, retries_left
            FROM ready, db_now ORDER BY seq
        ),
        counts AS MATERIALIZED (
            SELECT array_agg(queue) AS queues, array_agg(n) AS pending, array_agg(0 /* count */) AS claimed
            FROM (SELECT queue, count(*)::int AS n FROM ready GROUP BY queue) c
        ),
        emitted AS (
            INSERT INTO outbox_new (at, events, kinds, seqs, runs, retries_left, priorities, queues, pending, claimed)
            SELECT min(db_now.now), count(*), array_agg(8 /* Kind::Scheduled */::smallint), array_agg(seq),
                   array_agg(0 /* run */::smallint), array_agg(retries_left), array_agg(priority),
                   min(counts.queues), min(counts.pending), min(counts.claimed)
            FROM ready, db_now, counts HAVING count(*) > 0
        )
        SELECT queue FROM ready",
        locked,
        when == When::Always,
        ReasonCreated::Scheduled.code()
    )
    .fetch_all(conn)
    .await
}
