//! Batches of tasks with dependencies, with their edges.

use tenure_api::states::Requires;
use tenure_domain::create::{CREATED_DRIFT, NewTask};
use uuid::Uuid;

use super::{Columns, Member, StoredRow};
use crate::due::DUE_TASKS_MAX;
use crate::hot::statement::{Statement, statement};

/// True if [`statement_of_dependents`] can store the task.
pub fn is_ordinary_dependent(task: &NewTask) -> bool {
    let id = task.id.uuid();
    let has_dependencies = !task.dependencies.is_empty() && !task.dependencies.contains(&id);
    has_dependencies && task.options.is_none() && task.group.uuid() != id
}

/// One edge per element.
#[derive(Default)]
struct Edges {
    /// Ordinals of the dependents, from 1.
    members: Vec<i64>,
    required: Vec<Uuid>,
    any_end: Vec<bool>,
}

impl Edges {
    fn new(members: &[Member<'_>]) -> Self {
        let mut edges = Self::default();
        for (member, Member { task, .. }) in (1..).zip(members) {
            for &required in &task.dependencies {
                edges.members.push(member);
                edges.required.push(required);
                edges.any_end.push(task.requires == Requires::AllResolved);
            }
        }
        edges
    }
}

/// Returns the statement for ordinary tasks with dependencies. It reads the required tasks itself. The
/// result omits a task if one of these is missing or expires too early, its group has no row or needs
/// a change, its queue has a policy, or it exists.
pub fn statement_of_dependents(members: &[Member<'_>]) -> Statement {
    create_dependents(&Columns::new(members), &Edges::new(members))
}

#[expect(clippy::too_many_lines, reason = "one statement, one clause a line")]
fn create_dependents(columns: &Columns<'_>, edges: &Edges) -> Statement {
    statement!(
        StoredRow,
        r#"-- create_dependent_task
        WITH db_now AS MATERIALIZED (SELECT now FROM db_now),
        -- A server may remember a key that a failover has lost.
        known_queues AS MATERIALIZED (
            SELECT array_agg(q.id ORDER BY k.n) AS ids
            FROM unnest($2::int[] /* keys */, $3::text[] /* names */) WITH ORDINALITY AS k(id, name, n)
            LEFT JOIN task_queues q ON q.id = k.id AND q.name = k.name AND COALESCE(q.traits, q.delay, q.key_by) IS NULL
        ),
        required AS MATERIALIZED (
            SELECT i.member, i.any_end, t.seq, d.expires,
                   COALESCE(t.state = 3 /* State::Completed */ OR (i.any_end AND t.state > 1 /* State: resolved */), false) AS satisfied
            FROM (
                SELECT unnest($4::bigint[] /* members */) AS member, unnest($5::uuid[] /* required */) AS id,
                       unnest($6::boolean[] /* any_end */) AS any_end
            ) i
            LEFT JOIN tasks t ON t.id = i.id
            LEFT JOIN task_definitions d ON d.seq = t.seq
        ),
        -- By the ordinal of the member: each has dependencies.
        awaited AS MATERIALIZED (
            SELECT array_agg(exist ORDER BY member) AS exist, array_agg(expires ORDER BY member) AS expires,
                   array_agg(satisfied ORDER BY member) AS satisfied
            FROM (SELECT member, count(seq) = count(*) AS exist, min(expires) AS expires, bool_and(satisfied) AS satisfied
                  FROM required GROUP BY member) r
        ),
        ready AS MATERIALIZED (
            SELECT i.n, nextval('task_seq') AS seq, known_queues.ids[i.queue_place] AS queue, NOT awaited.satisfied[i.n] AS waits,
                   i.id, i.task_group, i.priority, i.retries, i.deadline, i.expires, i.scheduler, i.project, i.scopes, i.routes, i.tags,
                   i.definition
            FROM db_now, known_queues, awaited, (
                SELECT unnest($1::uuid[] /* ids */) AS id, unnest($7::int[] /* queue places */) AS queue_place,
                       unnest($8::smallint[] /* priorities */) AS priority, unnest($9::smallint[] /* retries */) AS retries,
                       unnest($10::uuid[] /* groups */) AS task_group, unnest($11::timestamptz[] /* group_expires */) AS group_expires,
                       unnest($12::text[] /* schedulers */) AS scheduler, unnest($13::text[] /* projects */) AS project,
                       unnest($14::timestamptz[] /* created */) AS created, unnest($15::timestamptz[] /* deadlines */) AS deadline,
                       unnest($16::float8[] /* ahead */) AS ahead, unnest($17::timestamptz[] /* expires */) AS expires,
                       unnest($18::text[] /* scopes */) AS scopes, unnest($19::text[] /* routes */) AS routes,
                       unnest($20::text[] /* tags */) AS tags, unnest($21::text[] /* definitions */) AS definition,
                       unnest($22::bigint[] /* numbers */) AS n
            ) i
            WHERE known_queues.ids[i.queue_place] IS NOT NULL
              AND awaited.exist[i.n] AND awaited.expires[i.n] >= i.deadline
              AND i.created BETWEEN db_now.now - make_interval(secs => $23 /* CREATED_DRIFT */)
                                AND db_now.now + make_interval(secs => $23)
              AND i.deadline BETWEEN db_now.now AND db_now.now + make_interval(secs => i.ahead)
              -- Subqueries for each row, so that the planner never reads all groups.
              AND (SELECT true FROM tasks t WHERE t.id = i.id LIMIT 1) IS NULL
              -- One that has expired, or will before this is committed, may be about to be purged.
              AND (SELECT true FROM task_groups g
                   WHERE g.id = i.task_group AND g.scheduler = i.scheduler AND g.sealed IS NULL AND g.expires >= i.group_expires
                     AND g.expires > db_now.now + interval '10 minutes'
                   LIMIT 1)
        ),
        new_tasks AS (
            INSERT INTO tasks (id, seq, queue, task_group, state, priority, retries_left, run, lone)
            SELECT id, seq, queue, task_group, CASE WHEN waits THEN 0 /* State::Unscheduled */ ELSE 1 /* State::Unresolved */ END,
                   priority, retries, CASE WHEN waits THEN NULL ELSE 0 /* run */ END, false
            FROM ready ORDER BY id
            ON CONFLICT (id) DO NOTHING
            RETURNING id
        ),
        stored AS MATERIALIZED (
            SELECT r.* FROM ready r WHERE (r.id IN (SELECT id FROM new_tasks)) IS TRUE ORDER BY r.n
        ),
        definitions AS (
            INSERT INTO task_definitions
                (seq, id, scheduler, project, task_group, deadline, expires, scopes, routes, tags, definition)
            SELECT seq, id, scheduler, project, task_group, deadline, expires, scopes, routes, tags, definition
            FROM stored
        ),
        edges AS (
            INSERT INTO dependencies (required, dependent, any_end, satisfied)
            SELECT r.seq, ($1::uuid[])[r.member], r.any_end, r.satisfied
            FROM required r WHERE (r.member IN (SELECT n FROM stored)) IS TRUE
        ),
        deadlines AS (
            INSERT INTO due (deadline, seqs)
            SELECT min(deadline), array_agg(seq) FROM stored GROUP BY (n - 1) / $24 /* DUE_TASKS_MAX */
        ),
        runs_pending AS (
            INSERT INTO pending (seq, id, run, queue, priority, deadline, scheduled, reason_created, retries_left, bytes)
            SELECT seq, id, 0 /* run */, queue, priority, deadline, db_now.now, 0 /* ReasonCreated::Scheduled */, retries,
                   octet_length(definition)
            FROM stored, db_now WHERE NOT waits ORDER BY n
        ),
        counts AS MATERIALIZED (
            SELECT array_agg(queue) AS queues, array_agg(n) AS pending, array_agg(0 /* count */) AS claimed
            FROM (SELECT queue, count(*)::int AS n FROM stored WHERE NOT waits GROUP BY queue) c
        ),
        emitted AS (
            INSERT INTO outbox_new (at, events, kinds, seqs, runs, retries_left, priorities, queues, pending, claimed)
            SELECT min(db_now.now), 2 * count(*) - count(*) FILTER (WHERE waits),
                   array_agg(CASE WHEN waits THEN 7 /* Kind::Defined */ ELSE 1 /* Kind::Created */ END::smallint ORDER BY n),
                   array_agg(seq ORDER BY n), array_agg(0 /* run */::smallint), array_agg(retries ORDER BY n),
                   array_agg(priority ORDER BY n), min(counts.queues), min(counts.pending), min(counts.claimed)
            FROM stored, db_now, counts HAVING count(*) > 0
        )
        SELECT stored.n AS "n!", stored.seq AS "seq?", stored.waits AS "waits!", false AS "held!", false AS "ruled!",
               db_now.now AS "now!"
        FROM stored, db_now"#,
        &columns.ids,
        &columns.queues,
        &columns.queue_names as &[&str],
        &edges.members,
        &edges.required,
        &edges.any_end,
        &columns.queue_places,
        &columns.priorities,
        &columns.retries,
        &columns.groups,
        &columns.group_expires,
        &columns.schedulers as &[&str],
        &columns.projects as &[&str],
        &columns.created,
        &columns.deadlines,
        &columns.ahead,
        &columns.expires,
        &columns.scopes as &[&str],
        &columns.routes as &[&str],
        &columns.tags as &[&str],
        &columns.definitions as &[&str],
        &columns.numbers,
        CREATED_DRIFT.as_seconds_f64(),
        DUE_TASKS_MAX,
    )
}
