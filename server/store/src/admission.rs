//! Admission: what the pass reads and writes that lets waiting runs start. All but [`list_queues`] and [`announce_put_off`] belongs
//! to a transaction that has locked the queue with [`lock`]: it is the only one that admits runs of that queue, and every other
//! statement only lowers what is admitted, or moves it.

mod displace;
pub mod key_rules;
mod keys;
mod reassign;
pub mod runnable;
mod sessions;
mod start;
pub mod waiting;

use chrono::{DateTime, Utc};
use sqlx::PgConnection;
use tenure_domain::admission::PRIORITIES;
use tenure_domain::policy::document::Policy;
use uuid::Uuid;

use super::events::Sequenced;
use super::session;

pub use displace::{count_heads, displace_in_keys, displace_in_queue, withdraw_in_keys};
pub use keys::{
    Announced, Look, Tokens, announce_put_off, forget_idle_keys, list_unseen_keys, load_heads, load_keys, look,
    name_keys, take_tokens, take_work,
};
pub use reassign::{GivenOut, Reassigning, end_reassigning, list_given_out, lock_reassigning, lock_still_assigned};
pub(crate) use sessions::lock_runs_of;
pub use sessions::{
    AssignedRun, TakenBack, announce_after_quarantine, assign, list_assigned, load_sessions, lock_given,
    lock_not_accepted, restart_assigned, take_back,
};
pub use start::{admit, store, store_times};

/// Keys that one look takes up.
pub const KEYS_MAX: i64 = 500;

/// A queue whose runs need admission.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Listed {
    /// `task_queues.id`.
    pub queue: i32,
    /// Whether there may be something to admit.
    pub due: bool,
    /// Whether its runs are given to sessions, so that only its scheduler admits them.
    pub assigns: bool,
    /// Whether runs are to be taken back that a lost scheduler has given out.
    pub reassigning: bool,
    /// In how many seconds the next head that was put off is due, if there is one.
    pub next_in: Option<f64>,
}

/// All queues that have admission.
pub async fn list_queues(conn: &mut PgConnection) -> Result<Vec<Listed>, sqlx::Error> {
    sqlx::query_as!(
        Listed,
        r#"-- list_admission_queues
        WITH db_now AS MATERIALIZED (SELECT now FROM db_now)
        SELECT a.queue, a.assigns, a.reassign_ord IS NOT NULL AS "reassigning!", q.paused IS NULL AND (
                   EXISTS (SELECT FROM admission_work w WHERE w.queue = a.queue)
                   OR EXISTS (SELECT FROM admission_heads h WHERE h.queue = a.queue AND h.ready)
                   OR EXISTS (SELECT FROM admission_heads h WHERE h.queue = a.queue AND h.at <= (SELECT now FROM db_now))
                   OR EXISTS (SELECT FROM admission_claims c WHERE c.queue = a.queue)
                   OR q.key_by IS NULL) AS "due!",
               (SELECT extract(epoch FROM min(h.at) - (SELECT now FROM db_now))::float8 FROM admission_heads h
                WHERE h.queue = a.queue AND h.at > (SELECT now FROM db_now)) AS next_in
        FROM admission_queues a JOIN task_queues q ON q.id = a.queue
        ORDER BY a.queue"#
    )
    .fetch_all(conn)
    .await
}

/// A queue that this transaction has locked.
#[derive(Debug)]
pub struct Locked {
    /// Its name.
    pub name: String,
    /// Its policy, if its runs need admission.
    pub policy: Option<Policy>,
    /// When its rate has its next token, in seconds since 1970.
    pub tat: f64,
    /// For each priority the least virtual time of a head that may start.
    pub least: [f64; PRIORITIES],
    /// The epoch that the low-water marks of its claims must have.
    pub epoch: i64,
    /// When that was read.
    pub now: DateTime<Utc>,
}

/// In which term a server is the scheduler of a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Leader {
    /// The server.
    pub server: Uuid,
    /// Its term, if it has one.
    pub term: Option<i64>,
}

