//! Running to resolved, or to pending as the next run: reports of workers, expired claims and requeues are one
//! statement with different members. [`End`] defines what each of them leads to.

use std::sync::LazyLock;

use chrono::{DateTime, Utc};
use sqlx::postgres::{PgArguments, PgRow};
use sqlx::query::Map;
use sqlx::{PgConnection, Postgres};
use tenure_api::ids::TaskQueueId;
use tenure_api::states::ReasonCreated;
use uuid::Uuid;

use crate::decode::{Row, Undecodable, task_columns};
use crate::hot;
use crate::hot::statement::{Rows, Statement, from_row, text};
use tenure_domain::lifecycle::{End, REQUEUES_MAX};
use tenure_domain::task::{EndedRun, Last, OpenRun, Task, Tenancy};
use tenure_domain::work::Holder;

/// The end of a run that a member asks for.
#[derive(Debug, Clone, Copy)]
pub struct Member {
    /// The task.
    pub id: Uuid,
    /// The run.
    pub run: i16,
    /// How and why.
    pub end: End,
}

/// A run that was ended.
#[derive(Debug)]
pub struct Resolved {
    /// From 1.
    n: i64,
    /// The task's key.
    pub seq: i64,
    /// The task.
    pub id: Uuid,
    /// The run that ended.
    pub run: i16,
    state: i16,
    reason_resolved: i16,
    /// `task_queues.id`.
    pub queue: i32,
    priority: i16,
    scheduled: DateTime<Utc>,
    reason_created: i16,
    started: DateTime<Utc>,
    taken_until: DateTime<Utc>,
    now: DateTime<Utc>,
    worker_group: String,
    worker_id: String,
    retries_left: i16,
    /// Why the next run was made, if one was.
    pub next_reason: Option<i16>,
    scheduler: String,
    project: String,
    task_group: Uuid,
    deadline: DateTime<Utc>,
    expires: DateTime<Utc>,
}

from_row!(Resolved {
    n,
    seq,
    id,
    run,
    state,
    reason_resolved,
    queue,
    priority,
    scheduled,
    reason_created,
    started,
    taken_until,
    now,
    worker_group,
    worker_id,
    retries_left,
    next_reason,
    scheduler,
    project,
    task_group,
    deadline,
    expires,
});

impl Resolved {
    /// Which member, from 0.
    #[must_use]
    pub fn member(&self) -> usize {
        hot::member(self.n)
    }

    /// The task afterwards, with what the statement does not answer with. `history` was read after the run was added to it,
    /// or not at all for a first run.
    pub fn task(self, queue: TaskQueueId, mut history: Vec<EndedRun>) -> Result<Task, Undecodable> {
        let columns = Row { table: "runs", task: self.id };
        let ended = EndedRun {
            run: columns.open_run(self.run, self.reason_created, self.scheduled)?,
            state: columns.state(self.state)?,
            reason: columns.reason_resolved(self.reason_resolved)?,
            resolved: self.now,
            tenancy: Some(Tenancy {
                worker_group: self.worker_group,
                worker_id: self.worker_id,
                started: self.started,
                taken_until: self.taken_until,
            }),
        };
        let last = match self.next_reason {
            Some(reason) => Last::Pending(OpenRun {
                run: ended.run.run.next(),
                reason: columns.reason_created(reason)?,
                scheduled: self.now,
            }),
            None => Last::Ended,
        };
        history.retain(|earlier| earlier.run.run < ended.run.run);
        history.push(ended);
        task_columns!(self).task("runs", queue, last, history)
    }
}

/// The members as columns.
#[derive(Default)]
struct Columns<'a> {
    ids: Vec<Uuid>,
    runs: Vec<i16>,
    states: Vec<i16>,
    reasons: Vec<i16>,
    retries: Vec<Option<i16>>,
    expired: Vec<bool>,
    requeue: Vec<bool>,
    /// These three are empty if no member names a holder: to the statement what is missing is null.
    holder_queues: Vec<Option<&'a str>>,
    holder_groups: Vec<Option<&'a str>>,
    holder_ids: Vec<Option<&'a str>>,
}

