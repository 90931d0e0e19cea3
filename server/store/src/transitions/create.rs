//! A new task, pending or unscheduled: definition, task, pending run, count and event in one statement.

mod look;

use std::collections::HashMap;
use std::sync::LazyLock;

use chrono::{DateTime, Utc};
use sqlx::postgres::{PgArguments, PgRow};
use sqlx::query::Map;
use sqlx::{PgConnection, Postgres};
use tenure_api::ids::RunId;
use tenure_api::states::ReasonCreated;
use uuid::Uuid;

use crate::due::DUE_TASKS_MAX;
use crate::hot;
use crate::hot::statement::{Rows, Statement, from_row, text};
use tenure_domain::create::{CREATED_DRIFT, DEADLINE_AHEAD, NewTask};
use tenure_domain::task::{Last, OpenRun, Task};

pub use look::{Look, Names, StoredGroup, StoredTask, look};

/// One member: the task, and the key of its queue.
#[derive(Debug, Clone, Copy)]
pub struct Member<'a> {
    /// The task.
    pub task: &'a NewTask,
    /// `task_queues.id`.
    pub queue: i32,
    /// Whether it has dependencies that are not satisfied: then it is stored without a run.
    pub waits: bool,
}

/// A task that was stored.
#[derive(Debug)]
pub struct Created {
    /// Which member, from 0.
    pub member: usize,
    /// The task's key.
    pub seq: i64,
    /// When that was; then its first run became pending, if it has one.
    pub now: DateTime<Utc>,
    /// Whether it has none.
    pub waits: bool,
}

impl Created {
    /// The task as it was stored.
    #[must_use]
    pub fn task(&self, new: &NewTask) -> Task {
        Task {
            id: new.id,
            seq: self.seq,
            queue: new.queue.clone(),
            scheduler: new.scheduler.to_string(),
            project: new.project.to_string(),
            group: new.group,
            priority: new.priority,
            deadline: new.deadline,
            expires: new.expires,
            retries_left: new.retries,
            last: if self.waits {
                Last::Unscheduled
            } else {
                Last::Pending(OpenRun { run: RunId::FIRST, reason: ReasonCreated::Scheduled, scheduled: self.now })
            },
            ended: Vec::new(),
        }
    }
}

/// The members as columns.
#[derive(Default)]
struct Columns<'a> {
    ids: Vec<Uuid>,
    /// The queues of all members, each once, and for each member which of them it is, from 1.
    queues: Vec<i32>,
    queue_names: Vec<&'a str>,
    queue_places: Vec<i32>,
    priorities: Vec<i16>,
    retries: Vec<i16>,
    groups: Vec<Uuid>,
    group_expires: Vec<DateTime<Utc>>,
    schedulers: Vec<&'a str>,
    projects: Vec<&'a str>,
    created: Vec<DateTime<Utc>>,
    deadlines: Vec<DateTime<Utc>>,
    expires: Vec<DateTime<Utc>>,
    scopes: Vec<&'a str>,
    routes: Vec<&'a str>,
    tags: Vec<&'a str>,
    definitions: Vec<&'a str>,
    waits: Vec<bool>,
}

