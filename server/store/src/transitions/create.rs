//! Creates tasks: one statement writes definition, task, pending run, count and event.

mod alone;
mod dependents;
mod existing;
mod grouped;
mod one;

use std::collections::HashMap;

use chrono::{DateTime, TimeDelta, Utc};
use sqlx::PgConnection;
use tenure_api::ids::RunId;
use tenure_api::states::{Delivery, ReasonCreated};
use uuid::Uuid;

use crate::due::DUE_TASKS_MAX;
use crate::hot;
use crate::hot::statement::{Rows, Run, Statement, row, statement};
use tenure_domain::create::{CREATED_DRIFT, NewTask};
use tenure_domain::policy::hold::Start;
use tenure_domain::policy::options::Options;
use tenure_domain::task::{Last, OpenRun, Task};

pub use dependents::{is_ordinary_dependent, statement_of_dependents};
pub use existing::{Existing, Names, StoredGroup, StoredTask, find_existing};

#[derive(Debug, Clone, Copy)]
pub struct Member<'a> {
    pub task: &'a NewTask,
    /// `task_queues.id`.
    pub queue: i32,
    /// True if it has unsatisfied dependencies: it is stored without a run.
    pub waits: bool,
    /// True if, by the cached policy, its run must be stamped. A stale value costs one more
    /// statement.
    pub ruled: bool,
}

/// The locks that a creator holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Guarded {
    /// Tasks of queues with a backlog limit are left out.
    No,
    /// The limits were checked under their locks.
    Yes,
}

/// Origin of the ids of new tasks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ids {
    /// Drawn at random: no task has them.
    Drawn,
    Given,
}

impl Member<'_> {
    /// True for the common case, in which no existing row can conflict.
    pub fn is_alone(&self) -> bool {
        !self.waits && !self.ruled && self.task.options.is_none() && self.task.group.uuid() == self.task.id.uuid()
    }

    /// Maximum distance of the deadline, including the clock drift.
    fn seconds_ahead(&self) -> f64 {
        (self.task.deadline_limit.ahead() + CREATED_DRIFT).as_seconds_f64()
    }
}

#[derive(Default)]
struct Columns<'a> {
    /// From 1.
    numbers: Vec<i64>,
    ids: Vec<Uuid>,
    /// Distinct queues; `queue_places` has the index of each member's queue, from 1.
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
    ahead: Vec<f64>,
    expires: Vec<DateTime<Utc>>,
    scopes: Vec<&'a str>,
    routes: Vec<&'a str>,
    tags: Vec<&'a str>,
    definitions: Vec<&'a str>,
    waits: Vec<bool>,
    /// Empty if no member has options: all option columns are then null.
    options: OptionColumns<'a>,
}

#[derive(Default)]
struct OptionColumns<'a> {
    deliveries: Vec<Option<i16>>,
    /// In seconds, like the other durations.
    delays: Vec<Option<f64>>,
    not_before: Vec<Option<DateTime<Utc>>>,
    complete_times: Vec<Option<f64>>,
    retry_first: Vec<Option<f64>>,
    retry_factor: Vec<Option<f64>>,
    retry_most: Vec<Option<f64>>,
    keys: Vec<Option<&'a str>>,
    worker_groups: Vec<Option<&'a str>>,
    worker_ids: Vec<Option<&'a str>>,
    worker_waits: Vec<Option<i32>>,
    unique_names: Vec<Option<&'a str>>,
    retry_failed: Vec<Option<bool>>,
}

impl<'a> OptionColumns<'a> {
    fn push(&mut self, options: Option<&'a Options>) {
        let (key, worker) = options.map_or((None, None), |options| (options.key.as_deref(), options.worker.as_ref()));
        self.keys.push(key);
        self.worker_groups.push(worker.map(|worker| worker.worker_group.as_str()));
        self.worker_ids.push(worker.map(|worker| worker.worker_id.as_str()));
        self.worker_waits.push(worker.map(|worker| i32::try_from(worker.wait.num_seconds()).unwrap_or(i32::MAX)));
        let none = Options::default();
        let Options { start, delivery, complete_time, retry_delay, retry_failed, key: _, unique: _, worker: _ } =
            options.unwrap_or(&none);
        self.unique_names.push(options.and_then(|options| options.unique.as_ref()).map(|unique| unique.name.as_str()));
        self.retry_failed.push(*retry_failed);
        let (delay, not_before) = match *start {
            None => (None, None),
            Some(Start::After(delay)) => (Some(delay.as_seconds_f64()), None),
            Some(Start::At(time)) => (None, Some(time)),
        };
        self.deliveries.push(delivery.map(Delivery::code));
        self.delays.push(delay);
        self.not_before.push(not_before);
        self.complete_times.push(complete_time.map(TimeDelta::as_seconds_f64));
        self.retry_first.push(retry_delay.map(|delay| delay.first.as_seconds_f64()));
        self.retry_factor.push(retry_delay.map(|delay| delay.factor));
        self.retry_most.push(retry_delay.map(|delay| delay.most.as_seconds_f64()));
    }
}