impl<'a> Columns<'a> {
    fn new(members: &[Member], holders: &[Option<&'a Holder>]) -> Self {
        let named = holders.iter().any(Option::is_some);
        let holders = if named { holders } else { &[] };
        Self {
            ids: members.iter().map(|member| member.id).collect(),
            runs: members.iter().map(|member| member.run).collect(),
            states: members.iter().map(|member| member.end.outcome().state().code()).collect(),
            reasons: members.iter().map(|member| member.end.outcome().reason().code()).collect(),
            retries: members.iter().map(|member| member.end.retry().map(ReasonCreated::code)).collect(),
            expired: members.iter().map(|member| member.end == End::Expired).collect(),
            requeue: members.iter().map(|member| member.end == End::Requeue).collect(),
            holder_queues: holders.iter().map(|holder| holder.map(|holder| holder.queue.as_str())).collect(),
            holder_groups: holders.iter().map(|holder| holder.map(|holder| holder.group.as_str())).collect(),
            holder_ids: holders.iter().map(|holder| holder.map(|holder| holder.id.as_str())).collect(),
        }
    }
}

/// Ends the runs, each if its claim is still held, and appends the next run where the rules allow one.
pub async fn end(conn: &mut PgConnection, members: &[Member]) -> Result<Vec<Resolved>, sqlx::Error> {
    end_held(conn, members, &[]).await
}

/// The same, each only if it is the claim of the holder that is named for it. A list of holders may be shorter than that of the
/// members.
pub async fn end_held(
    conn: &mut PgConnection,
    members: &[Member],
    holders: &[Option<&Holder>],
) -> Result<Vec<Resolved>, sqlx::Error> {
    if members.iter().all(is_for_good) {
        query_for_good(&Columns::new(members, holders)).fetch_all(conn).await
    } else {
        end_any(conn, members, holders).await
    }
}

/// Whether no run follows, whatever retries are left.
fn is_for_good(member: &Member) -> bool {
    matches!(member.end, End::Report(_)) && member.end.retry().is_none()
}

/// The same for ends of any kind.
pub async fn end_any(
    conn: &mut PgConnection,
    members: &[Member],
    holders: &[Option<&Holder>],
) -> Result<Vec<Resolved>, sqlx::Error> {
    query_any(&Columns::new(members, holders)).fetch_all(conn).await
}

/// The same as a part of a tick.
#[must_use]
pub fn statement(members: &[Member], holders: &[Option<&Holder>]) -> Statement {
    static FOR_GOOD: LazyLock<String> = LazyLock::new(|| text(query_for_good(&Columns::default())));
    static ANY: LazyLock<String> = LazyLock::new(|| text(query_any(&Columns::default())));
    let columns = Columns::new(members, holders);
    let for_good = members.iter().all(is_for_good);
    let statement = Statement::new(if for_good { &FOR_GOOD } else { &ANY })
        .with(&columns.ids)
        .with(&columns.runs)
        .with(&columns.states)
        .with(&columns.reasons)
        .with(&columns.holder_queues)
        .with(&columns.holder_groups)
        .with(&columns.holder_ids);
    if for_good {
        return statement;
    }
    statement.with(&columns.retries).with(&columns.expired).with(&columns.requeue).with(&REQUEUES_MAX.cast_signed())
}

/// What it answered with.
pub fn decode(rows: &Rows) -> Result<Vec<Resolved>, sqlx::Error> {
    rows.decode()
}

type Query<'a, F> = Map<'a, Postgres, F, PgArguments>;

fn query_for_good<'a>(
    columns: &'a Columns<'a>,
) -> Query<'a, impl FnMut(PgRow) -> Result<Resolved, sqlx::Error> + Send + use<>> {
    sqlx::query_as!(
        Resolved,
        r#"-- resolve_run_for_good
        WITH db_now AS MATERIALIZED (SELECT now FROM db_now),
        locked AS MATERIALIZED (
            SELECT i.n, i.state, i.reason, t.id, t.priority, t.retries_left, t.lone, c.seq, c.run, c.queue, c.scheduled,
                   c.reason_created, c.started, c.taken_until, c.worker_group, c.worker_id
            FROM unnest($1::uuid[] /* ids */, $2::smallint[] /* runs */, $3::smallint[] /* states */, $4::smallint[] /* reasons */,
                        $5::text[] /* queues of holders */, $6::text[] /* their groups */, $7::text[] /* their ids */)
                WITH ORDINALITY AS i(id, run, state, reason, holder_queue, holder_group, holder_id, n)
            JOIN tasks t ON t.id = i.id
            JOIN claims c ON c.seq = t.seq AND c.run = i.run
            WHERE t.state = 1 /* State::Unresolved */ AND t.run = i.run
              AND (i.holder_queue IS NULL
                   OR (c.worker_group = i.holder_group AND c.worker_id = i.holder_id
                       AND (SELECT q.name FROM task_queues q WHERE q.id = c.queue) = i.holder_queue))
            FOR UPDATE OF t, c SKIP LOCKED
        ),
        released AS (DELETE FROM claims c USING locked l WHERE c.seq = l.seq),
        history AS (
            INSERT INTO runs (seq, run, state, reason_created, reason_resolved, scheduled, started, resolved,
                              taken_until, worker_group, worker_id)
            SELECT seq, run, state, reason_created, reason, scheduled, started, db_now.now, taken_until, worker_group,
                   worker_id
            FROM locked, db_now
        ),
        moved AS (UPDATE tasks t SET state = l.state FROM locked l WHERE t.id = l.id),
        counts AS MATERIALIZED (
            SELECT array_agg(queue) AS queues, array_agg(0 /* count */) AS pending, array_agg(-n) AS claimed
            FROM (SELECT queue, count(*)::int AS n FROM locked GROUP BY queue) c
        ),
        emitted AS (
            INSERT INTO outbox_new (at, events, kinds, seqs, runs, retries_left, priorities, queues, pending, claimed)
            -- The end of a lone task is that of its group.
            SELECT min(db_now.now), count(*) + count(*) FILTER (WHERE lone),
                   array_agg(state) || array_agg(10 /* Kind::GroupResolved */::smallint) FILTER (WHERE lone),
                   array_agg(seq) || array_agg(seq) FILTER (WHERE lone), array_agg(run) || array_agg(run) FILTER (WHERE lone),
                   array_agg(retries_left) || array_agg(retries_left) FILTER (WHERE lone),
                   array_agg(priority) || array_agg(priority) FILTER (WHERE lone),
                   min(counts.queues), min(counts.pending), min(counts.claimed)
            FROM locked, db_now, counts HAVING count(*) > 0
        )
        SELECT l.n AS "n!", l.seq, l.id, l.run, l.state AS "state!", l.reason AS "reason_resolved!", l.queue, l.priority,
               l.scheduled, l.reason_created, l.started, l.taken_until, db_now.now AS "now!", l.worker_group,
               l.worker_id, l.retries_left, NULL::smallint AS next_reason, d.scheduler, d.project, d.task_group,
               d.deadline, d.expires
        FROM locked l JOIN task_definitions d ON d.seq = l.seq, db_now"#,
        &columns.ids,
        &columns.runs,
        &columns.states,
        &columns.reasons,
        &columns.holder_queues as &[Option<&str>],
        &columns.holder_groups as &[Option<&str>],
        &columns.holder_ids as &[Option<&str>],
    )
}

