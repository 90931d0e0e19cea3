//! Claims the next runs of queues.

mod decided;
mod share;

use std::time::Duration;

use chrono::{DateTime, Utc};
use sqlx::PgConnection;
use tenure_api::ids::TaskQueueId;
use tenure_api::states::Priority;
use uuid::Uuid;

pub use self::decided::{Chosen, claim_decided};
pub use self::share::{ShareWant, claim_of_share};
use crate::decode::{Row, Undecodable, task_columns};
use crate::hot;
use crate::hot::statement::{Run, Statement, row, statement};
use tenure_domain::create::shown_definition;
use tenure_domain::task::{EndedRun, Granted, Last, Tenancy};

pub const PRIORITIES: usize = Priority::ALL.len();

#[derive(Debug, Clone)]
pub struct Want<'a> {
    /// `task_queues.id`.
    pub queue: i32,
    /// Expected name of the queue. If the key has another name by now, nothing is claimed.
    pub name: &'a str,
    /// Cursor epoch of the low-water marks. With another epoch, the marks are ignored.
    pub epoch: i64,
    /// For each priority, the `ord` up to which no pending run is left.
    pub marks: [i64; PRIORITIES],
    /// Worker indexes from 1, in order of assignment, once for each requested run.
    pub slots: Vec<i32>,
}

#[derive(Debug, Clone, Copy)]
pub struct Worker<'a> {
    pub group: &'a str,
    pub id: &'a str,
    /// Epoch of the session that owns its claims.
    pub session: Option<i64>,
}

/// `sessions` is empty if no worker has a session.
struct Columns<'a> {
    queues: Vec<i32>,
    names: Vec<&'a str>,
    epochs: Vec<i64>,
    marks: [Vec<i64>; PRIORITIES],
    amounts: Vec<i32>,
    slots: Vec<i32>,
    groups: Vec<&'a str>,
    ids: Vec<&'a str>,
    sessions: Vec<Option<i64>>,
}

impl<'a> Columns<'a> {
    fn new(wants: &[Want<'a>], workers: &[Worker<'a>]) -> Self {
        Self {
            queues: wants.iter().map(|want| want.queue).collect(),
            names: wants.iter().map(|want| want.name).collect(),
            epochs: wants.iter().map(|want| want.epoch).collect(),
            marks: std::array::from_fn(|priority| wants.iter().map(|want| want.marks[priority]).collect()),
            amounts: wants.iter().map(|want| hot::int4(want.slots.len())).collect(),
            slots: wants.iter().flat_map(|want| want.slots.iter().copied()).collect(),
            groups: workers.iter().map(|worker| worker.group).collect(),
            ids: workers.iter().map(|worker| worker.id).collect(),
            sessions: if workers.iter().any(|worker| worker.session.is_some()) {
                workers.iter().map(|worker| worker.session).collect()
            } else {
                Vec::new()
            },
        }
    }
}

row! {
    /// A new claim, or a run left pending because of the byte limit or the end of a session.
    #[derive(Debug)]
    pub struct Claimed {
        /// Index into the list of workers, from 1.
        pub worker: i32,
        pub seq: i64,
        pub id: Uuid,
        pub run: i16,
        pub queue: i32,
        pub priority: i16,
        pub ord: i64,
        pub scheduled: DateTime<Utc>,
        reason_created: i16,
        retries_left: i16,
        pub started: DateTime<Utc>,
        taken_until: DateTime<Utc>,
        scheduler: String,
        project: String,
        task_group: Uuid,
        deadline: DateTime<Utc>,
        expires: DateTime<Utc>,
        scopes: String,
        /// None if the run was not claimed or the definition is read later.
        definition: Option<String>,
        /// True if the run was claimed; otherwise it is still pending.
        pub made: bool,
        /// True if the worker's session has ended.
        pub session_ended: bool,
    }
}

impl Claimed {
    /// True if its definition must still be read.
    pub fn lacks_definition(&self) -> bool {
        self.made && self.definition.is_none()
    }

    pub fn add_definition(&mut self, definition: String) {
        self.definition = Some(definition);
    }

