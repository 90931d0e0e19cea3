//! Schedules dependents in the transaction that ends the last task they require.

use tenure_api::states::ReasonCreated;
use uuid::Uuid;

use super::Scheduled;
use crate::hot::statement::{Statement, statement};

/// Maximum unsatisfied edges read per statement. The dependency pass settles the others.
pub const DEPENDENTS_MAX: i64 = 200;

/// Returns the statement that follows the end of these tasks. It marks the edges of a dependent only
/// if it schedules it, and schedules it only if all its required tasks have ended.
///
/// Two transactions that end the last two required tasks of a dependent do not see each other. Then
/// neither marks an edge, and the dependency pass, which reads both ends, finds both edges.
#[expect(clippy::too_many_lines, reason = "one statement, one clause a line")]
#[must_use]
pub fn schedule_dependents(ended: &[Uuid]) -> Statement {
    statement!(
        Scheduled,
        r#"-- schedule_dependents
        WITH db_now AS MATERIALIZED (SELECT now FROM db_now),
        dependents AS MATERIALIZED (
            SELECT DISTINCT e.dependent AS id FROM (
                SELECT e.dependent FROM unnest($1::uuid[] /* ended */) AS i(id)
                JOIN tasks r ON r.id = i.id AND r.state > 1 /* State: resolved */
                CROSS JOIN LATERAL (
                    SELECT e.dependent FROM dependencies e
                    WHERE e.required = r.seq AND NOT e.satisfied AND (e.any_end OR r.state = 3 /* State::Completed */)
                    LIMIT $2
                ) e
                LIMIT $2
            ) e
        ),
        locked AS MATERIALIZED (
            SELECT t.id, t.seq, t.queue, t.priority, t.retries_left
            FROM tasks t
            WHERE t.id = ANY (ARRAY(SELECT n.id FROM dependents n)) AND t.state = 0 /* State::Unscheduled */
              -- A subquery for each row, so that the planner never reads all edges. The condition `<= false` does not fit the
              -- index of unsatisfied edges, which is by the required task. An edge of an end that the pass has not marked
              -- yet is satisfied, too; an edge of a purged task is not.
              AND (SELECT true FROM dependencies e
                   WHERE e.dependent = t.id AND e.satisfied <= false
                     AND (SELECT r.state = 3 /* State::Completed */ OR (e.any_end AND r.state > 1 /* State: resolved */)
                          FROM task_definitions d JOIN tasks r ON r.id = d.id WHERE d.seq = e.required) IS NOT TRUE
                   LIMIT 1) IS NULL
            FOR UPDATE OF t SKIP LOCKED
        ),
        -- After their dependents, as everywhere. Only a purge locks edges without their dependents.
        edges AS MATERIALIZED (
            SELECT e.required, e.dependent FROM locked l
            CROSS JOIN LATERAL (
                SELECT e.required, e.dependent FROM dependencies e
                WHERE e.dependent = l.id AND e.satisfied <= false FOR UPDATE SKIP LOCKED
            ) e
        ),
        marked AS (
            UPDATE dependencies e SET satisfied = true
            WHERE e.dependent = ANY (ARRAY(SELECT l.id FROM locked l)) AND e.satisfied <= false
              AND ((e.required, e.dependent) IN (SELECT x.required, x.dependent FROM edges x)) IS TRUE
        ),
        ready AS MATERIALIZED (
            SELECT l.id, l.seq, l.queue, l.priority, l.retries_left, d.deadline,
                   octet_length(d.definition) AS bytes,
                   run_traits(q.traits, o.delivery, o.complete_time, o.retry_first, o.retry_most, o.retry_failed) AS traits,
                   CASE WHEN start.ready > db_now.now AND d.deadline > db_now.now THEN LEAST(start.ready, d.deadline) END
                       AS held_until,
                   admission_key_id(l.queue, run_key(q.key_by, o.key, d.project, d.scheduler, d.task_group)) AS key_id
            FROM locked l
            -- With a limit, the planner never reads all definitions.
            CROSS JOIN LATERAL (SELECT x.* FROM task_definitions x WHERE x.seq = l.seq LIMIT 1) d
            JOIN task_queues q ON q.id = l.queue LEFT JOIN task_options o ON o.seq = l.seq
            CROSS JOIN db_now
            CROSS JOIN LATERAL (SELECT COALESCE(o.not_before, db_now.now + make_interval(
                                           secs => NULLIF(COALESCE(o.delay, q.delay), 0 /* count */))) AS ready) start
            ORDER BY l.seq
        ),
        moved AS (UPDATE tasks t SET state = 1 /* State::Unresolved */, run = 0 /* run */ FROM ready WHERE t.id = ready.id),
        runs_pending AS (
            INSERT INTO pending (seq, id, run, queue, priority, deadline, scheduled, reason_created, retries_left, traits, key_id,
                                 hold, bytes, held_until, reserved_until, hidden_until)
            SELECT seq, id, 0 /* run */, queue, priority, deadline, db_now.now, $3::smallint, retries_left, traits, key_id,
                   CASE WHEN held_until IS NOT NULL THEN 1 /* Hold::Delay */ WHEN key_id IS NOT NULL THEN 2 /* Hold::Waiting */ END,
                   bytes, held_until, held.always, held.always
            FROM ready, db_now,
                 LATERAL (SELECT CASE WHEN held_until IS NOT NULL OR key_id IS NOT NULL THEN timestamptz '3000-01-01' END AS always) held
            ORDER BY seq
        ),
        counts AS MATERIALIZED (
            SELECT array_agg(queue) AS queues, array_agg(n - delayed) AS pending, array_agg(0 /* count */) AS claimed,
                   CASE WHEN sum(delayed) > 0 /* count */ THEN array_agg(delayed) END AS delayed,
                   CASE WHEN sum(waiting) > 0 /* count */ THEN array_agg(waiting) END AS waiting
            FROM (SELECT queue, count(*)::int AS n, count(held_until)::int AS delayed,
                         (count(key_id) FILTER (WHERE held_until IS NULL))::int AS waiting
                  FROM ready GROUP BY queue) c
        ),
        emitted AS (
            INSERT INTO outbox_new (at, events, kinds, seqs, runs, retries_left, priorities, queues, pending, claimed, delayed,
                                    waiting)
            SELECT min(db_now.now), count(*), array_agg(8 /* Kind::Scheduled */::smallint), array_agg(seq),
                   array_agg(0 /* run */::smallint), array_agg(retries_left), array_agg(priority),
                   min(counts.queues), min(counts.pending), min(counts.claimed), min(counts.delayed), min(counts.waiting)
            FROM ready, db_now, counts HAVING count(*) > 0
        )
        SELECT queue AS "queue!", (held_until IS NOT NULL OR key_id IS NOT NULL) AS "held!" FROM ready"#,
        ended,
        DEPENDENTS_MAX,
        ReasonCreated::Scheduled.code(),
    )
}
