//! Admission: statements that let waiting runs start.
//!
//! Most need a transaction that holds the queue's [`lock`], which excludes other starts in that
//! queue. Exceptions are [`list_queues`], [`list_startable`] and [`announce_put_off`].

pub mod key_rules;
mod keys;
mod load;
mod marks;
mod reassign;
pub mod runnable;
mod sessions;
mod start;
pub mod waiting;

use chrono::{DateTime, Utc};
use sqlx::PgConnection;
use tenure_domain::admission::PRIORITIES;
use tenure_domain::policy::document::{Admission, Policy};
use uuid::Uuid;

use super::events::Sequenced;

pub use keys::{Announced, HeadInputs, announce_put_off, forget_idle_keys, list_unseen_keys, name_keys, update_heads};
pub use load::{Counted, FoundHeads, Heads, find_waiting, load_heads, load_keys};
pub use marks::{Learned, Mark, Marks};
pub use reassign::{GivenOut, Reassigning, end_reassigning, list_given_out, lock_reassigning, lock_still_assigned};
pub(crate) use sessions::lock_runs_of;
pub use sessions::{
    AssignedRun, TakenBack, announce_after_quarantine, assign, list_assigned, load_sessions, lock_given,
    lock_not_accepted, lock_waiting, restart_assigned, take_back,
};
pub(crate) use start::Stored;
pub use start::{store, store_state, take_turn};

/// Announced keys per transaction.
pub const KEYS_MAX: i64 = 500;

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Listed {
    pub queue: i32,
    pub limited: bool,
    /// True if there may be work.
    pub due: bool,
    /// True if sessions receive the runs: only the scheduler admits them.
    pub assigns: bool,
    /// True if runs of a lost scheduler must be taken back.
    pub reassigning: bool,
    /// Seconds until the next postponed head is due.
    pub next_in: Option<f64>,
}

