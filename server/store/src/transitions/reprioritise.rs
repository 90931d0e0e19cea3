//! Changes priorities. A pending run keeps its position in time.

use sqlx::PgConnection;
use uuid::Uuid;

use crate::queues;

/// Changes the priority of tasks that were never resolved and are before their deadline. Returns
/// the changed tasks and their queues. The caller has locked the tasks.
pub async fn reprioritise(
    transaction: &mut PgConnection,
    locked: &[Uuid],
    priority: i16,
) -> Result<Vec<(Uuid, i32)>, sqlx::Error> {
    queues::lock_of_tasks(transaction, locked).await?;
    // Waits for runs that are being claimed: the next statement finds their claims, and the event
    // has the end of the lease.
    sqlx::query!(
        "-- lock_pending_of_tasks
        SELECT FROM pending p WHERE p.seq = ANY(ARRAY(SELECT t.seq FROM tasks t WHERE t.id = ANY($1)))
        ORDER BY p.seq FOR UPDATE",
        locked
    )
    .execute(&mut *transaction)
    .await?;
    let rows = sqlx::query!(
        r#"-- change_priority
        WITH db_now AS MATERIALIZED (SELECT now FROM db_now),
        selected AS MATERIALIZED (
            SELECT t.id, t.seq, t.queue, t.priority AS old, t.state, COALESCE(t.run, 0)::smallint AS run, t.retries_left
            FROM tasks t JOIN task_definitions d ON d.seq = t.seq
            WHERE t.id = ANY($1) AND t.state < 2 /* State: open */ AND NOT t.resolved_before AND t.priority <> $2
              AND d.deadline > (SELECT now FROM db_now)
        ),
        moved AS (UPDATE tasks t SET priority = $2 FROM selected s WHERE t.id = s.id),
        -- The one place where a pending run changes its priority. Its message moves to another queue of messages: what a
        -- poller holds of it is void, and the new one is visible there. A run that is claimed meanwhile is not affected, and one
        -- that is held stays so: no poller has its message, and hold and reservation end together.
        requeued AS (
            UPDATE pending p SET priority = $2, message = p.message + 1, receipt = NULL, dequeued = 0 /* count */,
                hidden_until = CASE WHEN p.hold IS NOT NULL THEN p.hidden_until END,
                reserved_until = CASE WHEN p.hold IS NOT NULL THEN p.reserved_until END
            FROM selected s WHERE p.seq = s.seq RETURNING p.seq, p.queue, p.hold, p.key_id
        ),
        -- A ready run may have become less urgent than one of its key that waits. One that waits is announced by its row.
        announced AS (
            INSERT INTO admission_work (queue, key_id)
            SELECT DISTINCT queue, key_id FROM requeued WHERE hold IS NULL AND key_id IS NOT NULL
        ),
        -- A retained place may be below a low-water mark of the new priority; a run that is held gets a new one.
        raised_epochs AS (
            UPDATE task_queues q SET cursor_epoch = cursor_epoch + 1
            WHERE q.id IN (SELECT queue FROM requeued WHERE hold IS NULL)
        ),
        emitted AS (
            INSERT INTO outbox_new (at, events, kinds, seqs, runs, retries_left, priorities, details)
            SELECT min(db_now.now), count(*), array_agg(9 /* Kind::Reprioritised */::smallint), array_agg(s.seq), array_agg(s.run),
                   array_agg(s.retries_left), array_agg($2::smallint),
                   array_agg(json_build_object('old', s.old, 'new', $2::smallint, 'place',
                       CASE WHEN s.state = 0 /* State::Unscheduled */ THEN 0 /* TaskState::Unscheduled */
                            WHEN r.seq IS NULL THEN 2 /* TaskState::Running */ ELSE 1 /* TaskState::Pending */ END,
                       'takenUntil', c.taken_until)::text)
            FROM selected s LEFT JOIN requeued r ON r.seq = s.seq LEFT JOIN claims c ON c.seq = s.seq, db_now
            HAVING count(*) > 0
        )
        SELECT s.id, s.queue FROM selected s ORDER BY s.id"#,
        locked,
        priority
    )
    .fetch_all(transaction)
    .await?;
    Ok(rows.into_iter().map(|row| (row.id, row.queue)).collect())
}

pub async fn publish_group(
    conn: &mut PgConnection,
    group: Uuid,
    priority: i16,
    affected: i64,
) -> Result<(), sqlx::Error> {
    sqlx::query!(
        "-- tell_group_priority
        INSERT INTO outbox_new (at, events, kinds, seqs, runs, retries_left, details)
        SELECT db_now.now, 1 /* count */, '{12}' /* Kind::GroupReprioritised */, '{0}' /* seq */, '{0}' /* run */,
               '{0}' /* count */,
               ARRAY[json_build_object('id', g.id, 'scheduler', g.scheduler, 'expires', g.expires,
                                       'new', $2::smallint, 'affected', $3::bigint)::text]
        FROM known_groups g, db_now WHERE g.id = $1",
        group,
        priority,
        affected
    )
    .execute(conn)
    .await?;
    Ok(())
}
