//! Ends running runs: reports, releases, expired claims and requeues.
//!
//! [`ending::decide`](tenure_domain::policy::ending::decide) determines each outcome, and
//! [`hold::of_next_run`](tenure_domain::policy::hold::of_next_run) when the next run is ready.

mod one;

use chrono::{DateTime, Utc};
use sqlx::PgConnection;
use tenure_api::ids::TaskQueueId;
use tenure_api::states::{EndedBy, ReasonCreated, ReasonResolved};
use uuid::Uuid;

use crate::decode::{Row, Undecodable, task_columns};
use crate::hot;
use crate::hot::statement::{Run, Statement, row, statement};
use tenure_domain::lifecycle::REQUEUES_MAX;
use tenure_domain::policy::ending::Ending;
use tenure_domain::policy::hold::Start;
use tenure_domain::policy::report::{RunFailure, TaskResult};
use tenure_domain::task::{EndedRun, Last, OpenRun, Task, Tenancy};
use tenure_domain::work::Holder;

#[derive(Debug, Clone, Copy)]
pub struct Member<'a> {
    pub id: Uuid,
    pub run: i16,
    pub ending: Ending,
    /// Only for a run reported as completed or failed.
    pub result: Option<&'a TaskResult>,
    /// Only for a run reported as failed or exception.
    pub failure: Option<&'a RunFailure>,
    /// Start of the next run, if the worker requests one.
    pub start: Option<Start>,
}

impl Member<'_> {
    pub fn new(id: Uuid, run: i16, ending: Ending) -> Self {
        Self { id, run, ending, result: None, failure: None, start: None }
    }

    /// True if no run follows under any policy, and there is neither a result nor a failure. A run
    /// reported as failed may be retried, which only the traits of its claim tell.
    fn is_for_good(&self) -> bool {
        matches!(self.ending, Ending::Reported(_))
            && self.ending.retry().is_none()
            && self.result.is_none()
            && self.failure.is_none()
    }

    fn retry(&self) -> Option<i16> {
        let retry = self.ending.retry();
        #[cfg(feature = "test-util")]
        let retry = retry.filter(|_| !crate::breakage::loses_retry(self.ending));
        retry.map(ReasonCreated::code)
    }

    fn delay_seconds(&self) -> Option<f64> {
        match self.start {
            Some(Start::After(delay)) => Some(delay.as_seconds_f64()),
            Some(Start::At(_)) | None => None,
        }
    }

    fn date(&self) -> Option<DateTime<Utc>> {
        match self.start {
            Some(Start::At(date)) => Some(date),
            Some(Start::After(_)) | None => None,
        }
    }
}

/// Parameters of a statement, an array per column. The statement reads missing elements at the end
/// of an array as null, so a column without values is empty.
struct Columns<'a> {
    /// Ordinals of the members, from 1.
    numbers: Vec<i64>,
    ids: Vec<Uuid>,
    runs: Vec<i16>,
    states: Vec<i16>,
    reasons: Vec<i16>,
    holder_queues: Vec<Option<&'a str>>,
    holder_groups: Vec<Option<&'a str>>,
    holder_ids: Vec<Option<&'a str>>,
    results: Vec<Option<&'a str>>,
    failures: Vec<Option<&'a str>>,
    retries: Vec<Option<i16>>,
    ended_by: Vec<Option<i16>>,
    losses: Vec<bool>,
    delays: Vec<Option<f64>>,
    dates: Vec<Option<DateTime<Utc>>>,
}

impl<'a> Columns<'a> {
    fn new(members: &[Member<'a>], holders: &[Option<&'a Holder>]) -> Self {
        let named = holders.iter().any(Option::is_some);
        let holders = if named { holders } else { &[] };
        let results = few(members, |member| member.result.map(TaskResult::text));
        #[cfg(feature = "test-util")]
        let results = crate::breakage::perhaps_without_one(results);
        Self {
            numbers: (1..).take(members.len()).collect(),
            ids: members.iter().map(|member| member.id).collect(),
            runs: members.iter().map(|member| member.run).collect(),
            states: members.iter().map(|member| member.ending.outcome().state().code()).collect(),
            reasons: members.iter().map(|member| member.ending.outcome().reason().code()).collect(),
            holder_queues: holders.iter().map(|holder| holder.map(|holder| holder.queue.as_str())).collect(),
            holder_groups: holders.iter().map(|holder| holder.map(|holder| holder.group.as_str())).collect(),
            holder_ids: holders.iter().map(|holder| holder.map(|holder| holder.id.as_str())).collect(),
            results,
            failures: few(members, |member| member.failure.map(RunFailure::text)),
            retries: members.iter().map(Member::retry).collect(),
            ended_by: few(members, |member| member.ending.ended_by().map(EndedBy::code)),
            losses: members.iter().map(|member| member.ending.is_loss()).collect(),
            delays: few(members, Member::delay_seconds),
            dates: few(members, Member::date),
        }
    }
}