    /// Returns the claim for the response to its worker.
    pub fn describe(
        self,
        queue: TaskQueueId,
        mut ended: Vec<EndedRun>,
        worker: Worker<'_>,
    ) -> Result<Granted, Undecodable> {
        let columns = Row { table: "pending", task: self.id };
        let open = columns.open_run(self.run, self.reason_created, self.scheduled)?;
        // `ended` was read after the claim, which may have ended since.
        ended.retain(|earlier| earlier.run.run < open.run);
        let definition = self.definition.ok_or_else(|| columns.invalid("definition", 0))?;
        let tenancy = Tenancy {
            worker_group: worker.group.to_owned(),
            worker_id: worker.id.to_owned(),
            started: self.started,
            taken_until: self.taken_until,
        };
        let last = Last::Running(open, tenancy.clone());
        Ok(Granted {
            run: open.run,
            now: self.started,
            scopes: self.scopes,
            definition: Some(shown_definition(definition, columns.priority(self.priority)?)),
            task: task_columns!(self).task("pending", queue, last, ended)?,
            tenancy,
        })
    }
}

/// Byte limit of definitions in one response, as for a page. The first definition is sent at any
/// size.
pub const ANSWER_BYTES_MAX: i64 = 16 << 20;
/// Byte limit of definitions that one statement claims.
pub const BATCH_BYTES_MAX: i64 = 4 * ANSWER_BYTES_MAX;

/// Byte limit of definitions in the result of a tick. The rest is read later: a backend does not
/// commit while it waits for its result to be received.
pub const TICK_BYTES_MAX: i64 = 4 << 20;