/// Lists all queues with admission. A queue is due if it has an announcement or a due head. An
/// assign queue below its total is also due with a ready head and a free session.
pub async fn list_queues(
    conn: &mut PgConnection,
    sequenced: Sequenced,
    marks: &Marks,
) -> Result<Vec<Listed>, sqlx::Error> {
    let (marked, xids) = marks.of_queues();
    sqlx::query_as!(
        Listed,
        r#"-- list_admission_queues
        WITH db_now AS MATERIALIZED (SELECT now FROM db_now),
        changed AS MATERIALIZED (
            SELECT d.queue, sum(d.pending + d.claimed - COALESCE(d.waiting, 0)) AS used
            FROM unsequenced($3) n, unnest(n.queues, n.pending, n.claimed, n.waiting) AS d(queue, pending, claimed, waiting)
            GROUP BY d.queue
        )
        SELECT a.queue, a.assigns, q.key_by IS NOT NULL AS "limited!", a.reassign_ord IS NOT NULL AS "reassigning!",
               -- Scalar subqueries are never hashed, which would read all rows of all queues.
               (SELECT true FROM admission_work w WHERE w.queue = a.queue AND w.xid >= COALESCE(m.xid, 0 /* id */)
                ORDER BY w.xid, w.id LIMIT 1) IS NOT NULL
                   OR EXISTS (SELECT FROM admission_heads h WHERE h.queue = a.queue AND h.at <= (SELECT now FROM db_now))
                   OR q.key_by IS NULL
                   OR a.assigns AND q.paused IS NULL
                      AND EXISTS (SELECT FROM admission_heads h WHERE h.queue = a.queue AND h.ready)
                      AND COALESCE((SELECT p.policy::jsonb #>> '{concurrency,total}' FROM queue_policies p WHERE p.queue = a.queue)::bigint
                                   > COALESCE((SELECT c.used FROM changed c WHERE c.queue = a.queue), 0 /* count */)
                                     + COALESCE((SELECT b.pending + b.claimed - b.waiting FROM counters b WHERE b.queue = a.queue), 0 /* count */),
                                   true)
                      AND EXISTS (
                          SELECT FROM worker_sessions s
                          WHERE s.queue = a.queue AND s.ended IS NULL AND NOT s.extended AND NOT s.frozen
                            AND s.capacity > (SELECT count(*) FROM claims c WHERE c.session = s.epoch)
                                + (SELECT count(*) FROM pending p WHERE p.session = s.epoch AND p.hold = 3 /* Hold::Assigned */))
                      AS "due!",
               (SELECT extract(epoch FROM min(h.at) - (SELECT now FROM db_now))::float8 FROM admission_heads h
                WHERE h.queue = a.queue AND h.at > (SELECT now FROM db_now)) AS next_in
        FROM admission_queues a JOIN task_queues q ON q.id = a.queue
        LEFT JOIN unnest($1::int[], $2::bigint[]) AS m(queue, xid) ON m.queue = a.queue
        ORDER BY a.queue"#,
        &marked,
        &xids,
        sequenced.0
    )
    .fetch_all(conn)
    .await
}

/// Filters `queues` to pull queues in which a run may start for a request: with an announcement, a
/// due head, or a ready head within the limits.
pub async fn list_startable(
    conn: &mut PgConnection,
    sequenced: Sequenced,
    queues: &[i32],
    marks: &Marks,
) -> Result<Vec<i32>, sqlx::Error> {
    let xids: Vec<i64> = queues.iter().map(|queue| marks.of_queue(*queue).xid).collect();
    sqlx::query_scalar!(
        r#"-- list_startable
        WITH db_now AS MATERIALIZED (SELECT now FROM db_now),
        changed AS MATERIALIZED (
            SELECT d.queue, sum(d.pending + d.claimed - COALESCE(d.waiting, 0)) AS used
            FROM unsequenced($2) n, unnest(n.queues, n.pending, n.claimed, n.waiting) AS d(queue, pending, claimed, waiting)
            GROUP BY d.queue
        )
        SELECT a.queue FROM unnest($1::int[], $3::bigint[]) AS i(queue, xid)
        JOIN admission_queues a ON a.queue = i.queue AND NOT a.assigns
        JOIN task_queues q ON q.id = a.queue AND q.paused IS NULL AND q.key_by IS NOT NULL
        LEFT JOIN queue_policies p ON p.queue = a.queue
        LEFT JOIN LATERAL (
            SELECT s.tat FROM admission_state s WHERE s.queue = a.queue ORDER BY s.version DESC LIMIT 1
        ) s ON true
        -- Scalar subqueries are never hashed, which would read all rows of all queues.
        -- Ordered, so that each goes by its index.
        WHERE (SELECT true FROM admission_work w WHERE w.queue = i.queue AND w.xid >= i.xid ORDER BY w.xid, w.id LIMIT 1)
           OR (SELECT true FROM admission_heads h WHERE h.queue = i.queue AND h.at <= (SELECT now FROM db_now) ORDER BY h.at LIMIT 1)
           OR (SELECT true FROM admission_heads h WHERE h.queue = i.queue AND h.ready ORDER BY h.priority, h.vtime, h.key_id LIMIT 1)
              AND (p.policy::jsonb #>> '{rate,total}' IS NULL OR to_timestamp(COALESCE(s.tat, 0)) <= (SELECT now FROM db_now))
              AND COALESCE((p.policy::jsonb #>> '{concurrency,total}')::bigint
                           > COALESCE((SELECT c.used FROM changed c WHERE c.queue = i.queue), 0 /* count */)
                             + COALESCE((SELECT b.pending + b.claimed - b.waiting FROM counters b WHERE b.queue = i.queue), 0 /* count */),
                           true)"#,
        queues,
        sequenced.0,
        &xids
    )
    .fetch_all(conn)
    .await
}

/// Returns the seconds until the first dated head is due.
pub async fn find_next_look(transaction: &mut PgConnection, queue: i32) -> Result<Option<f64>, sqlx::Error> {
    sqlx::query_scalar!(
        "-- find_next_look
        SELECT extract(epoch FROM min(at) - (SELECT now FROM db_now))::float8 FROM admission_heads
        WHERE queue = $1 AND at IS NOT NULL",
        queue
    )
    .fetch_one(transaction)
    .await
}

#[derive(Debug)]
pub struct Locked {
    pub queue: i32,
    pub name: String,
    /// None if its runs need no admission.
    pub limits: Option<Admission>,
    pub paused: bool,
    /// Next token of the queue's rate, in seconds since 1970.
    pub tat: f64,
    /// By priority, the least virtual time of a head that may start.
    pub least: [f64; PRIORITIES],
    pub now: DateTime<Utc>,
    /// Version of `tat` and `least`; 0 if unset.
    pub version: i64,
    /// Zero unless a limit of the queue depends on it.
    pub used: Used,
    /// Announcements taken by this transaction, and due keys.
    pub announced: Vec<Announced>,
    /// Where the next transaction begins to read announcements.
    pub mark: Mark,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Take {
    /// The first [`KEYS_MAX`] after this mark.
    From(Mark),
    Nothing,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Leader {
    pub server: Uuid,
    pub term: Option<i64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IfLocked {
    Wait,
    Skip,
}

#[derive(Debug, Clone, Copy)]
pub struct Reading {
    pub sequenced: Sequenced,
    pub take: Take,
}

/// Locks a queue for admission. None if its runs need no admission, or it is locked. An assign
/// queue is locked only in the term of its scheduler, so a replaced scheduler finds no row.
///
/// PostgreSQL aborts the transaction after one idle second.
pub async fn lock(
    transaction: &mut PgConnection,
    queue: i32,
    leader: Leader,
    if_locked: IfLocked,
    reading: Reading,
) -> Result<Option<Locked>, sqlx::Error> {
    #[cfg(feature = "test-util")]
    let leader = perhaps_renewed(transaction, queue, leader).await?;
    // A separate statement: the snapshots of later ones are newer than the lock.
    let locked = if if_locked == IfLocked::Wait {
        sqlx::query!(
            "-- lock_admission
            SELECT set_config('idle_in_transaction_session_timeout', '1s', true) FROM admission_queues
            WHERE queue = $1 AND (NOT assigns OR (server = $2 /* server */ AND term = $3 /* term */)) FOR UPDATE",
            queue,
            leader.server,
            leader.term
        )
        .fetch_optional(&mut *transaction)
        .await?
        .is_some()
    } else {
        sqlx::query!(
            "-- lock_admission_or_skip
            SELECT set_config('idle_in_transaction_session_timeout', '1s', true) FROM admission_queues
            WHERE queue = $1 AND (NOT assigns OR (server = $2 /* server */ AND term = $3 /* term */))
            FOR UPDATE SKIP LOCKED",
            queue,
            leader.server,
            leader.term
        )
        .fetch_optional(&mut *transaction)
        .await?
        .is_some()
    };
    if locked { read_locked(transaction, queue, reading).await } else { Ok(None) }
}

/// Locks a queue of any kind, in any term, to start a named run. Waits.
pub async fn lock_for_start(
    transaction: &mut PgConnection,
    queue: i32,
    reading: Reading,
) -> Result<Option<Locked>, sqlx::Error> {
    let locked = sqlx::query!(
        "-- lock_admission_for_start
        SELECT set_config('idle_in_transaction_session_timeout', '1s', true) FROM admission_queues
        WHERE queue = $1 FOR UPDATE",
        queue
    )
    .fetch_optional(&mut *transaction)
    .await?;
    match locked {
        Some(_) => read_locked(transaction, queue, reading).await,
        None => Ok(None),
    }
}

/// Reads a locked queue, and takes its announcements.
#[expect(clippy::too_many_lines, reason = "one statement, one clause a line")]
async fn read_locked(
    transaction: &mut PgConnection,
    queue: i32,
    reading: Reading,
) -> Result<Option<Locked>, sqlx::Error> {
    let (mark, most) = match reading.take {
        Take::From(mark) => (mark, KEYS_MAX),
        Take::Nothing => (Mark::default(), 0),
    };
    let row = sqlx::query!(
        r#"-- read_admission
        WITH db_now AS MATERIALIZED (SELECT now FROM db_now),
        locked AS MATERIALIZED (
            SELECT q.name, q.key_by, q.paused IS NOT NULL AS paused, p.policy, a.assigns
            FROM admission_queues a JOIN task_queues q ON q.id = a.queue LEFT JOIN queue_policies p ON p.queue = a.queue
            WHERE a.queue = $1
        ),
        changed AS MATERIALIZED (
            SELECT sum(d.pending) AS pending, sum(d.claimed) AS claimed, sum(d.waiting) AS waiting
            FROM unsequenced($2) n, unnest(n.queues, n.pending, n.claimed, n.waiting) AS d(queue, pending, claimed, waiting)
            WHERE d.queue = $1
        ),
        next AS MATERIALIZED (
            SELECT w.xid, w.id FROM admission_work w
            WHERE w.queue = $1 AND (w.xid, w.id) > ($3::bigint /* id */, $4::bigint /* id */)
              AND EXISTS (SELECT FROM locked WHERE key_by IS NOT NULL)
            ORDER BY w.xid, w.id LIMIT $5
        ),
        last AS MATERIALIZED (SELECT n.xid, n.id FROM next n ORDER BY n.xid DESC, n.id DESC LIMIT 1),
        taken AS (
            -- The same rows, by their index whatever the statistics say.
            DELETE FROM admission_work w
            WHERE w.queue = $1 AND (w.xid, w.id) > ($3, $4) AND (w.xid, w.id) <= ((SELECT l.xid FROM last l), (SELECT l.id FROM last l))
            RETURNING w.xid, w.id, w.key_id, w.priority, w.ord, w.seq
        ),
        due AS MATERIALIZED (
            SELECT key_id FROM admission_heads
            WHERE queue = $1 AND at <= (SELECT now FROM db_now) AND EXISTS (SELECT FROM locked WHERE key_by IS NOT NULL)
            ORDER BY at LIMIT $5
        ),
        announced AS MATERIALIZED (
            SELECT xid, id, key_id, priority, ord, seq FROM taken
            UNION ALL SELECT DISTINCT NULL::bigint, NULL::bigint, key_id, NULL::smallint, NULL::bigint, NULL::bigint FROM due
        ),
        -- One row, so that a queue without announcements is read too.
        listed AS MATERIALIZED (
            SELECT array_agg(xid ORDER BY xid, id) AS xids, array_agg(id ORDER BY xid, id) AS ids,
                   array_agg(key_id ORDER BY xid, id) AS keys, array_agg(priority ORDER BY xid, id) AS priorities,
                   array_agg(ord ORDER BY xid, id) AS ords, array_agg(seq ORDER BY xid, id) AS seqs,
                   array_agg(EXISTS (SELECT FROM admission_keys k WHERE k.id = key_id) ORDER BY xid, id) AS named
            FROM announced
        )
        SELECT l.name, l.key_by, l.paused AS "paused!", l.policy AS "policy?", l.assigns, db_now.now AS "now!",
               COALESCE(s.version, 0) AS "version!", COALESCE(s.tat, 0) AS "tat!", s.least AS "least?",
               -- Counted where a limit depends on it.
               CASE WHEN l.policy::jsonb #> '{concurrency,total}' IS NOT NULL
                      OR l.assigns AND l.policy::jsonb #> '{rate,total}' IS NOT NULL THEN (
                   SELECT ARRAY[COALESCE(b.pending, 0) - COALESCE(b.waiting, 0) + COALESCE(c.pending, 0) - COALESCE(c.waiting, 0),
                                COALESCE(b.claimed, 0) + COALESCE(c.claimed, 0)]::bigint[]
                   FROM changed c LEFT JOIN counters b ON b.queue = $1) END AS "used?",
               pg_snapshot_xmin(pg_current_snapshot())::text::bigint AS "oldest!",
               x.xids AS "xids?: Vec<Option<i64>>", x.ids AS "ids?: Vec<Option<i64>>", x.keys AS "keys?: Vec<i64>",
               x.priorities AS "priorities?: Vec<Option<i16>>", x.ords AS "ords?: Vec<Option<i64>>",
               x.seqs AS "seqs?: Vec<Option<i64>>", x.named AS "named?: Vec<bool>"
        FROM locked l CROSS JOIN db_now CROSS JOIN listed x
        LEFT JOIN LATERAL (
            SELECT version, tat, least FROM admission_state WHERE queue = $1 ORDER BY version DESC LIMIT 1
        ) s ON true"#,
        queue,
        reading.sequenced.0,
        mark.xid,
        mark.id,
        most
    )
    .fetch_optional(transaction)
    .await?;
    let Some(row) = row else { return Ok(None) };
    let policy = match row.policy.filter(|_| row.key_by.is_some()) {
        None => None,
        Some(text) => {
            Some(Policy::from_stored(&text).map_err(|error| sqlx::Error::Decode(format!("{error:?}").into()))?)
        }
    };
    let limits = policy.as_ref().and_then(Policy::admission);
    if limits.as_ref().is_some_and(|limits| limits.assign != row.assigns) {
        // The policy was changed concurrently, and this statement has read the old one.
        return Ok(None);
    }
    let least = row.least.map_or(Ok([0.0; PRIORITIES]), |least| {
        least.try_into().map_err(|least: Vec<f64>| {
            sqlx::Error::Decode(format!("admission_state.least of {queue} has {} numbers", least.len()).into())
        })
    })?;
    let mut announced = Vec::new();
    let (mut last, mut taken) = (Mark::default(), 0);
    let columns = row.keys.into_iter().flatten().zip(row.xids.into_iter().flatten().zip(row.ids.into_iter().flatten()));
    let of_runs = row.priorities.into_iter().flatten().zip(row.ords.into_iter().flatten());
    let of_keys = row.seqs.into_iter().flatten().zip(row.named.into_iter().flatten());
    for (((key, place), (priority, ord)), (seq, is_named)) in columns.zip(of_runs).zip(of_keys) {
        if let (Some(xid), Some(id)) = place {
            (last, taken) = (Mark { xid, id }, taken + 1);
        }
        announced.push(Announced { key, waits: priority.zip(ord), seq: seq.filter(|_| !is_named) });
    }
    #[cfg(feature = "test-util")]
    let announced = keys::perhaps_lost(announced);
    let used = row.used.map_or(Used::default(), |used| Used {
        unclaimed: used.first().copied().unwrap_or_default(),
        claimed: used.get(1).copied().unwrap_or_default(),
    });
    let mark = mark.after(last, taken >= most, row.oldest);
    Ok(Some(Locked {
        queue,
        name: row.name,
        limits,
        paused: row.paused,
        tat: row.tat,
        least,
        now: row.now,
        version: row.version,
        used,
        announced,
        mark,
    }))
}

/// Returns the current scheduler if this server was one before.
#[cfg(feature = "test-util")]
async fn perhaps_renewed(transaction: &mut PgConnection, queue: i32, leader: Leader) -> Result<Leader, sqlx::Error> {
    if leader.term.is_none() || !crate::breakage::is_on(crate::breakage::Breakage::StaleTerm) {
        return Ok(leader);
    }
    let active = super::schedulers::lock(transaction, queue).await?.map(|scheduled| scheduled.active);
    Ok(active.and_then(|active| Some(Leader { server: active.server?, term: Some(active.term) })).unwrap_or(leader))
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Used {
    /// Assigned runs; while refiling, also ready runs.
    pub unclaimed: i64,
    pub claimed: i64,
}

impl Used {
    /// Runs that count against the limit of the queue.
    pub fn all(&self) -> i64 {
        self.unclaimed + self.claimed
    }

    /// Runs that hold a token of the rate.
    pub fn holding(&self) -> u32 {
        u32::try_from(self.unclaimed.max(0)).unwrap_or(u32::MAX)
    }
}

/// Counts the runs with slots in one snapshot.
pub async fn count_used(transaction: &mut PgConnection, sequenced: Sequenced, queue: i32) -> Result<Used, sqlx::Error> {
    sqlx::query_as!(
        Used,
        r#"-- count_used
        WITH changed AS MATERIALIZED (
            SELECT sum(d.pending) AS pending, sum(d.claimed) AS claimed, sum(d.waiting) AS waiting
            FROM unsequenced($2) n, unnest(n.queues, n.pending, n.claimed, n.waiting) AS d(queue, pending, claimed, waiting)
            WHERE d.queue = $1
        )
        SELECT (COALESCE(b.pending, 0) - COALESCE(b.waiting, 0) + COALESCE(c.pending, 0) - COALESCE(c.waiting, 0))::bigint AS "unclaimed!",
               (COALESCE(b.claimed, 0) + COALESCE(c.claimed, 0))::bigint AS "claimed!"
        FROM changed c LEFT JOIN counters b ON b.queue = $1"#,
        queue,
        sequenced.0
    )
    .fetch_one(transaction)
    .await
}

/// Deletes all admission rows of a queue without admission, once all its runs are ready. True on
/// success.
pub async fn forget_queue(transaction: &mut PgConnection, queue: i32) -> Result<bool, sqlx::Error> {
    let forgotten = sqlx::query_scalar!(
        r#"-- forget_admission
        WITH over AS MATERIALIZED (
            SELECT q.id FROM task_queues q WHERE q.id = $1 AND q.key_by IS NULL
              AND NOT EXISTS (SELECT FROM queue_policies p WHERE p.queue = q.id AND p.refile_stage <> 0 /* Stage::Done */)
              AND NOT EXISTS (SELECT FROM pending p WHERE p.queue = q.id
                                AND p.hold IS NOT NULL AND p.hold <> 1 /* Hold::Delay */)
            -- Its policy may be about to change, by what waits for the row that is locked here.
            FOR NO KEY UPDATE OF q SKIP LOCKED
        ),
        work AS (DELETE FROM admission_work w WHERE w.queue = $1 AND EXISTS (SELECT FROM over)),
        heads AS (DELETE FROM admission_heads h WHERE h.queue = $1 AND EXISTS (SELECT FROM over)),
        keys AS (DELETE FROM admission_keys k WHERE k.queue = $1 AND EXISTS (SELECT FROM over)),
        state AS (DELETE FROM admission_state s WHERE s.queue = $1 AND EXISTS (SELECT FROM over)),
        forgotten AS (DELETE FROM admission_queues a WHERE a.queue = $1 AND EXISTS (SELECT FROM over) RETURNING queue, term),
        termed AS (UPDATE task_queues q SET last_term = f.term FROM forgotten f WHERE q.id = f.queue AND q.last_term <> f.term)
        SELECT count(*) > 0 /* count */ AS "forgotten!" FROM forgotten"#,
        queue
    )
    .fetch_one(transaction)
    .await?;
    Ok(forgotten)
}
