//! rerunTask, the only way out of a final state.

use sqlx::PgConnection;
use tenure_api::states::ReasonCreated;
use uuid::Uuid;

/// Appends a run to a resolved or unscheduled task, with new retries. Returns the queue, or none if
/// the task has an open run or waits for its unique name. The caller has locked the task.
///
/// The run is not delayed. A command that was not executed is deleted. If unsatisfied edges wait
/// for the end that is revoked, it is noted for the dependency pass.
pub async fn rerun(conn: &mut PgConnection, locked: Uuid, retries_left: i16) -> Result<Option<i32>, sqlx::Error> {
    sqlx::query_scalar!(
        "-- rerun_task
        WITH db_now AS MATERIALIZED (SELECT now FROM db_now),
        ready AS MATERIALIZED (
            SELECT t.id, t.seq, t.queue, t.priority, t.state, COALESCE(t.run + 1, 0)::smallint AS run, d.deadline,
                   run_traits(q.traits, o.delivery, o.complete_time, o.retry_first, o.retry_most, o.retry_failed) AS traits,
                   admission_key_id(t.queue, run_key(q.key_by, o.key, d.project, d.scheduler, d.task_group)) AS key_id
            FROM tasks t JOIN task_definitions d ON d.seq = t.seq JOIN task_queues q ON q.id = t.queue
            LEFT JOIN task_options o ON o.seq = t.seq
            WHERE t.id = $1 AND t.state <> 1 /* State::Unresolved */
              -- Not before its unique name is free.
              AND NOT EXISTS (SELECT FROM dependencies e WHERE e.dependent = t.id AND e.fixed AND NOT e.satisfied)
        ),
        moved AS (
            UPDATE tasks t SET state = 1 /* State::Unresolved */, run = ready.run, retries_left = $2,
                losses = 0 /* count */, resolved_before = t.resolved_before OR ready.state > 1 /* State: resolved */
            FROM ready WHERE t.id = ready.id
        ),
        -- The end counts for whatever waits for it by now. The pass may have read its event before such a task was committed, and
        -- finds it taken back when it reads of the task. What is created after this has a higher key, and waits for the next end.
        -- The states are the kinds of the events.
        noted AS (
            INSERT INTO dependency_work (seq, kind, dependents_to)
            SELECT r.seq, r.state, (SELECT last_value FROM task_seq) FROM ready r
            WHERE r.state > 1 /* State: resolved */ AND EXISTS (
                SELECT FROM dependencies e
                WHERE e.required = r.seq AND NOT e.satisfied AND (r.state = 3 /* State::Completed */ OR e.any_end))
        ),
        -- A deadline by which the task has ended was dealt with. Since it is to come, the clock was set back, and nothing else would end
        -- the task by it again.
        deadlines AS (
            INSERT INTO due (deadline, seqs)
            SELECT ready.deadline, ARRAY[ready.seq] FROM ready JOIN runs r ON r.seq = ready.seq AND r.run = ready.run - 1 /* run */
            WHERE r.reason_resolved = 2 /* ReasonResolved::DeadlineExceeded */
        ),
        -- A command for the worker of before is none for the next one. A resolved task takes none, so that this one is older.
        commands AS (
            DELETE FROM task_commands x USING ready r WHERE x.seq = r.seq AND r.state > 1 /* State: resolved */
        ),
        runs_pending AS (
            INSERT INTO pending (seq, id, run, queue, priority, deadline, scheduled, reason_created, retries_left, traits, key_id,
                                 hold, reserved_until, hidden_until)
            SELECT seq, id, run, queue, priority, deadline, db_now.now, $3, $2, traits, key_id,
                   CASE WHEN key_id IS NOT NULL THEN 2 /* Hold::Waiting */ END, held.always, held.always
            FROM ready, db_now, LATERAL (SELECT CASE WHEN key_id IS NOT NULL THEN timestamptz '3000-01-01' END AS always) held
        ),
        emitted AS (
            INSERT INTO outbox_new (at, events, kinds, seqs, runs, retries_left, priorities, queues, pending, claimed,
                                    waiting)
            SELECT db_now.now, 1 /* count */, ARRAY[8 /* Kind::Scheduled */]::smallint[], ARRAY[seq], ARRAY[run],
                   ARRAY[$2]::smallint[], ARRAY[priority], ARRAY[queue], ARRAY[1 /* count */], ARRAY[0 /* count */],
                   CASE WHEN key_id IS NOT NULL THEN ARRAY[1 /* count */] END
            FROM ready, db_now
        )
        SELECT queue FROM ready",
        locked,
        retries_left,
        ReasonCreated::Rerun.code()
    )
    .fetch_optional(conn)
    .await
}
