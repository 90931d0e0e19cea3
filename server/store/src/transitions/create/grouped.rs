//! Tasks of one group, all or none.

use tenure_domain::create::CREATED_DRIFT;

use super::{Columns, Ids, StoredRow};
use crate::due::DUE_TASKS_MAX;
use crate::hot::statement::{Statement, statement};

/// Stores tasks without options that share group, scheduler and deadline limit, or none of them.
/// It stores none if a queue has a policy, a date is invalid, a task exists, or the group is locked,
/// sealed, another scheduler's, or expires too early. Fails if another transaction has just created
/// a task.
#[expect(clippy::too_many_lines, reason = "one statement, one clause a line")]
pub(super) fn statement(columns: &Columns<'_>, ids: Ids) -> Statement {
    let group = columns.groups.first().copied().unwrap_or_default();
    let scheduler = columns.schedulers.first().copied().unwrap_or_default();
    let group_expires = columns.group_expires.iter().max().copied().unwrap_or_default();
    let first_created = columns.created.iter().min().copied().unwrap_or_default();
    let last_created = columns.created.iter().max().copied().unwrap_or_default();
    let first_deadline = columns.deadlines.iter().min().copied().unwrap_or_default();
    let last_deadline = columns.deadlines.iter().max().copied().unwrap_or_default();
    statement!(
        StoredRow,
        r#"-- create_task_in_group
        WITH db_now AS MATERIALIZED (SELECT now FROM db_now),
        -- A server may remember a key that a failover has lost.
        known_queues AS MATERIALIZED (
            SELECT array_agg(q.id ORDER BY k.n) AS ids,
                   bool_and(q.id IS NOT NULL AND COALESCE(q.traits, q.delay, q.key_by) IS NULL) AS plain
            FROM unnest($2::int[] /* keys */, $3::text[] /* names */) WITH ORDINALITY AS k(id, name, n)
            LEFT JOIN task_queues q ON q.id = k.id AND q.name = k.name
        ),
        -- Locked, so that a seal waits for the tasks. Groups that expire too early are left to create_task.
        open_group AS MATERIALIZED (
            SELECT g.id FROM task_groups g
            WHERE g.id = $15::uuid /* group */ AND g.scheduler = $16::text /* scheduler */ AND g.sealed IS NULL
              -- Not by the index of the expiry, whose range may have all groups.
              AND (g.expires >= $17::timestamptz /* group_expires */) IS TRUE
              AND (g.expires > (SELECT now FROM db_now) + interval '10 minutes') IS TRUE
            FOR NO KEY UPDATE OF g SKIP LOCKED
        ),
        -- One row if all tasks are stored, else none.
        admitted AS MATERIALIZED (
            SELECT known_queues.ids, present.existed
            FROM db_now, known_queues, (SELECT EXISTS (SELECT FROM open_group) AS existed) present
            WHERE known_queues.plain
              AND $18::timestamptz /* first created */ >= db_now.now - make_interval(secs => $22 /* CREATED_DRIFT */)
              AND $19::timestamptz /* last created */ <= db_now.now + make_interval(secs => $22)
              AND $20::timestamptz /* first deadline */ >= db_now.now
              AND $21::timestamptz /* last deadline */ <= db_now.now + make_interval(secs => $23 /* deadline_limit + CREATED_DRIFT */)
              AND NOT ($24::boolean /* given ids */ AND EXISTS (SELECT FROM tasks t WHERE t.id = ANY ($1::uuid[] /* ids */)))
              AND CASE WHEN present.existed THEN true ELSE (lock_free_groups(ARRAY[$15::uuid], false))[1 /* count */] END
        ),
        -- As in create_task_alone.
        valid AS MATERIALIZED (
            SELECT i.n, nextval('task_seq') AS seq, admitted.ids[i.queue_place] AS queue, i.id, i.priority, i.retries, i.deadline,
                   i.expires, i.project, i.scopes, i.routes, i.tags, i.definition
            FROM admitted, (
                SELECT unnest($1::uuid[]) AS id, unnest($4::int[] /* queue places */) AS queue_place,
                       unnest($5::smallint[] /* priorities */) AS priority, unnest($6::smallint[] /* retries */) AS retries,
                       unnest($7::text[] /* projects */) AS project, unnest($8::timestamptz[] /* deadlines */) AS deadline,
                       unnest($9::timestamptz[] /* expires */) AS expires, unnest($10::text[] /* scopes */) AS scopes,
                       unnest($11::text[] /* routes */) AS routes, unnest($12::text[] /* tags */) AS tags,
                       unnest($13::text[] /* definitions */) AS definition, unnest($14::bigint[] /* numbers */) AS n
            ) i
        ),
        new_group AS (
            INSERT INTO task_groups (id, scheduler, expires)
            SELECT $15::uuid, $16::text, $17::timestamptz FROM admitted WHERE NOT admitted.existed
        ),
        -- In the order of their ids, so that two statements that conflict cannot deadlock.
        new_tasks AS (
            INSERT INTO tasks (id, seq, queue, task_group, state, priority, retries_left, run, lone)
            SELECT id, seq, queue, $15::uuid, 1 /* State::Unresolved */, priority, retries, 0 /* run */, false FROM valid
            ORDER BY id
        ),
        definitions AS (
            INSERT INTO task_definitions
                (seq, id, scheduler, project, task_group, deadline, expires, scopes, routes, tags, definition)
            SELECT seq, id, $16::text, project, $15::uuid, deadline, expires, scopes, routes, tags, definition FROM valid
        ),
        deadlines AS (
            INSERT INTO due (deadline, seqs)
            SELECT min(deadline), array_agg(seq) FROM valid GROUP BY (n - 1) / $25 /* DUE_TASKS_MAX */
        ),
        runs_pending AS (
            INSERT INTO pending (seq, id, run, queue, priority, deadline, scheduled, reason_created, retries_left, bytes)
            SELECT seq, id, 0 /* run */, queue, priority, deadline, db_now.now, 0 /* ReasonCreated::Scheduled */, retries,
                   octet_length(definition)
            FROM valid, db_now ORDER BY n
        ),
        counts AS MATERIALIZED (
            SELECT array_agg(queue) AS queues, array_agg(n) AS pending, array_agg(0 /* count */) AS claimed
            FROM (SELECT queue, count(*)::int AS n FROM valid GROUP BY queue) c
        ),
        emitted AS (
            INSERT INTO outbox_new (at, events, kinds, seqs, runs, retries_left, priorities, queues, pending, claimed)
            SELECT min(db_now.now), 2 * count(*), array_agg(1 /* Kind::Created */::smallint), array_agg(seq),
                   array_agg(0 /* run */::smallint), array_agg(retries), array_agg(priority), min(counts.queues),
                   min(counts.pending), min(counts.claimed)
            FROM valid, db_now, counts HAVING count(*) > 0
        )
        SELECT valid.n AS "n!", valid.seq AS "seq?", false AS "waits!", false AS "held!", false AS "ruled!", db_now.now AS "now!"
        FROM valid, db_now"#,
        &columns.ids,
        &columns.queues,
        &columns.queue_names as &[&str],
        &columns.queue_places,
        &columns.priorities,
        &columns.retries,
        &columns.projects as &[&str],
        &columns.deadlines,
        &columns.expires,
        &columns.scopes as &[&str],
        &columns.routes as &[&str],
        &columns.tags as &[&str],
        &columns.definitions as &[&str],
        &columns.numbers,
        group,
        scheduler,
        group_expires,
        first_created,
        last_created,
        first_deadline,
        last_deadline,
        CREATED_DRIFT.as_seconds_f64(),
        columns.one_limit(),
        ids == Ids::Given,
        DUE_TASKS_MAX,
    )
}