impl<'a> Columns<'a> {
    fn new(members: &[Member<'a>]) -> Self {
        let mut columns = Self::default();
        let mut places: HashMap<(i32, &str), i32> = HashMap::new();
        for Member { task, queue, waits } in members {
            let name = task.queue.as_str();
            let place = *places.entry((*queue, name)).or_insert_with(|| {
                columns.queues.push(*queue);
                columns.queue_names.push(name);
                hot::int4(columns.queues.len())
            });
            columns.queue_places.push(place);
            columns.waits.push(*waits);
            columns.ids.push(task.id.uuid());
            columns.priorities.push(task.priority.code());
            columns.retries.push(task.retries.cast_signed());
            columns.groups.push(task.group.uuid());
            columns.group_expires.push(task.group_expires);
            columns.schedulers.push(task.scheduler.as_str());
            columns.projects.push(task.project.as_str());
            columns.created.push(task.created);
            columns.deadlines.push(task.deadline);
            columns.expires.push(task.expires);
            columns.scopes.push(&task.scopes_text);
            columns.routes.push(&task.routes_text);
            columns.tags.push(&task.tags);
            columns.definitions.push(&task.definition);
        }
        columns
    }
}

/// Whether a task is alone in a group with its own id, and waits for nothing: the ordinary case, in which nothing is there
/// that could conflict.
fn is_alone(member: &Member<'_>) -> bool {
    !member.waits && member.task.group.uuid() == member.task.id.uuid()
}

/// Stores the tasks that do not exist yet, whose dates are valid, whose group accepts them, and whose queue has this key.
/// The others are missing from the result.
pub async fn create(conn: &mut PgConnection, members: &[Member<'_>]) -> Result<Vec<Created>, sqlx::Error> {
    if !members.iter().all(is_alone) {
        return create_any(conn, members).await;
    }
    let rows = query_alone(&Columns::new(members)).fetch_all(&mut *conn).await?;
    let grouped: Vec<usize> = rows.iter().filter(|row| row.seq.is_none()).map(|row| hot::member(row.n)).collect();
    let mut stored = created(rows);
    if !grouped.is_empty() {
        let rest: Vec<Member<'_>> = grouped.iter().map(|&place| members[place]).collect();
        let more = create_any(conn, &rest).await?;
        stored.extend(more.into_iter().map(|row| Created { member: grouped[row.member], ..row }));
    }
    Ok(stored)
}

/// The same for tasks of any group, also those that wait for others.
pub async fn create_any(conn: &mut PgConnection, members: &[Member<'_>]) -> Result<Vec<Created>, sqlx::Error> {
    Ok(created(query_any(&Columns::new(members)).fetch_all(conn).await?))
}

/// The same as a part of a tick. A task that is the first with its group's id may be missing although it can be stored.
#[must_use]
pub fn statement(members: &[Member<'_>]) -> Statement {
    static ALONE: LazyLock<String> = LazyLock::new(|| text(query_alone(&Columns::default())));
    static ANY: LazyLock<String> = LazyLock::new(|| text(query_any(&Columns::default())));
    let columns = Columns::new(members);
    let (drift, ahead) = (CREATED_DRIFT.as_seconds_f64(), (DEADLINE_AHEAD + CREATED_DRIFT).as_seconds_f64());
    let alone = members.iter().all(is_alone);
    let statement = Statement::new(if alone { &ALONE } else { &ANY })
        .with(&columns.ids)
        .with(&columns.queues)
        .with(&columns.priorities)
        .with(&columns.retries);
    let statement = if alone { statement } else { statement.with(&columns.groups).with(&columns.group_expires) };
    let statement = statement
        .with(&columns.schedulers)
        .with(&columns.projects)
        .with(&columns.created)
        .with(&columns.deadlines)
        .with(&columns.expires)
        .with(&columns.scopes)
        .with(&columns.routes)
        .with(&columns.tags)
        .with(&columns.definitions)
        .with(&drift);
    if alone {
        return statement.with(&columns.queue_names).with(&columns.queue_places).with(&ahead).with(&DUE_TASKS_MAX);
    }
    statement
        .with(&ahead)
        .with(&columns.waits)
        .with(&columns.queue_names)
        .with(&columns.queue_places)
        .with(&DUE_TASKS_MAX)
}

/// What it answered with.
pub fn decode(rows: &Rows) -> Result<Vec<Created>, sqlx::Error> {
    Ok(created(rows.decode()?))
}

/// A member that was stored; or, without `seq`, one that is not alone in its group.
pub(crate) struct StoredRow {
    n: i64,
    seq: Option<i64>,
    waits: bool,
    now: DateTime<Utc>,
}

from_row!(StoredRow { n, seq, waits, now });

fn created(rows: Vec<StoredRow>) -> Vec<Created> {
    let stored =
        |row: StoredRow| row.seq.map(|seq| Created { member: hot::member(row.n), seq, now: row.now, waits: row.waits });
    rows.into_iter().filter_map(stored).collect()
}

type Query<'a, F> = Map<'a, Postgres, F, PgArguments>;

/// Stores tasks that are alone in their groups. A member of whose task or group something is there, or that another
/// transaction is about to create, is in the result without a key.
#[expect(clippy::too_many_lines, reason = "one statement, one clause a line")]
fn query_alone<'a>(
    columns: &'a Columns<'_>,
) -> Query<'a, impl FnMut(PgRow) -> Result<StoredRow, sqlx::Error> + Send + use<>> {
    sqlx::query_as!(
        StoredRow,
        r#"-- create_task_alone
        WITH db_now AS MATERIALIZED (SELECT now FROM db_now),
        -- A server may remember a key that a failover has lost.
        known_queues AS MATERIALIZED (
            SELECT array_agg(q.id ORDER BY k.n) AS ids
            FROM unnest($2::int[] /* keys */, $15::text[] /* names */) WITH ORDINALITY AS k(id, name, n)
            LEFT JOIN task_queues q ON q.id = k.id AND q.name = k.name
        ),
        free AS MATERIALIZED (SELECT lock_free_groups($1, true) AS groups),
        valid AS MATERIALIZED (
            SELECT i.*, known_queues.ids[i.queue_place] AS queue,
                   CASE WHEN free.groups[i.n] THEN nextval('task_seq') END AS seq
            FROM db_now, known_queues, free, unnest(
                $1::uuid[] /* ids */, $16::int[] /* queue places */, $3::smallint[] /* priorities */, $4::smallint[] /* retries */,
                $5::text[] /* schedulers */, $6::text[] /* projects */, $7::timestamptz[] /* created */,
                $8::timestamptz[] /* deadlines */, $9::timestamptz[] /* expires */, $10::text[] /* scopes */,
                $11::text[] /* routes */, $12::text[] /* tags */, $13::text[] /* definitions */
            ) WITH ORDINALITY AS i(
                id, queue_place, priority, retries, scheduler, project, created, deadline, expires, scopes, routes, tags,
                definition, n)
            WHERE known_queues.ids[i.queue_place] IS NOT NULL
              AND i.created BETWEEN db_now.now - make_interval(secs => $14 /* CREATED_DRIFT */)
                                AND db_now.now + make_interval(secs => $14)
              AND i.deadline BETWEEN db_now.now
                                 AND db_now.now + make_interval(secs => $17 /* DEADLINE_AHEAD + CREATED_DRIFT */)
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
            INSERT INTO pending (seq, id, run, queue, priority, deadline, scheduled, reason_created, retries_left)
            SELECT seq, id, 0 /* run */, queue, priority, deadline, db_now.now, 0 /* ReasonCreated::Scheduled */, retries
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
        SELECT valid.n AS "n!", valid.seq AS "seq?", false AS "waits!", db_now.now AS "now!" FROM valid, db_now"#,
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
        (DEADLINE_AHEAD + CREATED_DRIFT).as_seconds_f64(),
        DUE_TASKS_MAX,
    )
}

#[expect(clippy::too_many_lines, reason = "one statement, one clause a line")]
fn query_any<'a>(
    columns: &'a Columns<'_>,
) -> Query<'a, impl FnMut(PgRow) -> Result<StoredRow, sqlx::Error> + Send + use<>> {
    sqlx::query_as!(
        StoredRow,
        r#"-- create_task
        WITH db_now AS MATERIALIZED (SELECT now FROM db_now),
        -- A server may remember a key that a failover has lost.
        known_queues AS MATERIALIZED (
            SELECT array_agg(q.id ORDER BY k.n) AS ids
            FROM unnest($2::int[] /* keys */, $19::text[] /* names */) WITH ORDINALITY AS k(id, name, n)
            LEFT JOIN task_queues q ON q.id = k.id AND q.name = k.name
        ),
        input AS MATERIALIZED (
            SELECT * FROM unnest(
                $1::uuid[] /* ids */, $20::int[] /* queue places */, $3::smallint[] /* priorities */, $4::smallint[] /* retries */,
                $5::uuid[] /* groups */, $6::timestamptz[] /* group_expires */, $7::text[] /* schedulers */,
                $8::text[] /* projects */, $9::timestamptz[] /* created */, $10::timestamptz[] /* deadlines */,
                $11::timestamptz[] /* expires */, $12::text[] /* scopes */, $13::text[] /* routes */, $14::text[] /* tags */,
                $15::text[] /* definitions */, $18::boolean[] /* waits */
            ) WITH ORDINALITY AS i(
                id, queue_place, priority, retries, task_group, group_expires, scheduler,
                project, created, deadline, expires, scopes, routes, tags, definition, waits, n)
        ),
        -- A repeat must not touch the group, so it is left out before the group is created.
        valid AS MATERIALIZED (
            SELECT input.*, known_queues.ids[input.queue_place] AS queue FROM input, db_now, known_queues
            WHERE known_queues.ids[input.queue_place] IS NOT NULL
              AND input.created BETWEEN db_now.now - make_interval(secs => $16 /* CREATED_DRIFT */)
                                    AND db_now.now + make_interval(secs => $16)
              AND input.deadline BETWEEN db_now.now
                                     AND db_now.now + make_interval(secs => $17 /* DEADLINE_AHEAD + CREATED_DRIFT */)
              AND NOT EXISTS (SELECT FROM tasks t WHERE t.id = input.id)
        ),
        requested_groups AS MATERIALIZED (
            SELECT DISTINCT ON (task_group) task_group AS id, scheduler, max(group_expires) OVER members AS expires,
                   bool_and(id = task_group) OVER members AS lone
            FROM valid WINDOW members AS (PARTITION BY task_group) ORDER BY task_group, n
        ),
        existing_groups AS MATERIALIZED (
            SELECT g.id, g.scheduler, g.sealed, g.expires < r.expires AS short, r.expires,
                   g.expires <= (SELECT now FROM db_now) AS expired
            FROM requested_groups r JOIN task_groups g ON g.id = r.id
        ),
        -- Groups of lone tasks that others are added to. The task is changed, so that its end sees it.
        joined_groups AS MATERIALIZED (
            SELECT t.id, d.scheduler, GREATEST(group_expires(d.expires), r.expires) AS expires
            FROM requested_groups r JOIN tasks t ON t.id = r.id AND t.lone JOIN task_definitions d ON d.seq = t.seq
            WHERE EXISTS (SELECT FROM valid v WHERE v.task_group = t.id AND v.scheduler = d.scheduler)
            FOR UPDATE OF t SKIP LOCKED
        ),
        joined_tasks AS (UPDATE tasks t SET lone = false FROM joined_groups j WHERE t.id = j.id),
        absent_groups AS MATERIALIZED (
            SELECT r.*, row_number() OVER (ORDER BY r.id) AS place FROM requested_groups r
            WHERE NOT EXISTS (SELECT FROM existing_groups e WHERE e.id = r.id)
              AND NOT EXISTS (SELECT FROM tasks t WHERE t.id = r.id AND t.lone)
        ),
        free AS MATERIALIZED (SELECT lock_free_groups(array_agg(id ORDER BY place), false) AS groups FROM absent_groups),
        free_groups AS MATERIALIZED (SELECT a.* FROM absent_groups a, free WHERE free.groups[a.place]),
        new_groups AS (
            INSERT INTO task_groups (id, scheduler, expires)
            SELECT id, scheduler, expires FROM free_groups WHERE NOT lone
            UNION ALL SELECT id, scheduler, expires FROM joined_groups
            ORDER BY id
            ON CONFLICT (id) DO NOTHING
            RETURNING id, scheduler
        ),
        -- Rounded up to the hour, so that this finds work about once an hour. Another transaction that holds the row raises it as well.
        short_groups AS MATERIALIZED (
            SELECT g.id, e.expires FROM existing_groups e JOIN task_groups g ON g.id = e.id
            WHERE e.short FOR UPDATE OF g SKIP LOCKED
        ),
        raised_groups AS (
            UPDATE task_groups g SET expires = GREATEST(g.expires, s.expires) FROM short_groups s WHERE g.id = s.id
        ),
        open_groups AS MATERIALIZED (
            -- An expired group may be about to be purged, unless this statement has locked its row.
            SELECT id, scheduler, false AS lone FROM existing_groups e
            WHERE sealed IS NULL AND (NOT expired OR EXISTS (SELECT FROM short_groups s WHERE s.id = e.id))
            UNION ALL SELECT id, scheduler, false FROM new_groups
            -- A task that is alone in the group that is named after it: the group needs no row.
            UNION ALL SELECT id, scheduler, true FROM free_groups WHERE lone
        ),
        new_tasks AS (
            INSERT INTO tasks (id, queue, task_group, state, priority, retries_left, run, lone)
            SELECT v.id, v.queue, v.task_group,
                   CASE WHEN v.waits THEN 0 /* State::Unscheduled */ ELSE 1 /* State::Unresolved */ END,
                   v.priority, v.retries,
                   CASE WHEN v.waits THEN NULL ELSE 0 /* run */ END, g.lone
            FROM valid v JOIN open_groups g ON g.id = v.task_group AND g.scheduler = v.scheduler
            ORDER BY v.id
            ON CONFLICT (id) DO NOTHING
            RETURNING id, seq
        ),
        stored AS MATERIALIZED (
            SELECT v.*, t.seq FROM new_tasks t JOIN valid v ON v.id = t.id ORDER BY v.n
        ),
        definitions AS (
            INSERT INTO task_definitions
                (seq, id, scheduler, project, task_group, deadline, expires, scopes, routes, tags, definition)
            SELECT seq, id, scheduler, project, task_group, deadline, expires, scopes, routes, tags, definition
            FROM stored
        ),
        deadlines AS (
            INSERT INTO due (deadline, seqs)
            SELECT min(deadline), array_agg(seq) FROM stored GROUP BY (n - 1) / $21 /* DUE_TASKS_MAX */
        ),
        runs_pending AS (
            INSERT INTO pending (seq, id, run, queue, priority, deadline, scheduled, reason_created, retries_left)
            SELECT seq, id, 0 /* run */, queue, priority, deadline, db_now.now, 0 /* ReasonCreated::Scheduled */, retries
            FROM stored, db_now WHERE NOT waits
            ORDER BY n
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
        SELECT stored.n AS "n!", stored.seq AS "seq?", stored.waits AS "waits!", db_now.now AS "now!"
        FROM stored, db_now"#,
        &columns.ids,
        &columns.queues,
        &columns.priorities,
        &columns.retries,
        &columns.groups,
        &columns.group_expires,
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
        (DEADLINE_AHEAD + CREATED_DRIFT).as_seconds_f64(),
        &columns.waits,
        &columns.queue_names as &[&str],
        &columns.queue_places,
        DUE_TASKS_MAX,
    )
}
