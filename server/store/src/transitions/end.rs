//! Running to resolved, or to pending as the next run: reports of workers, expired claims and requeues are one
//! statement with different members. [`End`] says what each of them leads to.

use chrono::{DateTime, Utc};
use sqlx::PgConnection;
use tenure_api::ids::TaskQueueId;
use tenure_api::states::ReasonCreated;
use uuid::Uuid;

use crate::decode::{Row, Undecodable, task_columns};
use crate::hot;
use tenure_domain::lifecycle::{End, HAND_BACKS_MAX};
use tenure_domain::task::{EndedRun, Last, OpenRun, Task, Tenancy};

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

/// Ends the runs, each if its claim is still held, and appends the next run where the rules allow one.
#[expect(clippy::too_many_lines, reason = "one statement, one clause a line")]
pub async fn end(conn: &mut PgConnection, members: &[Member]) -> Result<Vec<Resolved>, sqlx::Error> {
    let ids: Vec<Uuid> = members.iter().map(|member| member.id).collect();
    let runs: Vec<i16> = members.iter().map(|member| member.run).collect();
    let states: Vec<i16> = members.iter().map(|member| member.end.outcome().state().code()).collect();
    let reasons: Vec<i16> = members.iter().map(|member| member.end.outcome().reason().code()).collect();
    let retries: Vec<Option<i16>> = members.iter().map(|member| member.end.retry().map(ReasonCreated::code)).collect();
    let expired: Vec<bool> = members.iter().map(|member| member.end == End::Expired).collect();
    let back: Vec<bool> = members.iter().map(|member| member.end == End::Requeue).collect();
    sqlx::query_as!(
        Resolved,
        r#"-- resolve_run
        WITH db_now AS MATERIALIZED (SELECT now FROM db_now),
        input AS MATERIALIZED (
            SELECT * FROM unnest($1::uuid[], $2::smallint[], $3::smallint[], $4::smallint[], $5::smallint[],
                                 $6::boolean[], $7::boolean[])
                WITH ORDINALITY AS i(id, run, state, reason, retry, expired, back, n)
        ),
        held AS MATERIALIZED (
            SELECT input.n, input.state, input.reason, input.retry, input.back, t.id, t.priority, t.retries_left,
                   t.hand_backs, c.seq, c.run, c.queue, c.ord, c.deadline, c.scheduled, c.reason_created, c.started,
                   c.taken_until, c.worker_group, c.worker_id
            FROM input
            JOIN tasks t ON t.id = input.id
            JOIN claims c ON c.seq = t.seq AND c.run = input.run
            WHERE t.state = 1 /* State::Unresolved */ AND t.run = input.run
              AND (NOT input.expired OR c.taken_until <= (SELECT now FROM db_now))
              AND (NOT input.back OR t.hand_backs < $8)
            FOR UPDATE OF t, c SKIP LOCKED
        ),
        decided AS MATERIALIZED (
            SELECT held.*,
                   CASE WHEN held.back OR held.retries_left > 0 THEN held.retry END AS next_reason,
                   CASE WHEN held.retry IS NULL OR held.back OR held.retries_left = 0 THEN held.retries_left
                        ELSE held.retries_left - 1 END::smallint AS retries_after
            FROM held
        ),
        released AS (DELETE FROM claims c USING decided d WHERE c.seq = d.seq),
        history AS (
            INSERT INTO runs (seq, run, state, reason_created, reason_resolved, scheduled, started, resolved,
                              taken_until, worker_group, worker_id)
            SELECT seq, run, state, reason_created, reason, scheduled, started, db_now.now, taken_until, worker_group,
                   worker_id
            FROM decided, db_now
        ),
        moved AS (
            UPDATE tasks t SET state = CASE WHEN d.next_reason IS NULL THEN d.state ELSE 1 /* State::Unresolved */ END,
                run = CASE WHEN d.next_reason IS NULL THEN t.run ELSE t.run + 1 END,
                retries_left = d.retries_after,
                hand_backs = t.hand_backs + d.back::int::smallint
            FROM decided d WHERE t.id = d.id
        ),
        -- A run that was requeued keeps its place, which may lie below a mark.
        runs_pending AS (
            INSERT INTO pending (seq, id, run, queue, priority, ord, deadline, scheduled, reason_created, retries_left)
            SELECT seq, id, run + 1, queue, priority, CASE WHEN back THEN ord ELSE nextval('pending_ord') END,
                   deadline, db_now.now, next_reason, retries_after
            FROM decided, db_now WHERE next_reason IS NOT NULL
        ),
        unmarked AS (
            UPDATE task_queues q SET cursor_epoch = cursor_epoch + 1
            WHERE q.id IN (SELECT queue FROM decided WHERE back)
        ),
        counted AS (
            INSERT INTO counter_deltas (queue, pending, claimed)
            SELECT queue, count(next_reason), -count(*) FROM decided GROUP BY queue
        ),
        emitted AS (
            INSERT INTO outbox (at, kinds, seqs, runs, retries_left, priorities)
            SELECT min(db_now.now),
                   array_agg(CASE WHEN next_reason IS NULL THEN state ELSE 6 /* Kind::Retried */ END::smallint),
                   array_agg(seq), array_agg(run), array_agg(retries_after), array_agg(priority)
            FROM decided, db_now HAVING count(*) > 0
            RETURNING id, cardinality(seqs)
                          + cardinality(array_positions(kinds, 6 /* Kind::Retried */::smallint)) AS events
        ),
        emitted_ids AS (INSERT INTO outbox_new (id, events) SELECT id, events FROM emitted)
        SELECT h.n AS "n!", h.seq, h.id, h.run, h.state AS "state!", h.reason AS "reason_resolved!", h.queue, h.priority,
               h.scheduled, h.reason_created, h.started, h.taken_until, db_now.now AS "now!", h.worker_group,
               h.worker_id, h.retries_after AS "retries_left!", h.next_reason, d.scheduler, d.project, d.task_group,
               d.deadline, d.expires
        FROM decided h JOIN task_definitions d ON d.seq = h.seq, db_now"#,
        &ids,
        &runs,
        &states,
        &reasons,
        &retries as &[Option<i16>],
        &expired,
        &back,
        HAND_BACKS_MAX.cast_signed(),
    )
    .fetch_all(conn)
    .await
}
