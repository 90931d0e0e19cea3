//! [`super::alone`] for a single task, without lists, sorts and aggregates, which would cost more
//! than the rows that it writes.

use tenure_domain::create::CREATED_DRIFT;

use super::{Member, StoredRow};
use crate::hot::statement::{Statement, statement};

pub(super) fn statement(member: &Member<'_>) -> Statement {
    let Member { task, queue, .. } = *member;
    statement!(
        StoredRow,
        r#"-- create_task_of_one
        WITH db_now AS MATERIALIZED (SELECT now FROM db_now),
        -- A server may remember a key that a failover has lost.
        known AS MATERIALIZED (
            SELECT q.id AS queue, COALESCE(q.traits, q.delay, q.key_by) IS NOT NULL AS ruled
            FROM task_queues q, db_now
            WHERE q.id = $2::int /* queue */ AND q.name = $3::text /* name */
              AND $8::timestamptz /* created */ BETWEEN db_now.now - make_interval(secs => $15 /* CREATED_DRIFT */)
                                                    AND db_now.now + make_interval(secs => $15)
              AND $9::timestamptz /* deadline */ BETWEEN db_now.now
                                                     AND db_now.now + make_interval(secs => $16 /* deadline_limit + CREATED_DRIFT */)
        ),
        valid AS MATERIALIZED (
            SELECT queue, ruled,
                   CASE WHEN ruled THEN NULL
                        WHEN (lock_free_groups(ARRAY[$1::uuid /* id */], true))[1 /* count */] THEN nextval('task_seq') END AS seq
            FROM known
        ),
        new_tasks AS (
            INSERT INTO tasks (id, seq, queue, task_group, state, priority, retries_left, run, lone)
            SELECT $1::uuid, seq, queue, $1::uuid, 1 /* State::Unresolved */, $4::smallint /* priority */, $5::smallint /* retries */,
                   0 /* run */, true
            FROM valid WHERE seq IS NOT NULL
        ),
        definitions AS (
            INSERT INTO task_definitions
                (seq, id, scheduler, project, task_group, deadline, expires, scopes, routes, tags, definition)
            SELECT seq, $1::uuid, $6::text /* scheduler */, $7::text /* project */, $1::uuid, $9::timestamptz,
                   $10::timestamptz /* expires */, $11::text /* scopes */, $12::text /* routes */, $13::text /* tags */,
                   $14::text /* definition */
            FROM valid WHERE seq IS NOT NULL
        ),
        deadlines AS (INSERT INTO due (deadline, seqs) SELECT $9::timestamptz, ARRAY[seq] FROM valid WHERE seq IS NOT NULL),
        runs_pending AS (
            INSERT INTO pending (seq, id, run, queue, priority, deadline, scheduled, reason_created, retries_left, bytes)
            SELECT seq, $1::uuid, 0 /* run */, queue, $4::smallint, $9::timestamptz, db_now.now, 0 /* ReasonCreated::Scheduled */,
                   $5::smallint, octet_length($14::text)
            FROM valid, db_now WHERE seq IS NOT NULL
        ),
        emitted AS (
            INSERT INTO outbox_new (at, events, kinds, seqs, runs, retries_left, priorities, queues, pending, claimed)
            SELECT db_now.now, 2 /* count */, ARRAY[1 /* Kind::Created */]::smallint[], ARRAY[seq], ARRAY[0 /* run */]::smallint[],
                   ARRAY[$5::smallint], ARRAY[$4::smallint], ARRAY[queue], ARRAY[1 /* count */], ARRAY[0 /* count */]
            FROM valid, db_now WHERE seq IS NOT NULL
        )
        SELECT 1 /* count */::bigint AS "n!", valid.seq AS "seq?", false AS "waits!", false AS "held!", valid.ruled AS "ruled!",
               db_now.now AS "now!"
        FROM valid, db_now"#,
        task.id.uuid(),
        queue,
        task.queue.as_str(),
        task.priority.code(),
        task.retries.cast_signed(),
        task.scheduler.as_str(),
        task.project.as_str(),
        task.created,
        task.deadline,
        task.expires,
        &task.scopes_text,
        &task.routes_text,
        &task.tags,
        &task.definition,
        CREATED_DRIFT.as_seconds_f64(),
        member.seconds_ahead(),
    )
}
