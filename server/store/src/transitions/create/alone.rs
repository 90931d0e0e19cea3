//! Batches of lone tasks.

use tenure_domain::create::CREATED_DRIFT;

use super::{Columns, Guarded, StoredRow};
use crate::due::DUE_TASKS_MAX;
use crate::hot::statement::{Statement, statement};

/// The value of `task_queues.traits` that is no other policy: 0, which a queue has because of its
/// backlog limit. No queue has -1.
fn ignored_traits(guarded: Guarded) -> i16 {
    match guarded {
        Guarded::Yes => 0,
        Guarded::No => -1,
    }
}

/// Stores lone tasks without options that share one deadline limit. A result without key marks a
/// member whose task or group exists or is being created by another transaction, or whose queue has
/// a policy. With [`Guarded::Yes`], a limit of pending tasks is not such a policy.
#[expect(clippy::too_many_lines, reason = "one statement, one clause a line")]
pub(super) fn statement(columns: &Columns<'_>, guarded: Guarded) -> Statement {
    statement!(
        StoredRow,
        r#"-- create_task_alone
        WITH db_now AS MATERIALIZED (SELECT now FROM db_now),
        -- A server may remember a key that a failover has lost.
        known_queues AS MATERIALIZED (
            SELECT array_agg(q.id ORDER BY k.n) AS ids,
                   array_agg(COALESCE(NULLIF(q.traits, CASE WHEN q.backlog_bytes IS NULL THEN $20::smallint END), q.delay,
                                      q.key_by) IS NOT NULL ORDER BY k.n) AS ruled
            FROM unnest($2::int[] /* keys */, $15::text[] /* names */) WITH ORDINALITY AS k(id, name, n)
            LEFT JOIN task_queues q ON q.id = k.id AND q.name = k.name
        ),
        free AS MATERIALIZED (SELECT lock_free_groups($1, true) AS groups),
        -- Functions in the list of a SELECT are read as they go; each of those in FROM has its rows stored first. What most clauses need
        -- comes first, because what is before a column is looked at as well.
        valid AS MATERIALIZED (
            SELECT i.n, CASE WHEN free.groups[i.n] AND NOT known_queues.ruled[i.queue_place] THEN nextval('task_seq') END AS seq,
                   known_queues.ids[i.queue_place] AS queue, known_queues.ruled[i.queue_place] AS ruled, i.id, i.priority, i.retries,
                   i.deadline, i.expires, i.scheduler, i.project, i.scopes, i.routes, i.tags, i.definition
            FROM db_now, known_queues, free, (
                SELECT unnest($1::uuid[] /* ids */) AS id, unnest($16::int[] /* queue places */) AS queue_place,
                       unnest($3::smallint[] /* priorities */) AS priority, unnest($4::smallint[] /* retries */) AS retries,
                       unnest($5::text[] /* schedulers */) AS scheduler, unnest($6::text[] /* projects */) AS project,
                       unnest($7::timestamptz[] /* created */) AS created, unnest($8::timestamptz[] /* deadlines */) AS deadline,
                       unnest($9::timestamptz[] /* expires */) AS expires, unnest($10::text[] /* scopes */) AS scopes,
                       unnest($11::text[] /* routes */) AS routes, unnest($12::text[] /* tags */) AS tags,
                       unnest($13::text[] /* definitions */) AS definition, unnest($19::bigint[] /* numbers */) AS n
            ) i
            WHERE known_queues.ids[i.queue_place] IS NOT NULL
              AND i.created BETWEEN db_now.now - make_interval(secs => $14 /* CREATED_DRIFT */)
                                AND db_now.now + make_interval(secs => $14)
              AND i.deadline BETWEEN db_now.now
                                 AND db_now.now + make_interval(secs => $17 /* deadline_limit + CREATED_DRIFT */)
        ),
        -- In the order of their ids, so that two statements that conflict cannot deadlock.
        new_tasks AS (
            INSERT INTO tasks (id, seq, queue, task_group, state, priority, retries_left, run, lone)
            SELECT id, seq, queue, id, 1 /* State::Unresolved */, priority, retries, 0 /* run */, true FROM valid
            WHERE seq IS NOT NULL ORDER BY id
        ),
        definitions AS (
            INSERT INTO task_definitions
                (seq, id, scheduler, project, task_group, deadline, expires, scopes, routes, tags, definition)
            SELECT seq, id, scheduler, project, id, deadline, expires, scopes, routes, tags, definition FROM valid
            WHERE seq IS NOT NULL
        ),
        deadlines AS (
            INSERT INTO due (deadline, seqs)
            SELECT min(deadline), array_agg(seq) FROM valid WHERE seq IS NOT NULL GROUP BY (n - 1) / $18 /* DUE_TASKS_MAX */
        ),
        runs_pending AS (
            INSERT INTO pending (seq, id, run, queue, priority, deadline, scheduled, reason_created, retries_left, bytes)
            SELECT seq, id, 0 /* run */, queue, priority, deadline, db_now.now, 0 /* ReasonCreated::Scheduled */, retries,
                   octet_length(definition)
            FROM valid, db_now WHERE seq IS NOT NULL ORDER BY n
        ),
        counts AS MATERIALIZED (
            SELECT array_agg(queue) AS queues, array_agg(n) AS pending, array_agg(0 /* count */) AS claimed
            FROM (SELECT queue, count(*)::int AS n FROM valid WHERE seq IS NOT NULL GROUP BY queue) c
        ),
        emitted AS (
            INSERT INTO outbox_new (at, events, kinds, seqs, runs, retries_left, priorities, queues, pending, claimed)
            SELECT min(db_now.now), 2 * count(*), array_agg(1 /* Kind::Created */::smallint), array_agg(seq),
                   array_agg(0 /* run */::smallint), array_agg(retries), array_agg(priority), min(counts.queues),
                   min(counts.pending), min(counts.claimed)
            FROM valid, db_now, counts WHERE seq IS NOT NULL HAVING count(*) > 0
        )
        SELECT valid.n AS "n!", valid.seq AS "seq?", false AS "waits!", false AS "held!", valid.ruled AS "ruled!",
               db_now.now AS "now!"
        FROM valid, db_now"#,
        &columns.ids,
        &columns.queues,
        &columns.priorities,
        &columns.retries,
        &columns.schedulers as &[&str],
        &columns.projects as &[&str],
        &columns.created,
        &columns.deadlines,
        &columns.expires,
        &columns.scopes as &[&str],
        &columns.routes as &[&str],
        &columns.tags as &[&str],
        &columns.definitions as &[&str],
        CREATED_DRIFT.as_seconds_f64(),
        &columns.queue_names as &[&str],
        &columns.queue_places,
        columns.one_limit(),
        DUE_TASKS_MAX,
        &columns.numbers,
        ignored_traits(guarded),
    )
}