impl<'a> Columns<'a> {
    /// Maximum distance of a deadline, if all members share it.
    fn one_limit(&self) -> f64 {
        self.ahead.first().copied().unwrap_or_default()
    }

    fn new(members: &[Member<'a>]) -> Self {
        let mut columns = Self { numbers: (1..).take(members.len()).collect(), ..Self::default() };
        let mut places: HashMap<(i32, &str), i32> = HashMap::new();
        for member in members {
            let Member { task, queue, waits, ruled: _ } = member;
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
            columns.ahead.push(member.seconds_ahead());
            columns.expires.push(task.expires);
            columns.scopes.push(&task.scopes_text);
            columns.routes.push(&task.routes_text);
            columns.tags.push(&task.tags);
            columns.definitions.push(&task.definition);
        }
        if members.iter().any(|member| member.task.options.is_some()) {
            members.iter().for_each(|member| columns.options.push(member.task.options.as_ref()));
        }
        columns
    }
}

#[derive(Debug, Default)]
pub struct Outcome {
    pub stored: Vec<Created>,
    /// Members omitted because of their queue's policy, from 0. [`create`] stores them.
    pub ruled: Vec<usize>,
    /// Members omitted because their queue has a backlog limit.
    pub bounded: Vec<usize>,
}

#[derive(Debug)]
pub struct Created {
    /// From 0.
    pub member: usize,
    pub seq: i64,
    /// Creation time; the first run became pending then.
    pub now: DateTime<Utc>,
    /// True if it has unsatisfied dependencies, and so no run.
    pub waits: bool,
    /// True if no worker can claim its first run yet.
    pub held: bool,
    /// True if its run was stamped by its queue's policy.
    pub ruled: bool,
}

impl Created {
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

fn are_alone(members: &[Member<'_>]) -> bool {
    let one_limit = members.windows(2).all(|pair| pair[0].task.deadline_limit == pair[1].task.deadline_limit);
    one_limit && members.iter().all(Member::is_alone)
}

/// Stores new tasks with valid dates, whose group accepts them and whose queue has this key. Omits
/// all others from the result.
pub async fn create(conn: &mut PgConnection, members: &[Member<'_>], guarded: Guarded) -> Result<Outcome, sqlx::Error> {
    if guarded == Guarded::Yes {
        return create_any(conn, members, guarded).await;
    }
    let rows = conn.run_one(&statement(members)).await?.decode::<StoredRow>()?;
    // A member that the general statement leaves out is left out again.
    let grouped: Vec<usize> =
        rows.iter().filter(|row| row.seq.is_none() && !row.held).map(|row| hot::member(row.n)).collect();
    let mut whole = outcome(rows);
    whole.ruled.clear();
    if !grouped.is_empty() {
        let rest: Vec<Member<'_>> = grouped.iter().map(|&place| members[place]).collect();
        let more = create_any(conn, &rest, guarded).await?;
        whole.stored.extend(more.stored.into_iter().map(|row| Created { member: grouped[row.member], ..row }));
        whole.bounded.extend(more.bounded.into_iter().map(|member| grouped[member]));
    }
    Ok(whole)
}

/// Like [`create`], for tasks of any group, with or without dependencies.
pub async fn create_any(
    conn: &mut PgConnection,
    members: &[Member<'_>],
    guarded: Guarded,
) -> Result<Outcome, sqlx::Error> {
    decode(&conn.run_one(&any(&Columns::new(members), guarded)).await?)
}

/// Returns the statement that stores all these tasks or none, if they are tasks of one group without
/// options, dependencies and known policies. It may store none of tasks that [`create_any`] stores.
pub fn statement_of_all(members: &[Member<'_>], ids: Ids) -> Option<Statement> {
    let task = members.first()?.task;
    if let [member] = members
        && member.is_alone()
    {
        return Some(one::statement(member));
    }
    let is_plain = |member: &Member<'_>| !member.waits && !member.ruled && member.task.options.is_none();
    let is_beside = |other: &NewTask| {
        other.group == task.group && other.scheduler == task.scheduler && other.deadline_limit == task.deadline_limit
    };
    let fits = members.iter().all(|member| is_plain(member) && is_beside(member.task));
    fits.then(|| grouped::statement(&Columns::new(members), ids))
}

/// Returns the statement for these tasks, which have no unique names. Its outcome may omit a storable
/// task: one named after its group, or in a queue with a policy.
pub fn statement(members: &[Member<'_>]) -> Statement {
    match members {
        [member] if member.is_alone() => one::statement(member),
        _ if are_alone(members) => alone::statement(&Columns::new(members), Guarded::No),
        _ => any(&Columns::new(members), Guarded::No),
    }
}

/// Like [`create`], for queues whose backlogs are locked and far from their limits.
pub async fn create_far(conn: &mut PgConnection, members: &[Member<'_>]) -> Result<Vec<Created>, sqlx::Error> {
    let mut stored = Vec::new();
    let mut rest: Vec<usize> = (0..members.len()).collect();
    if !members.is_empty() && are_alone(members) {
        let outcome = decode(&conn.run_one(&alone::statement(&Columns::new(members), Guarded::Yes)).await?)?;
        (stored, rest) = (outcome.stored, outcome.ruled);
    }
    if !rest.is_empty() {
        let others: Vec<Member<'_>> = rest.iter().map(|&place| members[place]).collect();
        let more = create_any(conn, &others, Guarded::Yes).await?.stored;
        stored.extend(more.into_iter().map(|row| Created { member: rest[row.member], ..row }));
    }
    Ok(stored)
}

pub fn decode(rows: &Rows) -> Result<Outcome, sqlx::Error> {
    Ok(outcome(rows.decode()?))
}

row! {
    /// Without `seq`, the group is not free or the queue has a policy: if also `held`, one with a
    /// backlog limit.
    pub(crate) struct StoredRow {
        n: i64,
        seq: Option<i64>,
        waits: bool,
        held: bool,
        ruled: bool,
        now: DateTime<Utc>,
    }
}

fn outcome(rows: Vec<StoredRow>) -> Outcome {
    let mut outcome = Outcome::default();
    for StoredRow { n, seq, waits, held, ruled, now } in rows {
        let member = hot::member(n);
        match seq {
            Some(seq) => outcome.stored.push(Created { member, seq, now, waits, held, ruled }),
            None if ruled && held => outcome.bounded.push(member),
            None if ruled => outcome.ruled.push(member),
            None => {}
        }
    }
    outcome
}

#[expect(clippy::too_many_lines, reason = "one statement, one clause a line")]
fn any(columns: &Columns<'_>, guarded: Guarded) -> Statement {
    statement!(
        StoredRow,
        r#"-- create_task
        WITH db_now AS MATERIALIZED (SELECT now FROM db_now),
        -- A server may remember a key that a failover has lost.
        known_queues AS MATERIALIZED (
            SELECT array_agg(q.id ORDER BY k.n) AS ids, array_agg(q.traits ORDER BY k.n) AS traits,
                   array_agg(q.delay ORDER BY k.n) AS delays, array_agg(q.key_by ORDER BY k.n) AS keys_by,
                   array_agg(COALESCE(q.backlog_tasks, q.backlog_bytes) IS NOT NULL ORDER BY k.n) AS bounded
            FROM unnest($2::int[] /* keys */, $19::text[] /* names */) WITH ORDINALITY AS k(id, name, n)
            LEFT JOIN task_queues q ON q.id = k.id AND q.name = k.name
        ),
        -- Without options their columns are shorter than the others, and so null.
        input AS MATERIALIZED (
            SELECT * FROM unnest(
                $1::uuid[] /* ids */, $20::int[] /* queue places */, $3::smallint[] /* priorities */, $4::smallint[] /* retries */,
                $5::uuid[] /* groups */, $6::timestamptz[] /* group_expires */, $7::text[] /* schedulers */,
                $8::text[] /* projects */, $9::timestamptz[] /* created */, $10::timestamptz[] /* deadlines */,
                $11::timestamptz[] /* expires */, $12::text[] /* scopes */, $13::text[] /* routes */, $14::text[] /* tags */,
                $15::text[] /* definitions */, $17::float8[] /* ahead */, $18::boolean[] /* waits */, $22::smallint[] /* deliveries */,
                $23::float8[] /* delays */, $24::timestamptz[] /* not_before */, $25::float8[] /* complete_times */,
                $26::float8[] /* retry_first */, $27::float8[] /* retry_factor */, $28::float8[] /* retry_most */, $29::text[] /* keys */,
                $30::text[] /* groups of workers */, $31::text[] /* their ids */, $32::int[] /* waits for them */,
                $33::boolean[] /* retry_failed */, $34::text[] /* unique names */
            ) WITH ORDINALITY AS i(
                id, queue_place, priority, retries, task_group, group_expires, scheduler,
                project, created, deadline, expires, scopes, routes, tags, definition, ahead, waits, delivery, delay, not_before,
                complete_time, retry_first, retry_factor, retry_most, key, worker_group, worker_id, worker_wait, retry_failed,
                unique_name, n)
        ),
        -- Here and below, IN (SELECT …) IS TRUE looks each row up in a hash: these sessions plan no hash joins, and a join of the
        -- batch with itself by nested loops takes the square of its members.
        -- A repeat must not touch the group, so it is left out before the group is created.
        valid AS MATERIALIZED (
            SELECT input.*, known.queue, COALESCE(known.traits, known.delay, known.key_by) IS NOT NULL AS ruled,
                   run_traits(known.traits, input.delivery, input.complete_time, input.retry_first, input.retry_most, input.retry_failed)
                       AS traits,
                   CASE WHEN NOT input.waits AND start.ready > db_now.now THEN start.ready END AS held_until,
                   admission_key_id(known.queue, run_key(known.key_by, input.key, input.project, input.scheduler, input.task_group)) AS key_id
            FROM input, db_now, known_queues,
                 LATERAL (SELECT known_queues.ids[input.queue_place] AS queue, known_queues.traits[input.queue_place] AS traits,
                                 known_queues.bounded[input.queue_place] AS bounded,
                                 known_queues.delays[input.queue_place] AS delay, known_queues.keys_by[input.queue_place] AS key_by) known,
                 LATERAL (SELECT COALESCE(input.not_before, db_now.now + make_interval(
                                          secs => NULLIF(COALESCE(input.delay, known.delay), 0 /* count */))) AS ready) start
            WHERE known.queue IS NOT NULL AND ($35 /* guarded */ OR NOT known.bounded)
              AND input.created BETWEEN db_now.now - make_interval(secs => $16 /* CREATED_DRIFT */)
                                    AND db_now.now + make_interval(secs => $16)
              AND input.deadline BETWEEN db_now.now AND db_now.now + make_interval(secs => input.ahead)
              AND (start.ready < input.deadline) IS NOT FALSE
              AND NOT EXISTS (SELECT FROM tasks t WHERE t.id = input.id)
        ),
        requested_groups AS MATERIALIZED (
            SELECT DISTINCT ON (task_group) task_group AS id, scheduler, max(group_expires) OVER members AS expires,
                   bool_and(id = task_group) OVER members AS lone
            FROM valid WINDOW members AS (PARTITION BY task_group) ORDER BY task_group, n
        ),
        existing_groups AS MATERIALIZED (
            SELECT g.id, g.scheduler, g.sealed, g.expires < r.expires AS short, r.expires,
                   -- Or will have before this is committed. A group outlives its tasks by an hour: such a one is short, too.
                   g.expires <= (SELECT now FROM db_now) + interval '10 minutes' AS expired
            FROM requested_groups r JOIN task_groups g ON g.id = r.id
        ),
        -- Groups of lone tasks that others are added to. The task is changed, so that its end sees it.
        joined_groups AS MATERIALIZED (
            SELECT t.id, d.scheduler, GREATEST(group_expires(d.expires), r.expires) AS expires
            FROM requested_groups r JOIN tasks t ON t.id = r.id AND t.lone JOIN task_definitions d ON d.seq = t.seq
            WHERE ((t.id, d.scheduler) IN (SELECT task_group, scheduler FROM valid)) IS TRUE
            FOR UPDATE OF t SKIP LOCKED
        ),
        joined_tasks AS (UPDATE tasks t SET lone = false FROM joined_groups j WHERE t.id = j.id),
        absent_groups AS MATERIALIZED (
            SELECT r.*, row_number() OVER (ORDER BY r.id) AS place FROM requested_groups r
            WHERE (r.id IN (SELECT id FROM existing_groups)) IS NOT TRUE
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
        ready AS MATERIALIZED (
            SELECT v.*, nextval('task_seq') AS seq, (v.task_group IN (SELECT id FROM open_groups WHERE lone)) AS lone
            FROM valid v WHERE ((v.task_group, v.scheduler) IN (SELECT id, scheduler FROM open_groups)) IS TRUE
        ),
        new_tasks AS (
            INSERT INTO tasks (id, seq, queue, task_group, state, priority, retries_left, run, lone)
            SELECT id, seq, queue, task_group, CASE WHEN waits THEN 0 /* State::Unscheduled */ ELSE 1 /* State::Unresolved */ END,
                   priority, retries, CASE WHEN waits THEN NULL ELSE 0 /* run */ END, lone
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
        deadlines AS (
            INSERT INTO due (deadline, seqs)
            SELECT min(deadline), array_agg(seq) FROM stored GROUP BY (n - 1) / $21 /* DUE_TASKS_MAX */
        ),
        options AS (
            INSERT INTO task_options (seq, delivery, delay, not_before, complete_time, retry_first, retry_factor, retry_most, key,
                                      worker_group, worker_id, worker_wait, retry_failed, unique_name)
            SELECT seq, delivery, delay, not_before, complete_time, retry_first, retry_factor, retry_most, key, worker_group,
                   worker_id, worker_wait, retry_failed, unique_name
            FROM stored
            WHERE num_nonnulls(delivery, delay, not_before, complete_time, retry_first, key, worker_group, retry_failed,
                               unique_name) > 0 /* count */
        ),
        runs_pending AS (
            INSERT INTO pending (seq, id, run, queue, priority, deadline, scheduled, reason_created, retries_left, traits, key_id,
                                 hold, held_until, reserved_until, hidden_until)
            SELECT seq, id, 0 /* run */, queue, priority, deadline, db_now.now, 0 /* ReasonCreated::Scheduled */, retries, traits,
                   key_id, CASE WHEN held_until IS NOT NULL THEN 1 /* Hold::Delay */ WHEN key_id IS NOT NULL THEN 2 /* Hold::Waiting */ END,
                   held_until, held.always, held.always
            FROM stored, db_now,
                 LATERAL (SELECT CASE WHEN held_until IS NOT NULL OR key_id IS NOT NULL THEN timestamptz '3000-01-01' END AS always) held
            WHERE NOT waits
            ORDER BY n
        ),
        counts AS MATERIALIZED (
            SELECT array_agg(queue) AS queues, array_agg(n - delayed) AS pending, array_agg(0 /* count */) AS claimed,
                   CASE WHEN sum(delayed) > 0 /* count */ THEN array_agg(delayed) END AS delayed,
                   CASE WHEN sum(waiting) > 0 /* count */ THEN array_agg(waiting) END AS waiting
            FROM (SELECT queue, count(*)::int AS n, count(held_until)::int AS delayed,
                         (count(key_id) FILTER (WHERE held_until IS NULL))::int AS waiting
                  FROM stored WHERE NOT waits GROUP BY queue) c
        ),
        emitted AS (
            INSERT INTO outbox_new (at, events, kinds, seqs, runs, retries_left, priorities, queues, pending, claimed, delayed,
                                    waiting)
            SELECT min(db_now.now), 2 * count(*) - count(*) FILTER (WHERE waits),
                   array_agg(CASE WHEN waits THEN 7 /* Kind::Defined */ ELSE 1 /* Kind::Created */ END::smallint ORDER BY n),
                   array_agg(seq ORDER BY n), array_agg(0 /* run */::smallint), array_agg(retries ORDER BY n),
                   array_agg(priority ORDER BY n), min(counts.queues), min(counts.pending), min(counts.claimed),
                   min(counts.delayed), min(counts.waiting)
            FROM stored, db_now, counts HAVING count(*) > 0
        )
        SELECT stored.n AS "n!", stored.seq AS "seq?", stored.waits AS "waits!",
               (stored.held_until IS NOT NULL OR stored.key_id IS NOT NULL) AS "held!",
               stored.ruled AS "ruled!", db_now.now AS "now!"
        FROM stored, db_now
        -- Left out: the queue has a limit that was not checked.
        UNION ALL
        SELECT input.n, NULL, false, true, true, db_now.now FROM input, known_queues, db_now
        WHERE NOT $35 /* guarded */ AND known_queues.bounded[input.queue_place]"#,
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
        &columns.ahead,
        &columns.waits,
        &columns.queue_names as &[&str],
        &columns.queue_places,
        DUE_TASKS_MAX,
        &columns.options.deliveries as &[Option<i16>],
        &columns.options.delays as &[Option<f64>],
        &columns.options.not_before as &[Option<DateTime<Utc>>],
        &columns.options.complete_times as &[Option<f64>],
        &columns.options.retry_first as &[Option<f64>],
        &columns.options.retry_factor as &[Option<f64>],
        &columns.options.retry_most as &[Option<f64>],
        &columns.options.keys as &[Option<&str>],
        &columns.options.worker_groups as &[Option<&str>],
        &columns.options.worker_ids as &[Option<&str>],
        &columns.options.worker_waits as &[Option<i32>],
        &columns.options.retry_failed as &[Option<bool>],
        &columns.options.unique_names as &[Option<&str>],
        guarded == Guarded::Yes,
    )
}