fn few<'a, T>(members: &[Member<'a>], value: impl Fn(&Member<'a>) -> Option<T>) -> Vec<Option<T>> {
    if members.iter().all(|member| value(member).is_none()) {
        return Vec::new();
    }
    members.iter().map(value).collect()
}

row! {
    #[derive(Debug)]
    pub struct Resolved {
        /// Ordinal of the member, from 1.
        n: i64,
        pub seq: i64,
        pub id: Uuid,
        pub run: i16,
        state: i16,
        reason_resolved: i16,
        ended_by: Option<i16>,
        pub queue: i32,
        priority: i16,
        pub scheduled: DateTime<Utc>,
        reason_created: i16,
        pub started: DateTime<Utc>,
        taken_until: DateTime<Utc>,
        pub now: DateTime<Utc>,
        pub worker_group: String,
        pub worker_id: String,
        retries_left: i16,
        pub next_reason: Option<i16>,
        scheduler: String,
        project: String,
        task_group: Uuid,
        deadline: DateTime<Utc>,
        expires: DateTime<Utc>,
        /// Session that held the run. None also for final reports, whose statements do not read it.
        pub session: Option<i64>,
    }
}

impl Resolved {
    /// Index of the member, from 0.
    pub fn member(&self) -> usize {
        hot::member(self.n)
    }

    pub fn reason(&self) -> Option<ReasonResolved> {
        ReasonResolved::from_code(self.reason_resolved)
    }

    pub fn ended_by(&self) -> Option<EndedBy> {
        self.ended_by.and_then(EndedBy::from_code)
    }

