//! The tables `worker_sessions`, `session_inbox` and `session_clock`. [`super::transitions`] moves
//! runs, and inserts inbox items for changes that the worker did not request.
//!
//! The end of a session locks its row `FOR UPDATE`; giving it a run or command locks the row `FOR
//! KEY SHARE`. So a run or command is given before the end, or not at all, without blocking
//! renewals.

mod end;
mod inbox;
mod pass;

use chrono::{DateTime, Utc};
use sqlx::PgConnection;
use tenure_api::ids::{InvalidId, SessionId, TaskQueueId};
use tenure_api::states::SessionEnd;
use tenure_domain::session::{ENDED_KEPT, Identity, Start, Stated};
use uuid::Uuid;

pub use self::end::{Held, Liveness, close, end, lock, lock_against_end, lock_held, lock_tasks};
pub(crate) use self::inbox::lock_ids;
pub use self::inbox::{Sent, command, read_inboxes};
pub use self::pass::{
    Expiring, Glance, StillLive, any_recent, count_live, glance, list_ended, list_expiring, list_live, list_strays,
    purge, tick_clock,
};
use crate::decode::{Row, Undecodable};
use crate::queues::parse_name;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stored {
    /// Immutable columns.
    pub identity: Identity,
    /// As last reported by the worker, like the next two.
    pub weight: i32,
    pub capacity: i32,
    pub frozen: bool,
    pub until: DateTime<Utc>,
    /// Time, cause, and number of runs that left the session then.
    pub ended: Option<(DateTime<Utc>, SessionEnd, i64)>,
    /// Its claims.
    pub running: i64,
    /// Runs given to it and not accepted yet.
    pub assigned: i64,
}

/// Its row is locked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Live {
    pub epoch: i64,
    pub started: DateTime<Utc>,
    pub until: DateTime<Utc>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Begun {
    pub identity: Identity,
    pub until: DateTime<Utc>,
}

/// Immutable columns of a session.
struct IdentityRow {
    id: Uuid,
    epoch: i64,
    queue: String,
    worker_group: String,
    worker_id: String,
    ttl: i32,
    started: DateTime<Utc>,
}

macro_rules! identity {
    ($row:ident) => {
        $crate::worker_sessions::IdentityRow {
            id: $row.id,
            epoch: $row.epoch,
            queue: $row.queue,
            worker_group: $row.worker_group,
            worker_id: $row.worker_id,
            ttl: $row.ttl,
            started: $row.started,
        }
        .read()
    };
}
use identity;

impl IdentityRow {
    fn read(self) -> Result<Identity, sqlx::Error> {
        let undecodable = |error: InvalidId| sqlx::Error::Decode(Box::new(error));
        Ok(Identity {
            id: SessionId::new(self.id),
            epoch: self.epoch,
            queue: parse_name(&self.queue)?,
            worker_group: self.worker_group.parse().map_err(undecodable)?,
            worker_id: self.worker_id.parse().map_err(undecodable)?,
            ttl: self.ttl.into(),
            started: self.started,
        })
    }
}