/// Locks a queue for admission; none if another transaction has it, it is paused, or has no admission any more; and if it assigns its
/// runs, unless this is the term of its scheduler: one that was stopped meanwhile, and replaced, finds no row.
///
/// A server that is stopped in the middle of the transaction would keep everybody from the queue: it loses the lock within a second.
pub async fn lock(transaction: &mut PgConnection, queue: i32, leader: Leader) -> Result<Option<Locked>, sqlx::Error> {
    session::idle_briefly(transaction).await?;
    #[cfg(feature = "test-util")]
    let leader = perhaps_renewed(transaction, queue, leader).await?;
    // In a statement of its own: what is read is newer than the lock, so that no policy counts that was changed before it.
    let locked = sqlx::query!(
        "-- lock_admission
        SELECT FROM admission_queues
        WHERE queue = $1 AND (NOT assigns OR (server = $2 /* server */ AND term = $3 /* term */)) FOR UPDATE SKIP LOCKED",
        queue,
        leader.server,
        leader.term
    )
    .fetch_optional(&mut *transaction)
    .await?;
    if locked.is_none() {
        return Ok(None);
    }
    let row = sqlx::query!(
        r#"-- read_admission
        WITH db_now AS MATERIALIZED (SELECT now FROM db_now)
        SELECT q.name, q.cursor_epoch, q.key_by, p.policy AS "policy?", a.tat, a.least, a.assigns,
               db_now.now AS "now!"
        FROM admission_queues a JOIN task_queues q ON q.id = a.queue LEFT JOIN queue_policies p ON p.queue = a.queue
        CROSS JOIN db_now
        WHERE a.queue = $1 AND q.paused IS NULL"#,
        queue
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
    if policy.as_ref().and_then(Policy::admission).is_some_and(|admission| admission.assign != row.assigns) {
        // The policy was changed while the statement waited for nothing: it has read the old one.
        return Ok(None);
    }
    let least = row.least.try_into().map_err(|least: Vec<f64>| {
        sqlx::Error::Decode(format!("admission_queues.least of {queue} has {} numbers", least.len()).into())
    })?;
    Ok(Some(Locked { name: row.name, policy, tat: row.tat, least, epoch: row.cursor_epoch, now: row.now }))
}

/// The leader, or with that breakage the scheduler of now, if this server was it once.
#[cfg(feature = "test-util")]
async fn perhaps_renewed(transaction: &mut PgConnection, queue: i32, leader: Leader) -> Result<Leader, sqlx::Error> {
    if leader.term.is_none() || !crate::breakage::is_on(crate::breakage::Breakage::StaleTerm) {
        return Ok(leader);
    }
    let active = super::schedulers::lock(transaction, queue).await?.map(|scheduled| scheduled.active);
    Ok(active.and_then(|active| Some(Leader { server: active.server?, term: Some(active.term) })).unwrap_or(leader))
}

/// The runs of a queue that were admitted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Admitted {
    /// How many are ready or assigned.
    pub unclaimed: i64,
    /// How many are claimed.
    pub claimed: i64,
    /// How many of these, or of those that have ended since, were claimed since the last look, if the queue has a rate.
    pub just_claimed: i64,
}

impl Admitted {
    /// What the limit of the queue is about.
    #[must_use]
    pub fn all(&self) -> i64 {
        self.unclaimed + self.claimed
    }

    /// How many have a token, as far as is stored.
    #[must_use]
    pub fn with_tokens(&self) -> u32 {
        u32::try_from((self.unclaimed + self.just_claimed).max(0)).unwrap_or(u32::MAX)
    }
}

/// How many runs of a queue were admitted, in one snapshot.
pub async fn count_admitted(
    transaction: &mut PgConnection,
    sequenced: Sequenced,
    queue: i32,
) -> Result<Admitted, sqlx::Error> {
    sqlx::query_as!(
        Admitted,
        r#"-- count_admitted
        WITH changed AS MATERIALIZED (
            SELECT sum(d.pending) AS pending, sum(d.claimed) AS claimed, sum(d.waiting) AS waiting
            FROM unsequenced($2) n, unnest(n.queues, n.pending, n.claimed, n.waiting) AS d(queue, pending, claimed, waiting)
            WHERE d.queue = $1
        )
        SELECT (COALESCE(b.pending, 0) - COALESCE(b.waiting, 0) + COALESCE(c.pending, 0) - COALESCE(c.waiting, 0))::bigint AS "unclaimed!",
               (COALESCE(b.claimed, 0) + COALESCE(c.claimed, 0))::bigint AS "claimed!",
               (SELECT count(*) FROM admission_claims x WHERE x.queue = $1) AS "just_claimed!"
        FROM changed c LEFT JOIN counters b ON b.queue = $1"#,
        queue,
        sequenced.0
    )
    .fetch_one(transaction)
    .await
}

/// How many runs of each priority are ready and may be claimed, counted up to `limit`. None lies below the marks.
pub async fn count_ready(
    transaction: &mut PgConnection,
    queue: i32,
    marks: &[i64; PRIORITIES],
    limit: u32,
) -> Result<[u32; PRIORITIES], sqlx::Error> {
    let rows = sqlx::query!(
        r#"-- count_ready
        SELECT m.priority AS "priority!", count(w.ord) AS "ready!"
        FROM unnest('{0,1,2,3,4,5,6}' /* Priority: all */::smallint[], $2::bigint[] /* marks */) AS m(priority, mark)
        CROSS JOIN (VALUES (true), (false)) AS h(hidden)
        LEFT JOIN LATERAL (
            SELECT w.ord FROM pending w
            WHERE w.queue = $1 AND w.priority = m.priority AND (w.hidden_until IS NOT NULL) = h.hidden
              AND w.reserved_until IS NULL AND w.ord > m.mark
            ORDER BY w.ord LIMIT $3
        ) w ON true
        GROUP BY m.priority"#,
        queue,
        marks,
        i64::from(limit)
    )
    .fetch_all(transaction)
    .await?;
    let mut ready = [0; PRIORITIES];
    for row in rows {
        if let Some(place) = usize::try_from(row.priority).ok().and_then(|place| ready.get_mut(place)) {
            *place = u32::try_from(row.ready).unwrap_or(limit).min(limit);
        }
    }
    Ok(ready)
}

/// Whether the runs of a queue that has no admission any more were all made ready; then nothing is left of it.
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
        claimed AS (DELETE FROM admission_claims c WHERE c.queue = $1 AND EXISTS (SELECT FROM over)),
        keys AS (DELETE FROM admission_keys k WHERE k.queue = $1 AND EXISTS (SELECT FROM over)),
        forgotten AS (DELETE FROM admission_queues a WHERE a.queue = $1 AND EXISTS (SELECT FROM over) RETURNING queue, term),
        termed AS (UPDATE task_queues q SET last_term = f.term FROM forgotten f WHERE q.id = f.queue AND q.last_term <> f.term)
        SELECT count(*) > 0 /* count */ AS "forgotten!" FROM forgotten"#,
        queue
    )
    .fetch_one(transaction)
    .await?;
    Ok(forgotten)
}