    /// Returns the task after the end. `history` is read after this run was added to it, or not at
    /// all for a first run.
    pub fn task(self, queue: TaskQueueId, mut history: Vec<EndedRun>) -> Result<Task, Undecodable> {
        let columns = Row { table: "runs", task: self.id };
        let ended = EndedRun {
            run: columns.open_run(self.run, self.reason_created, self.scheduled)?,
            state: columns.state(self.state)?,
            reason: columns.reason_resolved(self.reason_resolved)?,
            ended_by: columns.ended_by(self.ended_by)?,
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

/// Ends runs that are still claimed, and appends the next run if the rules allow it.
pub async fn end(conn: &mut PgConnection, members: &[Member<'_>]) -> Result<Vec<Resolved>, sqlx::Error> {
    end_held(conn, members, &[]).await
}

/// Like [`end`], but only if the named holder has the claim. `holders` may be shorter than
/// `members`.
pub async fn end_held(
    conn: &mut PgConnection,
    members: &[Member<'_>],
    holders: &[Option<&Holder>],
) -> Result<Vec<Resolved>, sqlx::Error> {
    conn.run_one(&statement(members, holders)).await?.decode()
}

/// Like [`end_held`], but always with the general statement.
pub async fn end_any(
    conn: &mut PgConnection,
    members: &[Member<'_>],
    holders: &[Option<&Holder>],
) -> Result<Vec<Resolved>, sqlx::Error> {
    conn.run_one(&any(&Columns::new(members, holders))).await?.decode()
}

pub fn statement(members: &[Member<'_>], holders: &[Option<&Holder>]) -> Statement {
    match members {
        [member] if member.is_for_good() => one::statement(member, holders.first().copied().flatten()),
        _ if members.iter().all(Member::is_for_good) => for_good(&Columns::new(members, holders)),
        _ => any(&Columns::new(members, holders)),
    }
}

fn for_good(columns: &Columns<'_>) -> Statement {
    statement!(
        Resolved,
        r#"-- resolve_run_for_good
        WITH db_now AS MATERIALIZED (SELECT now FROM db_now),
        locked AS MATERIALIZED (
            SELECT i.n, i.state, i.reason, t.id, t.priority, t.retries_left, t.lone, c.seq, c.run, c.queue, c.scheduled,
                   c.reason_created, c.started, c.taken_until, c.worker_group, c.worker_id
            -- As in create_task_alone. What is missing at the end of an array is null here, too.
            FROM (
                SELECT unnest($1::uuid[] /* ids */) AS id, unnest($2::smallint[] /* runs */) AS run,
                       unnest($3::smallint[] /* states */) AS state, unnest($4::smallint[] /* reasons */) AS reason,
                       unnest($5::text[] /* queues of holders */) AS holder_queue, unnest($6::text[] /* their groups */) AS holder_group,
                       unnest($7::text[] /* their ids */) AS holder_id, unnest($8::bigint[] /* numbers */) AS n
            ) i
            JOIN tasks t ON t.id = i.id
            JOIN claims c ON c.seq BETWEEN t.seq AND t.seq AND c.run = i.run
            WHERE t.state = 1 /* State::Unresolved */ AND t.run = i.run
              AND (i.holder_queue IS NULL
                   OR (c.worker_group = i.holder_group AND c.worker_id = i.holder_id
                       AND (SELECT q.name FROM task_queues q WHERE q.id = c.queue) = i.holder_queue))
            FOR UPDATE OF t, c SKIP LOCKED
        ),
        released AS (DELETE FROM claims c WHERE c.seq = ANY (ARRAY(SELECT l.seq FROM locked l))),
        history AS (
            INSERT INTO runs (seq, run, state, reason_created, reason_resolved, scheduled, started, resolved,
                              taken_until, worker_group, worker_id)
            SELECT seq, run, state, reason_created, reason, scheduled, started, db_now.now, taken_until, worker_group,
                   worker_id
            FROM locked, db_now
        ),
        moved AS (UPDATE tasks t SET state = l.state, losses = 0 /* count */ FROM locked l WHERE t.id = l.id),
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
        SELECT l.n AS "n!", l.seq, l.id, l.run, l.state AS "state!", l.reason AS "reason_resolved!", NULL::smallint AS ended_by,
               l.queue, l.priority, l.scheduled, l.reason_created, l.started, l.taken_until, db_now.now AS "now!", l.worker_group,
               l.worker_id, l.retries_left, NULL::smallint AS next_reason, d.scheduler, d.project, d.task_group,
               d.deadline, d.expires, NULL::bigint AS session
        FROM locked l JOIN task_definitions d ON d.seq = l.seq, db_now"#,
        &columns.ids,
        &columns.runs,
        &columns.states,
        &columns.reasons,
        &columns.holder_queues as &[Option<&str>],
        &columns.holder_groups as &[Option<&str>],
        &columns.holder_ids as &[Option<&str>],
        &columns.numbers,
    )
}

#[expect(clippy::too_many_lines, reason = "one statement, one clause a line")]
fn any(columns: &Columns<'_>) -> Statement {
    statement!(
        Resolved,
        r#"-- resolve_run
        WITH db_now AS MATERIALIZED (SELECT now FROM db_now),
        input AS MATERIALIZED (
            SELECT * FROM unnest(
                $1::uuid[] /* ids */, $2::smallint[] /* runs */, $3::smallint[] /* states */, $4::smallint[] /* reasons */,
                $5::text[] /* queues of holders */, $6::text[] /* their groups */, $7::text[] /* their ids */,
                $8::text[] /* results */, $9::smallint[] /* retry reasons */, $10::smallint[] /* ended by */,
                $11::boolean[] /* whether the worker was lost */, $12::float8[] /* delays of next runs */,
                $13::timestamptz[] /* or their dates */, $15::text[] /* failures */)
                WITH ORDINALITY AS i(id, run, state, reason, holder_queue, holder_group, holder_id, result, retry, ended_by,
                                     loss, delay, date, failure, n)
        ),
        locked AS MATERIALIZED (
            SELECT input.n, input.state, input.reason, input.result, input.failure, input.retry, input.ended_by, input.loss,
                   input.delay, input.date, t.id, t.priority, t.retries_left, t.requeues, t.losses, t.free_runs, t.lone, c.seq, c.run,
                   c.queue, c.ord, c.waited, c.deadline, c.scheduled, c.reason_created, c.started, c.taken_until, c.traits, c.key_id,
                   c.worker_group, c.worker_id, c.session,
                   -- Whether the next run waits for admission, if it is not delayed.
                   c.key_id IS NOT NULL AS again
            FROM input
            JOIN tasks t ON t.id = input.id
            JOIN claims c ON c.seq BETWEEN t.seq AND t.seq AND c.run = input.run
            WHERE t.state = 1 /* State::Unresolved */ AND t.run = input.run
              AND (input.ended_by IS DISTINCT FROM 1 /* EndedBy::Lease */ OR c.taken_until <= (SELECT now FROM db_now))
              AND (input.ended_by IS DISTINCT FROM 7 /* EndedBy::CompleteTime */ OR c.complete_by <= (SELECT now FROM db_now))
              AND (input.ended_by IS DISTINCT FROM 2 /* EndedBy::Undelivered */ OR t.requeues < $14 /* REQUEUES_MAX */)
              AND (input.ended_by IS DISTINCT FROM 3 /* EndedBy::Released */ OR t.free_runs < 200 /* FREE_RUNS_MAX */)
              AND (input.holder_queue IS NULL
                   OR (c.worker_group = input.holder_group AND c.worker_id = input.holder_id
                       AND (SELECT q.name FROM task_queues q WHERE q.id = c.queue) = input.holder_queue))
            FOR UPDATE OF t, c SKIP LOCKED
        ),
        -- Whether another run follows, and whether for nothing. Without traits nothing but a release is free.
        decided AS MATERIALIZED (
            SELECT l.*,
                   CASE WHEN retry IS NULL OR run >= 400 /* RUN_LAST */
                          OR (loss AND traits & 3 /* Traits::DELIVERY */ = 2 /* Delivery::AtMostOnce */)
                          OR (state = 4 /* State::Failed */ AND COALESCE(traits, 0) & 1024 /* Traits::RETRY_FAILED */ = 0 /* count */) THEN NULL
                        WHEN requeue OR free OR retries_left > 0 THEN retry END AS next_reason
            FROM (SELECT locked.*, ended_by IS NOT DISTINCT FROM 2 /* EndedBy::Undelivered */ AS requeue,
                         ended_by IS NOT DISTINCT FROM 3 /* EndedBy::Released */ AS release,
                         ended_by IS NOT DISTINCT FROM 3 /* EndedBy::Released */
                             OR (loss AND free_runs < 200 /* FREE_RUNS_MAX */
                                 AND COALESCE(traits & 3 /* Traits::DELIVERY */ = 1 /* Delivery::AtLeastOnce */, false)) AS free,
                         CASE WHEN loss THEN losses + 1 ELSE 0 /* count */ END::smallint AS losses_after,
                         COALESCE(date, (SELECT now FROM db_now) + make_interval(secs => delay)) AS stated
                  FROM locked) l
        ),
        -- Whether the next run keeps its place, and how long it waits if its worker does not say so: for most without a look at any table.
        waiting AS MATERIALIZED (
            SELECT d.*,
                   (requeue OR release AND (stated IS NULL OR LEAST(stated, deadline) <= (SELECT now FROM db_now)))
                       AND next_reason IS NOT NULL AS stays,
                   CASE WHEN next_reason IS NOT NULL AND NOT requeue AND NOT release AND delay IS NULL
                             AND traits & 4 /* Traits::RETRY_DELAY */ <> 0 /* count */ THEN (
                            SELECT CASE WHEN o.retry_first IS NULL THEN retry_wait(p.retry_first, p.retry_factor, p.retry_most, n.n)
                                        ELSE retry_wait(o.retry_first, o.retry_factor, o.retry_most, n.n) END
                            FROM (SELECT count(*) + 1 AS n FROM runs r
                                  LEFT JOIN runs x ON x.seq = r.seq AND x.run = r.run + 1
                                  WHERE r.seq = d.seq
                                    -- After a last failure the task was run again from the start, which is no retry.
                                    AND COALESCE(x.reason_created, d.reason_created) <> 3 /* ReasonCreated::Rerun */
                                    AND r.reason_resolved IN (1, 4, 5, 9) /* ReasonResolved: tried again */
                                    AND COALESCE(r.ended_by NOT IN (2, 3) /* EndedBy: no failure */, true)) n
                            LEFT JOIN task_options o ON o.seq = d.seq
                            LEFT JOIN queue_policies p ON p.queue = d.queue)
                        ELSE 0 /* count */ END AS retry_wait,
                   CASE WHEN loss AND losses_after > 3 /* LOSSES_FREE */
                             AND traits & 3 /* Traits::DELIVERY */ = 1 /* Delivery::AtLeastOnce */
                        THEN LEAST(power(2 /* count */, LEAST(losses_after - 4, 12 /* count */)), 3600 /* BACKOFF_MOST */) ELSE 0 /* count */ END AS backoff
            FROM decided d
        ),
        -- A run that was requeued, or released without a delay, keeps its place, which may lie below a low-water mark; one that waits
        -- for admission again, the place at which it waited. That of its admission is behind all that came before that. To keep a place
        -- takes the row of the queue; members of a queue whose row another transaction has locked are left out.
        locked_queues AS MATERIALIZED (
            SELECT q.id FROM task_queues q WHERE q.id IN (SELECT queue FROM waiting WHERE stays) FOR NO KEY UPDATE SKIP LOCKED
        ),
        raised_epochs AS (
            UPDATE task_queues q SET cursor_epoch = cursor_epoch + 1 FROM locked_queues l WHERE q.id = l.id
        ),
        outcome AS MATERIALIZED (
            SELECT w.*,
                   CASE WHEN next_reason IS NULL OR requeue OR free THEN retries_left ELSE retries_left - 1 END::smallint
                       AS retries_after,
                   lone AND next_reason IS NULL AS ends_group,
                   CASE WHEN next_reason IS NOT NULL AND starts > (SELECT now FROM db_now) THEN starts END AS held_until
            FROM (SELECT waiting.*, LEAST(deadline, COALESCE(stated, (SELECT now FROM db_now)
                                                          + make_interval(secs => GREATEST(backoff, retry_wait)))) AS starts
                  FROM waiting WHERE NOT stays OR queue IN (SELECT l.id FROM locked_queues l)) w
        ),
        released AS (DELETE FROM claims c WHERE c.seq = ANY (ARRAY(SELECT o.seq FROM outcome o))),
        history AS (
            INSERT INTO runs (seq, run, state, reason_created, reason_resolved, scheduled, started, resolved,
                              taken_until, worker_group, worker_id, ended_by)
            SELECT seq, run, state, reason_created, reason, scheduled, started, db_now.now, taken_until, worker_group,
                   worker_id, ended_by
            FROM outcome, db_now
        ),
        -- What the worker of a session did not do itself it is to know. When the session ends, it ends with all of them.
        announced AS (
            INSERT INTO session_inbox (epoch, kind, at, seq, run)
            SELECT session, 1 /* Item::RunEnded */, db_now.now, seq, run FROM outcome, db_now
            WHERE session IS NOT NULL AND ended_by IN (1, 7, 8) /* EndedBy: unknown to the worker */
        ),
        stored AS (
            INSERT INTO results (seq, run, result, failure)
            SELECT seq, run, result, failure FROM outcome WHERE result IS NOT NULL OR failure IS NOT NULL
        ),
        moved AS (
            UPDATE tasks t SET state = CASE WHEN o.next_reason IS NULL THEN o.state ELSE 1 /* State::Unresolved */ END,
                run = CASE WHEN o.next_reason IS NULL THEN t.run ELSE t.run + 1 END,
                retries_left = o.retries_after,
                requeues = t.requeues + (o.requeue AND o.next_reason IS NOT NULL)::int::smallint,
                free_runs = t.free_runs + (o.free AND o.next_reason IS NOT NULL)::int::smallint, losses = o.losses_after
            FROM outcome o WHERE t.id = o.id
        ),
        runs_pending AS (
            INSERT INTO pending (seq, id, run, queue, priority, ord, waited, deadline, scheduled, reason_created, retries_left,
                                 traits, key_id, hold, held_until, reserved_until, hidden_until)
            SELECT seq, id, run + 1, queue, priority,
                   CASE WHEN NOT stays THEN nextval('pending_ord') WHEN again THEN COALESCE(waited, ord) ELSE ord END,
                   CASE WHEN stays AND NOT again THEN waited END, deadline, db_now.now, next_reason, retries_after,
                   NULLIF(COALESCE(traits & ~224 /* Traits::DELAYED */, 0) | (CASE
                       WHEN held_until IS NULL THEN 0 /* DelayedBy::Delay */
                       WHEN release THEN 3 /* DelayedBy::Release */
                       WHEN stated IS NOT NULL THEN 4 /* DelayedBy::RetryAfter */
                       WHEN backoff > retry_wait THEN 2 /* DelayedBy::Backoff */
                       ELSE 1 /* DelayedBy::RetryDelay */ END << 5 /* Traits::DELAYED_SHIFT */), 0 /* count */)::smallint,
                   key_id, CASE WHEN held_until IS NOT NULL THEN 1 /* Hold::Delay */ WHEN again THEN 2 /* Hold::Waiting */ END,
                   held_until, CASE WHEN held_until IS NOT NULL OR again THEN timestamptz '3000-01-01 00:00Z' END,
                   CASE WHEN held_until IS NOT NULL OR again THEN timestamptz '3000-01-01 00:00Z' END
            FROM outcome, db_now WHERE next_reason IS NOT NULL
        ),
        counts AS MATERIALIZED (
            SELECT array_agg(queue) AS queues, array_agg(retried - held) AS pending, array_agg(-n) AS claimed,
                   CASE WHEN max(held) > 0 /* count */ THEN array_agg(held) END AS delayed,
                   CASE WHEN max(waiting) > 0 /* count */ THEN array_agg(waiting) END AS waiting
            FROM (SELECT queue, count(next_reason)::int AS retried, count(held_until)::int AS held,
                         (count(*) FILTER (WHERE again AND next_reason IS NOT NULL AND held_until IS NULL))::int AS waiting, count(*)::int AS n
                  FROM outcome GROUP BY queue) c
        ),
        emitted AS (
            INSERT INTO outbox_new (at, events, kinds, seqs, runs, retries_left, priorities, queues, pending, claimed,
                                    delayed, waiting)
            -- The end of a lone task is that of its group.
            SELECT min(db_now.now),
                   count(*) + count(next_reason) FILTER (WHERE state <> 4 /* State::Failed */) + count(*) FILTER (WHERE ends_group),
                   array_agg(CASE WHEN next_reason IS NULL THEN state WHEN state = 4 /* State::Failed */ THEN 15 /* Kind::RetriedFailed */
                                  ELSE 6 /* Kind::Retried */ END::smallint)
                       || array_agg(10 /* Kind::GroupResolved */::smallint) FILTER (WHERE ends_group),
                   array_agg(seq) || array_agg(seq) FILTER (WHERE ends_group),
                   array_agg(run) || array_agg(run) FILTER (WHERE ends_group),
                   array_agg(retries_after) || array_agg(retries_after) FILTER (WHERE ends_group),
                   array_agg(priority) || array_agg(priority) FILTER (WHERE ends_group), min(counts.queues), min(counts.pending), min(counts.claimed),
                   min(counts.delayed), min(counts.waiting)
            FROM outcome, db_now, counts HAVING count(*) > 0
        )
        SELECT o.n AS "n!", o.seq, o.id, o.run, o.state AS "state!", o.reason AS "reason_resolved!", o.ended_by, o.queue,
               o.priority, o.scheduled, o.reason_created, o.started, o.taken_until, db_now.now AS "now!", o.worker_group,
               o.worker_id, o.retries_after AS "retries_left!", o.next_reason, d.scheduler, d.project, d.task_group,
               d.deadline, d.expires, o.session
        FROM outcome o JOIN task_definitions d ON d.seq = o.seq, db_now"#,
        &columns.ids,
        &columns.runs,
        &columns.states,
        &columns.reasons,
        &columns.holder_queues as &[Option<&str>],
        &columns.holder_groups as &[Option<&str>],
        &columns.holder_ids as &[Option<&str>],
        &columns.results as &[Option<&str>],
        &columns.retries as &[Option<i16>],
        &columns.ended_by as &[Option<i16>],
        &columns.losses,
        &columns.delays as &[Option<f64>],
        &columns.dates as &[Option<DateTime<Utc>>],
        REQUEUES_MAX.cast_signed(),
        &columns.failures as &[Option<&str>],
    )
}