fn read_end(code: i16) -> Result<SessionEnd, Undecodable> {
    let columns = Row { table: "worker_sessions", task: Uuid::nil() };
    SessionEnd::from_code(code).ok_or_else(|| columns.invalid("end_reason", code))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Before {
    /// The worker's live session, locked.
    pub live: Option<Live>,
    pub policy_version: i64,
    pub now: DateTime<Utc>,
}

/// Locks the live session of a worker against its end, waiting. None if the queue's key has changed
/// or is lost. The caller calls [`begin`] in the same transaction; a unique index on live sessions
/// separates concurrent ones.
pub async fn lock_live(
    transaction: &mut PgConnection,
    (queue, name): (i32, &TaskQueueId),
    worker_group: &str,
    worker_id: &str,
) -> Result<Option<Before>, sqlx::Error> {
    let live = sqlx::query_as!(
        Live,
        "-- lock_live_session
        SELECT epoch, started, until FROM worker_sessions
        WHERE queue = $1 AND worker_group = $2 AND worker_id = $3 AND ended IS NULL FOR KEY SHARE",
        queue,
        worker_group,
        worker_id
    )
    .fetch_optional(&mut *transaction)
    .await?;
    // The time after the wait.
    let queue = sqlx::query!(
        r#"-- get_policy_version
        SELECT q.policy_version, db_now.now AS "now!" FROM task_queues q, db_now WHERE q.id = $1 AND q.name = $2"#,
        queue,
        name.as_str()
    )
    .fetch_optional(transaction)
    .await?;
    Ok(queue.map(|queue| Before { live, policy_version: queue.policy_version, now: queue.now }))
}

/// Stores a new session. None if a concurrent one of the same worker was committed.
pub async fn begin(
    transaction: &mut PgConnection,
    queue: i32,
    start: &Start,
    client_id: &str,
) -> Result<Option<Begun>, sqlx::Error> {
    let row = sqlx::query!(
        "-- begin_session
        INSERT INTO worker_sessions
            (id, queue, worker_group, worker_id, client_id, ttl, until, started, weight, capacity)
        SELECT gen_random_uuid(), $1 /* queue */, $2 /* group */, $3 /* worker */, $4 /* client */, $5::bigint::int /* ttl */,
               db_now.now + make_interval(secs => $5::bigint /* ttl */), db_now.now, $6 /* weight */, $7 /* capacity */
        FROM db_now
        ON CONFLICT (queue, worker_group, worker_id) WHERE ended IS NULL DO NOTHING
        RETURNING id, epoch, started, until",
        queue,
        start.worker_group.as_str(),
        start.worker_id.as_str(),
        client_id,
        start.ttl,
        start.weight,
        start.capacity
    )
    .fetch_optional(transaction)
    .await?;
    Ok(row.map(|row| Begun {
        identity: Identity {
            id: SessionId::new(row.id),
            epoch: row.epoch,
            queue: start.queue.clone(),
            worker_group: start.worker_group.clone(),
            worker_id: start.worker_id.clone(),
            ttl: start.ttl,
            started: row.started,
        },
        until: row.until,
    }))
}

/// Returns the immutable columns of a session that is live or ended within a day.
pub async fn identify(conn: &mut PgConnection, id: SessionId) -> Result<Option<Identity>, sqlx::Error> {
    let row = sqlx::query_as!(
        IdentityRow,
        "-- identify_session
        SELECT s.id, s.epoch, q.name AS queue, s.worker_group, s.worker_id, s.ttl, s.started
        FROM worker_sessions s JOIN task_queues q ON q.id = s.queue
        WHERE s.id = $1 AND (s.ended IS NULL OR s.ended > (SELECT now FROM db_now) - make_interval(secs => $2 /* ENDED_KEPT */))",
        id.uuid(),
        ENDED_KEPT.as_seconds_f64()
    )
    .fetch_optional(conn)
    .await?;
    row.map(IdentityRow::read).transpose()
}

/// Returns the client that started a session.
pub async fn find_starter(conn: &mut PgConnection, epoch: i64) -> Result<Option<String>, sqlx::Error> {
    sqlx::query_scalar!("-- find_session_starter\nSELECT client_id FROM worker_sessions WHERE epoch = $1", epoch)
        .fetch_optional(conn)
        .await
}

pub async fn find(conn: &mut PgConnection, epoch: i64) -> Result<Option<Stored>, sqlx::Error> {
    let row = sqlx::query!(
        r#"-- find_session
        SELECT s.id, s.epoch, q.name AS queue, s.worker_group, s.worker_id, s.ttl, s.started, s.weight, s.capacity, s.frozen,
               s.until, s.ended, s.end_reason, s.returned,
               (SELECT count(*) FROM claims c WHERE c.session = s.epoch) AS "running!",
               (SELECT count(*) FROM pending p WHERE p.session = s.epoch AND p.hold = 3 /* Hold::Assigned */) AS "assigned!"
        FROM worker_sessions s JOIN task_queues q ON q.id = s.queue
        WHERE s.epoch = $1 AND (s.ended IS NULL OR s.ended > (SELECT now FROM db_now) - make_interval(secs => $2 /* ENDED_KEPT */))"#,
        epoch,
        ENDED_KEPT.as_seconds_f64()
    )
    .fetch_optional(conn)
    .await?;
    let Some(row) = row else { return Ok(None) };
    let by = row.end_reason.map(read_end).transpose()?;
    Ok(Some(Stored {
        weight: row.weight,
        capacity: row.capacity,
        frozen: row.frozen,
        until: row.until,
        ended: row.ended.zip(by).map(|(ended, by)| (ended, by, row.returned)),
        running: row.running,
        assigned: row.assigned,
        identity: identity!(row)?,
    }))
}

#[derive(Debug, Clone, Copy)]
pub struct Renewal {
    pub epoch: i64,
    pub stated: Stated,
    /// Items up to this one are deleted.
    pub after: i64,
}

#[derive(Debug, Clone)]
pub struct Renewed {
    pub epoch: i64,
    pub until: DateTime<Utc>,
    pub now: DateTime<Utc>,
    pub policy_version: i64,
    /// If set, nothing was changed.
    pub ended: Option<SessionEnd>,
}

/// Renews distinct sessions: never moves `until` back, clears `extended`, and deletes items up to
/// `after`. Omits unknown sessions, and locked ones, which are being ended. Returns ended ones with
/// `ended`.
pub async fn renew(conn: &mut PgConnection, renewals: &[Renewal]) -> Result<Vec<Renewed>, sqlx::Error> {
    let epochs: Vec<i64> = renewals.iter().map(|renewal| renewal.epoch).collect();
    let weights: Vec<Option<i32>> = renewals.iter().map(|renewal| renewal.stated.weight).collect();
    let capacities: Vec<Option<i32>> = renewals.iter().map(|renewal| renewal.stated.capacity).collect();
    let frozen: Vec<Option<bool>> = renewals.iter().map(|renewal| renewal.stated.frozen).collect();
    let afters: Vec<i64> = renewals.iter().map(|renewal| renewal.after).collect();
    let rows = sqlx::query!(
        r#"-- renew_sessions
        WITH db_now AS MATERIALIZED (SELECT now FROM db_now),
        input AS MATERIALIZED (
            SELECT * FROM unnest($1::bigint[] /* epochs */, $2::int[] /* weights */, $3::int[] /* capacities */,
                                 $4::boolean[] /* frozen */, $5::bigint[] /* items up to */)
                AS i(epoch, weight, capacity, frozen, after)
        ),
        locked AS MATERIALIZED (
            SELECT s.epoch, s.queue, s.until, s.end_reason, i.weight, i.capacity, i.frozen, i.after
            FROM input i JOIN worker_sessions s ON s.epoch = i.epoch
            FOR NO KEY UPDATE OF s SKIP LOCKED
        ),
        renewed AS (
            UPDATE worker_sessions s SET until = GREATEST(s.until, db_now.now + make_interval(secs => s.ttl)), extended = false,
                weight = COALESCE(l.weight, s.weight), capacity = COALESCE(l.capacity, s.capacity),
                frozen = COALESCE(l.frozen, s.frozen)
            FROM locked l, db_now WHERE s.epoch = l.epoch AND l.end_reason IS NULL
            RETURNING s.epoch, s.until
        ),
        acknowledged AS (
            DELETE FROM session_inbox x USING locked l WHERE x.epoch = l.epoch AND x.id <= l.after AND l.after > 0 /* id */ AND l.end_reason IS NULL
        )
        SELECT l.epoch, COALESCE(r.until, l.until) AS "until!", db_now.now AS "now!", q.policy_version, l.end_reason
        FROM locked l JOIN task_queues q ON q.id = l.queue LEFT JOIN renewed r ON r.epoch = l.epoch, db_now"#,
        &epochs,
        &weights as &[Option<i32>],
        &capacities as &[Option<i32>],
        &frozen as &[Option<bool>],
        &afters
    )
    .fetch_all(conn)
    .await?;
    rows.into_iter()
        .map(|row| {
            Ok(Renewed {
                epoch: row.epoch,
                until: row.until,
                now: row.now,
                policy_version: row.policy_version,
                ended: row.end_reason.map(read_end).transpose()?,
            })
        })
        .collect()
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    pub identity: Identity,
    /// As last reported by the worker, like the next two.
    pub weight: i32,
    pub capacity: i32,
    pub frozen: bool,
    pub until: DateTime<Utc>,
    /// Its claims.
    pub running: i64,
    /// Runs given to it and not accepted yet.
    pub assigned: i64,
}

/// Lists the live sessions of a queue by worker group and id, with their claims and runs, in one
/// snapshot.
pub async fn list_workers(
    conn: &mut PgConnection,
    queue: i32,
    name: &TaskQueueId,
    limit: i64,
) -> Result<Vec<Member>, sqlx::Error> {
    let rows = sqlx::query!(
        r#"-- list_session_workers
        SELECT s.id, s.epoch, s.worker_group, s.worker_id, s.ttl, s.started, s.weight, s.capacity, s.frozen, s.until,
               (SELECT count(*) FROM claims c WHERE c.session = s.epoch) AS "running!",
               (SELECT count(*) FROM pending p WHERE p.session = s.epoch AND p.hold = 3 /* Hold::Assigned */) AS "assigned!"
        FROM worker_sessions s WHERE s.queue = $1 AND s.ended IS NULL
        ORDER BY s.worker_group, s.worker_id LIMIT $2"#,
        queue,
        limit
    )
    .fetch_all(conn)
    .await?;
    rows.into_iter()
        .map(|row| {
            Ok(Member {
                weight: row.weight,
                capacity: row.capacity,
                frozen: row.frozen,
                until: row.until,
                running: row.running,
                assigned: row.assigned,
                identity: IdentityRow {
                    id: row.id,
                    epoch: row.epoch,
                    queue: name.as_str().to_owned(),
                    worker_group: row.worker_group,
                    worker_id: row.worker_id,
                    ttl: row.ttl,
                    started: row.started,
                }
                .read()?,
            })
        })
        .collect()
}

pub async fn find_live(
    conn: &mut PgConnection,
    queue: i32,
    worker_group: &str,
    worker_id: &str,
) -> Result<Option<i64>, sqlx::Error> {
    sqlx::query_scalar!(
        "-- find_live_session
        SELECT epoch FROM worker_sessions WHERE queue = $1 AND worker_group = $2 AND worker_id = $3 AND ended IS NULL",
        queue,
        worker_group,
        worker_id
    )
    .fetch_optional(conn)
    .await
}
