//! `resolve_run_for_good` for a single report, without lists and aggregates, which would cost more
//! than the rows that it writes.

use super::{Member, Resolved};
use crate::hot::statement::{Statement, statement};
use tenure_domain::work::Holder;

pub(super) fn statement(member: &Member<'_>, holder: Option<&Holder>) -> Statement {
    let outcome = member.ending.outcome();
    statement!(
        Resolved,
        r#"-- resolve_run_of_one
        WITH db_now AS MATERIALIZED (SELECT now FROM db_now),
        locked AS MATERIALIZED (
            SELECT t.id, t.priority, t.retries_left, t.lone, c.seq, c.run, c.queue, c.scheduled, c.reason_created, c.started,
                   c.taken_until, c.worker_group, c.worker_id
            FROM tasks t JOIN claims c ON c.seq BETWEEN t.seq AND t.seq AND c.run = t.run
            WHERE t.id = $1::uuid AND t.state = 1 /* State::Unresolved */ AND t.run = $2::smallint
              AND ($5::text /* queue of the holder, empty without one */ = ''
                   OR (c.worker_group = $6::text /* its group */ AND c.worker_id = $7::text /* its id */
                       AND (SELECT q.name FROM task_queues q WHERE q.id = c.queue) = $5::text))
            FOR UPDATE OF t, c SKIP LOCKED
        ),
        released AS (DELETE FROM claims c WHERE c.seq = ANY (ARRAY(SELECT l.seq FROM locked l))),
        history AS (
            INSERT INTO runs (seq, run, state, reason_created, reason_resolved, scheduled, started, resolved,
                              taken_until, worker_group, worker_id)
            SELECT seq, run, $3::smallint, reason_created, $4::smallint, scheduled, started, db_now.now, taken_until, worker_group,
                   worker_id
            FROM locked, db_now
        ),
        moved AS (UPDATE tasks t SET state = $3::smallint, losses = 0 /* count */ FROM locked l WHERE t.id = l.id),
        emitted AS (
            INSERT INTO outbox_new (at, events, kinds, seqs, runs, retries_left, priorities, queues, pending, claimed)
            -- The end of a lone task is that of its group.
            SELECT db_now.now, cardinality(k.kinds), k.kinds, array_fill(seq, ARRAY[cardinality(k.kinds)]),
                   array_fill(run, ARRAY[cardinality(k.kinds)]), array_fill(retries_left, ARRAY[cardinality(k.kinds)]),
                   array_fill(priority, ARRAY[cardinality(k.kinds)]), ARRAY[queue], ARRAY[0 /* count */], ARRAY[-1 /* count */]
            FROM locked, db_now,
                 LATERAL (SELECT CASE WHEN lone THEN ARRAY[$3::smallint, 10 /* Kind::GroupResolved */::smallint]
                                      ELSE ARRAY[$3::smallint] END AS kinds) k
        )
        SELECT 1 /* count */::bigint AS "n!", l.seq, l.id, l.run, $3::smallint AS "state!", $4::smallint AS "reason_resolved!",
               NULL::smallint AS ended_by, l.queue, l.priority, l.scheduled, l.reason_created, l.started, l.taken_until,
               db_now.now AS "now!", l.worker_group, l.worker_id, l.retries_left, NULL::smallint AS next_reason, d.scheduler,
               d.project, d.task_group, d.deadline, d.expires, NULL::bigint AS session
        FROM locked l JOIN task_definitions d ON d.seq = l.seq, db_now"#,
        member.id,
        member.run,
        outcome.state().code(),
        outcome.reason().code(),
        holder.map_or("", |holder| holder.queue.as_str()),
        holder.map_or("", |holder| holder.group.as_str()),
        holder.map_or("", |holder| holder.id.as_str()),
    )
}