/// Claims the requested runs, highest priority and oldest first, and assigns them to slots in
/// order.
///
/// The lease comes from the queue's policy, or is `lease`. In each queue, claims stop before the
/// first run over the byte limit, or whose worker's session has ended. That run and all later ones
/// stay pending and are returned without a definition.
pub async fn claim(
    conn: &mut PgConnection,
    wants: &[Want<'_>],
    workers: &[Worker<'_>],
    lease: Duration,
    batch: Uuid,
) -> Result<Vec<Claimed>, sqlx::Error> {
    conn.run_one(&statement_showing(wants, workers, lease, batch, i64::MAX)).await?.decode()
}

/// Like [`claim`], always by the statement for several queues.
pub async fn claim_of_many(
    conn: &mut PgConnection,
    wants: &[Want<'_>],
    workers: &[Worker<'_>],
    lease: Duration,
    batch: Uuid,
) -> Result<Vec<Claimed>, sqlx::Error> {
    conn.run_one(&many(&Columns::new(wants, workers), lease, batch, i64::MAX)).await?.decode()
}

pub fn statement(wants: &[Want<'_>], workers: &[Worker<'_>], lease: Duration, batch: Uuid) -> Statement {
    statement_showing(wants, workers, lease, batch, TICK_BYTES_MAX)
}

fn statement_showing(
    wants: &[Want<'_>],
    workers: &[Worker<'_>],
    lease: Duration,
    batch: Uuid,
    shown_bytes: i64,
) -> Statement {
    let columns = Columns::new(wants, workers);
    match wants {
        [want] if columns.sessions.is_empty() => one(want, &columns, lease, batch, shown_bytes),
        _ => many(&columns, lease, batch, shown_bytes),
    }
}

/// Claims runs of one queue. `ANSWER_BYTES_MAX` bounds all responses together; callers request the
/// rest at once.
#[expect(clippy::too_many_lines, reason = "one statement, one clause a line")]
fn one(want: &Want<'_>, columns: &Columns<'_>, lease: Duration, batch: Uuid, shown_bytes: i64) -> Statement {
    statement!(
        Claimed,
        r#"-- claim_work_of_one
        WITH db_now AS MATERIALIZED (SELECT now FROM db_now),
        requested AS MATERIALIZED (
            SELECT q.cursor_epoch = $3 /* epoch */ AS same_epoch,
                   -- Without pollers no message is hidden, and half of the scans find nothing.
                   CASE WHEN q.polled THEN '{t,f}' ELSE '{f}' END::boolean[] AS hidden, db_now.now,
                   db_now.now + make_interval(secs => COALESCE(q.claim_timeout, $9 /* lease */)) AS taken_until,
                   db_now.now + make_interval(secs => q.complete_time) AS complete_by
            FROM task_queues q, db_now WHERE q.id = $1 /* queue */ AND q.name = $2 /* name */ AND q.paused IS NULL AND q.key_by IS NULL
        ),
        -- As in claim_of_many.
        selected AS MATERIALIZED (
            SELECT p.* FROM requested
            CROSS JOIN LATERAL unnest('{0,1,2,3,4,5,6}' /* Priority: all */::smallint[], $4::bigint[] /* marks */) AS m(priority, mark)
            CROSS JOIN LATERAL unnest(requested.hidden) AS h(hidden)
            CROSS JOIN LATERAL (
                SELECT p.seq, p.id, p.run, p.priority, p.ord, p.deadline, p.scheduled, p.reason_created, p.retries_left,
                       p.traits, p.key_id, p.waited, p.bytes AS size
                FROM pending p
                WHERE p.queue = $1 AND p.priority = m.priority AND p.reserved_until IS NULL
                  AND (p.hidden_until IS NOT NULL) = h.hidden
                  AND p.ord > CASE WHEN requested.same_epoch THEN m.mark ELSE 0 /* ord */ END
                  AND p.deadline > (SELECT now FROM db_now)
                ORDER BY p.ord
                FOR UPDATE SKIP LOCKED
            ) p
            LIMIT $5 /* amount */
        ),
        -- Only runs that the ordinary create made say their size; of others the definition is looked at.
        sized AS MATERIALIZED (
            SELECT s.*, row_number() OVER so_far AS place,
                   sum(COALESCE(s.size, (SELECT octet_length(d.definition) FROM task_definitions d WHERE d.seq = s.seq)))
                       OVER so_far AS bytes
            FROM selected s
            WINDOW so_far AS (ORDER BY s.priority, s.ord ROWS UNBOUNDED PRECEDING)
        ),
        fitting AS MATERIALIZED (
            SELECT s.*, ($6::int[] /* slots */)[place] AS worker,
                   s.bytes <= $11 /* ANSWER_BYTES_MAX */ OR s.place = 1 /* count */ AS fits
            FROM sized s
        ),
        granted AS MATERIALIZED (SELECT * FROM fitting WHERE fits),
        deleted AS (DELETE FROM pending p WHERE p.seq = ANY (ARRAY(SELECT g.seq FROM granted g))),
        inserted AS (
            INSERT INTO claims (seq, id, run, queue, ord, waited, deadline, scheduled, reason_created, retries_left, traits, key_id,
                                started, taken_until, complete_by, worker_group, worker_id, batch)
            SELECT seq, id, run, $1, ord, waited, deadline, scheduled, reason_created, retries_left, traits, key_id, r.now, r.taken_until,
                   CASE WHEN traits & 3 /* Traits::DELIVERY */ = 2 /* Delivery::AtMostOnce */ THEN NULL
                        WHEN traits & 8 /* Traits::OWN_COMPLETE_TIME */ <> 0 /* count */ THEN r.now + make_interval(secs => (
                            SELECT NULLIF(o.complete_time, 0 /* count */) FROM task_options o WHERE o.seq = g.seq))
                        ELSE r.complete_by END,
                   ($7::text[] /* worker groups */)[worker], ($8::text[] /* worker ids */)[worker], $10 /* batch */
            FROM granted g, requested r
        ),
        emitted AS (
            INSERT INTO outbox_new
                (at, taken_until, events, kinds, seqs, runs, retries_left, priorities, queues, pending, claimed)
            SELECT min(r.now), min(r.taken_until), count(*), array_agg(2 /* Kind::Claimed */::smallint),
                   array_agg(seq), array_agg(run), array_agg(retries_left), array_agg(priority), ARRAY[$1],
                   ARRAY[-count(*)::int], ARRAY[count(*)::int]
            FROM granted, requested r HAVING count(*) > 0
        )
        SELECT s.worker AS "worker!", s.seq AS "seq!", s.id AS "id!", s.run AS "run!", $1 AS "queue!",
               s.priority AS "priority!", s.ord AS "ord!", s.scheduled AS "scheduled!",
               s.reason_created AS "reason_created!", s.retries_left AS "retries_left!", r.now AS "started!",
               r.taken_until AS "taken_until!", d.scheduler AS "scheduler!", d.project AS "project!",
               d.task_group AS "task_group!", s.deadline AS "deadline!", d.expires AS "expires!", d.scopes AS "scopes!",
               CASE WHEN s.fits AND s.bytes <= $12 /* TICK_BYTES_MAX, or no limit */ THEN d.definition END AS definition,
               s.fits AS "made!", false AS "session_ended!"
        FROM fitting s JOIN task_definitions d ON d.seq = s.seq, requested r"#,
        want.queue,
        want.name,
        want.epoch,
        &want.marks as &[i64],
        i64::from(hot::int4(want.slots.len())),
        &columns.slots,
        &columns.groups as &[&str],
        &columns.ids as &[&str],
        lease.as_secs_f64(),
        batch,
        ANSWER_BYTES_MAX,
        shown_bytes,
    )
}

/// Claims runs of several queues, or for workers with sessions.
#[expect(clippy::too_many_lines, reason = "one statement, one clause a line")]
fn many(columns: &Columns<'_>, lease: Duration, batch: Uuid, shown_bytes: i64) -> Statement {
    statement!(
        Claimed,
        r#"-- claim_work
        WITH db_now AS MATERIALIZED (SELECT now FROM db_now),
        requested AS MATERIALIZED (
            SELECT w.*, sum(w.amount) OVER (ORDER BY w.n) - w.amount AS slots_before
            FROM unnest(
                $1::int[] /* queues */, $2::bigint[] /* epochs */, $3::int[] /* amounts */,
                $4::bigint[] /* marks of priority 0 */, $5::bigint[] /* of 1 */, $6::bigint[] /* of 2 */,
                $7::bigint[] /* of 3 */, $8::bigint[] /* of 4 */, $9::bigint[] /* of 5 */, $10::bigint[] /* of 6 */,
                $18::text[] /* names */)
                WITH ORDINALITY AS w(queue, epoch, amount, m0, m1, m2, m3, m4, m5, m6, name, n)
        ),
        -- One scan per queue: priority by priority, each from its low-water mark, until enough is found. Runs whose message a poller
        -- holds go before the others, because pollers take the oldest. The nested loops keep the order, and rows past
        -- the limit are never locked.
        selected AS MATERIALIZED (
            SELECT requested.slots_before, COALESCE(q.claim_timeout, $14 /* lease */) AS lease, q.complete_time, p.*
            FROM requested JOIN task_queues q ON q.id = requested.queue AND q.name = requested.name
                 AND q.paused IS NULL AND q.key_by IS NULL
            CROSS JOIN LATERAL (
                SELECT p.* FROM unnest(
                    ARRAY[0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6] /* Priority: all */::smallint[],
                    ARRAY[true, false, true, false, true, false, true, false, true, false, true, false, true, false],
                    ARRAY[requested.m0, requested.m0, requested.m1, requested.m1, requested.m2, requested.m2,
                          requested.m3, requested.m3, requested.m4, requested.m4, requested.m5, requested.m5,
                          requested.m6, requested.m6]
                ) AS m(priority, hidden, mark)
                CROSS JOIN LATERAL (
                    SELECT p.seq, p.id, p.run, p.queue, p.priority, p.ord, p.deadline, p.scheduled, p.reason_created,
                           p.retries_left, p.traits, p.key_id, p.waited
                    FROM pending p
                    WHERE p.queue = requested.queue AND p.priority = m.priority AND p.reserved_until IS NULL
                      AND (p.hidden_until IS NOT NULL) = m.hidden
                      AND p.ord > CASE WHEN q.cursor_epoch = requested.epoch THEN m.mark ELSE 0 /* ord */ END
                      AND p.deadline > (SELECT now FROM db_now)
                    ORDER BY p.ord
                    FOR UPDATE SKIP LOCKED
                ) p
                LIMIT requested.amount
            ) p
        ),
        -- The n-th run of a queue goes to the worker at its n-th slot.
        assigned AS MATERIALIZED (
            SELECT s.*, ($11::int[] /* slots */)[slots_before + place] AS worker
            FROM (SELECT selected.*, octet_length(d.definition) AS bytes,
                         row_number() OVER (PARTITION BY slots_before ORDER BY selected.priority, selected.ord) AS place,
                         sum(octet_length(d.definition)) OVER (ORDER BY slots_before, selected.priority, selected.ord ROWS UNBOUNDED PRECEDING) AS batch_bytes
                  FROM selected JOIN task_definitions d ON d.seq = selected.seq) s
        ),
        -- A scalar subquery is never hashed, which would read all sessions, and runs for workers with a session only.
        sized AS MATERIALIZED (
            SELECT a.*, session IS NOT NULL
                   AND COALESCE((SELECT w.ended IS NOT NULL FROM worker_sessions w WHERE w.epoch = session), true) AS session_ended,
                   sum(bytes) OVER (PARTITION BY worker ORDER BY place) AS answer_bytes
            FROM (SELECT assigned.*, ($20::bigint[] /* sessions */)[worker] AS session FROM assigned) a
        ),
        -- What is claimed of a queue has no gap, so that a run never goes before one that it should come after.
        fitting AS MATERIALIZED (
            SELECT s.*, bool_and(NOT session_ended AND (answer_bytes <= $16 /* ANSWER_BYTES_MAX */ OR answer_bytes = bytes)
                                 AND (batch_bytes <= $17 /* BATCH_BYTES_MAX */ OR batch_bytes = bytes))
                       OVER (PARTITION BY slots_before ORDER BY place) AS fits
            FROM sized s
        ),
        granted AS MATERIALIZED (SELECT * FROM fitting WHERE fits),
        deleted AS (DELETE FROM pending p WHERE p.seq = ANY (ARRAY(SELECT g.seq FROM granted g))),
        inserted AS (
            INSERT INTO claims (seq, id, run, queue, ord, waited, deadline, scheduled, reason_created, retries_left, traits, key_id,
                                started, taken_until, complete_by, worker_group, worker_id, batch, session)
            SELECT seq, id, run, queue, ord, waited, deadline, scheduled, reason_created, retries_left, traits, key_id, db_now.now,
                   db_now.now + make_interval(secs => lease),
                   CASE WHEN traits & 3 /* Traits::DELIVERY */ = 2 /* Delivery::AtMostOnce */ THEN NULL
                        WHEN traits & 8 /* Traits::OWN_COMPLETE_TIME */ <> 0 /* count */ THEN db_now.now + make_interval(secs => (
                            SELECT NULLIF(o.complete_time, 0 /* count */) FROM task_options o WHERE o.seq = g.seq))
                        ELSE db_now.now + make_interval(secs => complete_time) END,
                   ($12::text[] /* worker groups */)[worker], ($13::text[] /* worker ids */)[worker], $15 /* batch */, session
            FROM granted g, db_now
        ),
        -- A row of the outbox has one end of the lease.
        counts AS MATERIALIZED (
            SELECT lease, array_agg(queue) AS queues, array_agg(-n) AS pending, array_agg(n) AS claimed
            FROM (SELECT lease, queue, count(*)::int AS n FROM granted GROUP BY lease, queue) c GROUP BY lease
        ),
        emitted AS (
            INSERT INTO outbox_new
                (at, taken_until, events, kinds, seqs, runs, retries_left, priorities, queues, pending, claimed)
            SELECT min(db_now.now), min(db_now.now) + make_interval(secs => c.lease), count(*),
                   array_agg(2 /* Kind::Claimed */::smallint), array_agg(seq), array_agg(run), array_agg(retries_left),
                   array_agg(priority), min(c.queues), min(c.pending), min(c.claimed)
            FROM granted g JOIN counts c ON c.lease = g.lease, db_now GROUP BY c.lease
        )
        SELECT f.worker AS "worker!", f.seq AS "seq!", f.id AS "id!", f.run AS "run!", f.queue AS "queue!",
               f.priority AS "priority!", f.ord AS "ord!", f.scheduled AS "scheduled!",
               f.reason_created AS "reason_created!", f.retries_left AS "retries_left!", db_now.now AS "started!",
               db_now.now + make_interval(secs => f.lease) AS "taken_until!", d.scheduler AS "scheduler!",
               d.project AS "project!", d.task_group AS "task_group!", f.deadline AS "deadline!",
               d.expires AS "expires!", d.scopes AS "scopes!",
               CASE WHEN f.fits AND f.batch_bytes <= $19 /* TICK_BYTES_MAX, or no limit */ THEN d.definition END AS definition,
               f.fits AS "made!", f.session_ended AS "session_ended!"
        FROM fitting f JOIN task_definitions d ON d.seq = f.seq, db_now"#,
        &columns.queues,
        &columns.epochs,
        &columns.amounts,
        &columns.marks[0],
        &columns.marks[1],
        &columns.marks[2],
        &columns.marks[3],
        &columns.marks[4],
        &columns.marks[5],
        &columns.marks[6],
        &columns.slots,
        &columns.groups as &[&str],
        &columns.ids as &[&str],
        lease.as_secs_f64(),
        batch,
        ANSWER_BYTES_MAX,
        BATCH_BYTES_MAX,
        &columns.names as &[&str],
        shown_bytes,
        &columns.sessions as &[Option<i64>],
    )
}