#[expect(clippy::too_many_lines, reason = "one statement, one clause a line")]
fn query_any<'a>(
    columns: &'a Columns<'a>,
) -> Query<'a, impl FnMut(PgRow) -> Result<Resolved, sqlx::Error> + Send + use<>> {
    sqlx::query_as!(
        Resolved,
        r#"-- resolve_run
        WITH db_now AS MATERIALIZED (SELECT now FROM db_now),
        input AS MATERIALIZED (
            SELECT * FROM unnest(
                $1::uuid[] /* ids */, $2::smallint[] /* runs */, $3::smallint[] /* states */, $4::smallint[] /* reasons */,
                $5::text[] /* queues of holders */, $6::text[] /* their groups */, $7::text[] /* their ids */,
                $8::smallint[] /* retry reasons */, $9::boolean[] /* only if expired */, $10::boolean[] /* requeue */)
                WITH ORDINALITY AS i(id, run, state, reason, holder_queue, holder_group, holder_id, retry, expired,
                                     requeue, n)
        ),
        locked AS MATERIALIZED (
            SELECT input.n, input.state, input.reason, input.retry, input.requeue, t.id, t.priority, t.retries_left,
                   t.requeues, t.lone, c.seq, c.run, c.queue, c.ord, c.deadline, c.scheduled, c.reason_created, c.started,
                   c.taken_until, c.worker_group, c.worker_id
            FROM input
            JOIN tasks t ON t.id = input.id
            JOIN claims c ON c.seq = t.seq AND c.run = input.run
            WHERE t.state = 1 /* State::Unresolved */ AND t.run = input.run
              AND (NOT input.expired OR c.taken_until <= (SELECT now FROM db_now))
              AND (NOT input.requeue OR t.requeues < $11 /* REQUEUES_MAX */)
              AND (input.holder_queue IS NULL
                   OR (c.worker_group = input.holder_group AND c.worker_id = input.holder_id
                       AND (SELECT q.name FROM task_queues q WHERE q.id = c.queue) = input.holder_queue))
            FOR UPDATE OF t, c SKIP LOCKED
        ),
        outcome AS MATERIALIZED (
            SELECT locked.*,
                   CASE WHEN locked.requeue OR locked.retries_left > 0 THEN locked.retry END AS next_reason,
                   CASE WHEN locked.retry IS NULL OR locked.requeue OR locked.retries_left = 0 THEN locked.retries_left
                        ELSE locked.retries_left - 1 END::smallint AS retries_after,
                   locked.lone AND NOT (locked.retry IS NOT NULL AND (locked.requeue OR locked.retries_left > 0)) AS ends_group
            FROM locked
        ),
        released AS (DELETE FROM claims c USING outcome o WHERE c.seq = o.seq),
        history AS (
            INSERT INTO runs (seq, run, state, reason_created, reason_resolved, scheduled, started, resolved,
                              taken_until, worker_group, worker_id)
            SELECT seq, run, state, reason_created, reason, scheduled, started, db_now.now, taken_until, worker_group,
                   worker_id
            FROM outcome, db_now
        ),
        moved AS (
            UPDATE tasks t SET state = CASE WHEN o.next_reason IS NULL THEN o.state ELSE 1 /* State::Unresolved */ END,
                run = CASE WHEN o.next_reason IS NULL THEN t.run ELSE t.run + 1 END,
                retries_left = o.retries_after,
                requeues = t.requeues + o.requeue::int::smallint
            FROM outcome o WHERE t.id = o.id
        ),
        -- A run that was requeued keeps its place, which may lie below a low-water mark.
        runs_pending AS (
            INSERT INTO pending (seq, id, run, queue, priority, ord, deadline, scheduled, reason_created, retries_left)
            SELECT seq, id, run + 1, queue, priority, CASE WHEN requeue THEN ord ELSE nextval('pending_ord') END,
                   deadline, db_now.now, next_reason, retries_after
            FROM outcome, db_now WHERE next_reason IS NOT NULL
        ),
        raised_epochs AS (
            UPDATE task_queues q SET cursor_epoch = cursor_epoch + 1
            WHERE q.id IN (SELECT queue FROM outcome WHERE requeue)
        ),
        counts AS MATERIALIZED (
            SELECT array_agg(queue) AS queues, array_agg(retried) AS pending, array_agg(-n) AS claimed
            FROM (SELECT queue, count(next_reason)::int AS retried, count(*)::int AS n FROM outcome GROUP BY queue) c
        ),
        emitted AS (
            INSERT INTO outbox_new (at, events, kinds, seqs, runs, retries_left, priorities, queues, pending, claimed)
            -- The end of a lone task is that of its group.
            SELECT min(db_now.now), count(*) + count(next_reason) + count(*) FILTER (WHERE ends_group),
                   array_agg(CASE WHEN next_reason IS NULL THEN state ELSE 6 /* Kind::Retried */ END::smallint)
                       || array_agg(10 /* Kind::GroupResolved */::smallint) FILTER (WHERE ends_group),
                   array_agg(seq) || array_agg(seq) FILTER (WHERE ends_group),
                   array_agg(run) || array_agg(run) FILTER (WHERE ends_group),
                   array_agg(retries_after) || array_agg(retries_after) FILTER (WHERE ends_group),
                   array_agg(priority) || array_agg(priority) FILTER (WHERE ends_group), min(counts.queues), min(counts.pending), min(counts.claimed)
            FROM outcome, db_now, counts HAVING count(*) > 0
        )
        SELECT o.n AS "n!", o.seq, o.id, o.run, o.state AS "state!", o.reason AS "reason_resolved!", o.queue, o.priority,
               o.scheduled, o.reason_created, o.started, o.taken_until, db_now.now AS "now!", o.worker_group,
               o.worker_id, o.retries_after AS "retries_left!", o.next_reason, d.scheduler, d.project, d.task_group,
               d.deadline, d.expires
        FROM outcome o JOIN task_definitions d ON d.seq = o.seq, db_now"#,
        &columns.ids,
        &columns.runs,
        &columns.states,
        &columns.reasons,
        &columns.holder_queues as &[Option<&str>],
        &columns.holder_groups as &[Option<&str>],
        &columns.holder_ids as &[Option<&str>],
        &columns.retries as &[Option<i16>],
        &columns.expired,
        &columns.requeue,
        REQUEUES_MAX.cast_signed(),
    )
}
