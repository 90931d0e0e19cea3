//! The tables `worker_sessions`, `session_inbox` and `session_clock`. Runs are moved by [`super::transitions`].

use chrono::{DateTime, Utc};
use sqlx::PgConnection;
use tenure_api::ids::{RunId, SessionId, TaskId, TaskQueueId};
use tenure_api::sessions::InboxItem;
use tenure_api::states::{Delivery, SessionEnd, WorkerCommand};
use tenure_domain::session::{Identity, Start, Stated};
use uuid::Uuid;

/// A session as it is now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stored {
    /// What never changes.
    pub identity: Identity,
    /// As the worker said last.
    pub weight: i32,
    /// As the worker said last.
    pub capacity: i32,
    /// As the worker said last.
    pub frozen: bool,
    /// Until when it is live.
    pub until: DateTime<Utc>,
    /// When it ended and by what, and how many runs left it then.
    pub ended: Option<(DateTime<Utc>, SessionEnd, i64)>,
    /// How many claims it holds.
    pub running: i64,
}

/// The live session of a worker, whose row is locked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Live {
    /// Its epoch.
    pub epoch: i64,
    /// Since when.
    pub started: DateTime<Utc>,
    /// Until when.
    pub until: DateTime<Utc>,
}

/// What a new session is answered with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Begun {
    /// What never changes.
    pub identity: Identity,
    /// Until when it is live.
    pub until: DateTime<Utc>,
}

/// Locks the live session of a worker, waiting for other transactions; the queue's policy version and the time with it. The caller
/// calls [`begin`] in the same transaction; two that begin at once are kept apart by the unique index on live sessions.
pub async fn lock_live(
    transaction: &mut PgConnection,
    queue: i32,
    worker_group: &str,
    worker_id: &str,
) -> Result<(Option<Live>, i64, DateTime<Utc>), sqlx::Error> {
    let _ = (transaction, queue, worker_group, worker_id);
    todo!()
}

/// Stores a new session. None: another one of the same worker was committed meanwhile.
pub async fn begin(
    transaction: &mut PgConnection,
    queue: i32,
    start: &Start,
    client_id: &str,
) -> Result<Option<Begun>, sqlx::Error> {
    let _ = (transaction, queue, start, client_id);
    todo!()
}

/// What never changes of a session that is live or ended within a day.
pub async fn identify(conn: &mut PgConnection, id: SessionId) -> Result<Option<Identity>, sqlx::Error> {
    let _ = (conn, id);
    todo!()
}

/// A session, with the number of its claims.
pub async fn find(conn: &mut PgConnection, epoch: i64) -> Result<Option<Stored>, sqlx::Error> {
    let _ = (conn, epoch);
    todo!()
}

/// A renewal.
#[derive(Debug, Clone, Copy)]
pub struct Renewal {
    /// The session.
    pub epoch: i64,
    /// What its worker says of itself.
    pub stated: Stated,
    /// Items up to this one are deleted.
    pub after: i64,
}

/// What came of it.
#[derive(Debug, Clone)]
pub struct Renewed {
    /// The session.
    pub epoch: i64,
    /// Until when it is live.
    pub until: DateTime<Utc>,
    /// The database's time.
    pub now: DateTime<Utc>,
    /// The version of the queue's policy.
    pub policy_version: i64,
    /// What ended it, if it has ended: then nothing was changed.
    pub ended: Option<SessionEnd>,
}

/// Renews sessions, one statement for all of them: `until` is never set back, `extended` becomes false, items up to `after` are
/// deleted. Sessions that are locked (being ended) or unknown are left out; ended ones are in the answer with `ended`.
pub async fn renew(conn: &mut PgConnection, renewals: &[Renewal]) -> Result<Vec<Renewed>, sqlx::Error> {
    let _ = (conn, renewals);
    todo!()
}

/// The items of inboxes after these ids, oldest first, [`tenure_domain::session::INBOX_SHOWN_MAX`] of each session at most.
pub async fn read_inboxes(
    conn: &mut PgConnection,
    readers: &[(i64, i64)],
) -> Result<Vec<(i64, InboxItem)>, sqlx::Error> {
    let _ = (conn, readers);
    todo!()
}

/// Which of these sessions have ended, and by what; those that are not there any more count as expired.
pub async fn list_ended(conn: &mut PgConnection, epochs: &[i64]) -> Result<Vec<(i64, SessionEnd)>, sqlx::Error> {
    let _ = (conn, epochs);
    todo!()
}

/// What came of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sent {
    /// It is in the inbox under this id.
    Item(i64),
    /// The session has ended or is not there.
    Ended,
    /// [`tenure_domain::session::COMMANDS_MAX`] of them are not acknowledged yet.
    TooMany,
}

/// Puts a command into the inbox of a session.
pub async fn command(
    conn: &mut PgConnection,
    epoch: i64,
    command: WorkerCommand,
    task: Option<TaskId>,
) -> Result<Sent, sqlx::Error> {
    let _ = (conn, epoch, command, task);
    todo!()
}

/// A worker with a live session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// What never changes.
    pub identity: Identity,
    /// As the worker said last.
    pub weight: i32,
    /// As the worker said last.
    pub capacity: i32,
    /// As the worker said last.
    pub frozen: bool,
    /// Until when it is live.
    pub until: DateTime<Utc>,
    /// How many claims it holds.
    pub running: i64,
}

/// The live sessions of a queue by worker group and worker, with what they hold: one snapshot.
pub async fn list_workers(
    conn: &mut PgConnection,
    queue: i32,
    name: &TaskQueueId,
    limit: i64,
) -> Result<Vec<Member>, sqlx::Error> {
    let _ = (conn, queue, name, limit);
    todo!()
}

/// A claim that a session holds, locked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Held {
    /// The task.
    pub id: Uuid,
    /// The run.
    pub run: i16,
    /// What its loss costs.
    pub delivery: Delivery,
    /// How many runs of the task ended for nothing.
    pub free_runs: u16,
}

/// Marks a live session as ended, and locks it: first statement of the transaction that ends it. `overdue`: only if its time is over.
/// None: it is not live (or was renewed).
pub async fn end(
    transaction: &mut PgConnection,
    epoch: i64,
    by: SessionEnd,
    overdue: bool,
) -> Result<Option<Identity>, sqlx::Error> {
    let _ = (transaction, epoch, by, overdue);
    todo!()
}

/// Locks a slice of the tasks whose runs a session holds by their ids, then the claims by seq, each in a statement of its own that
/// waits; what is still held then. Fewer than the limit: there are no others.
pub async fn lock_held(transaction: &mut PgConnection, epoch: i64, limit: i64) -> Result<Vec<Held>, sqlx::Error> {
    let _ = (transaction, epoch, limit);
    todo!()
}

/// Last statement of an end: how many runs left the session is stored, and its inbox is deleted.
pub async fn close(transaction: &mut PgConnection, epoch: i64, returned: i64) -> Result<(), sqlx::Error> {
    let _ = (transaction, epoch, returned);
    todo!()
}

/// Live sessions whose time is over, earliest first.
pub async fn list_overdue(conn: &mut PgConnection, limit: i64) -> Result<Vec<i64>, sqlx::Error> {
    let _ = (conn, limit);
    todo!()
}

/// Whether any session is live, or ended within [`tenure_domain::session::STRAYS_LOOKED_FOR`].
pub async fn any_recent(conn: &mut PgConnection) -> Result<bool, sqlx::Error> {
    let _ = conn;
    todo!()
}

/// Sessions that ended a short while ago and hold claims again, which were committed after their end.
pub async fn list_strays(conn: &mut PgConnection) -> Result<Vec<(i64, SessionEnd)>, sqlx::Error> {
    let _ = conn;
    todo!()
}

/// Writes down, by the real clock, that sessions are being looked at, if that was longer ago than
/// [`tenure_domain::session::CLOCK_EVERY`]. If it was longer ago than [`tenure_domain::session::OUTAGE`], all live sessions are
/// extended, in the same transaction; how many.
pub async fn tick_clock(conn: &mut PgConnection) -> Result<u64, sqlx::Error> {
    let _ = conn;
    todo!()
}

/// Deletes sessions that ended a day ago, and what is left in their inboxes.
pub async fn purge(conn: &mut PgConnection, limit: i64) -> Result<u64, sqlx::Error> {
    let _ = (conn, limit);
    todo!()
}

/// Locks a live session against its end while a run is given to it, without waiting and without blocking its renewal (`FOR KEY SHARE
/// SKIP LOCKED`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shared {
    /// It is live, and stays so until the transaction ends.
    Live,
    /// It has ended, or is not there.
    Ended,
    /// It is being ended.
    Locked,
}

/// See [`Shared`].
pub async fn share(transaction: &mut PgConnection, epoch: i64) -> Result<Shared, sqlx::Error> {
    let _ = (transaction, epoch);
    todo!()
}

/// Live sessions, for the metric, and by queue for the page.
pub async fn count_live(conn: &mut PgConnection) -> Result<i64, sqlx::Error> {
    let _ = conn;
    todo!()
}

/// The live session of a worker that was removed, if it has one.
pub async fn find_live(
    conn: &mut PgConnection,
    queue: i32,
    worker_group: &str,
    worker_id: &str,
) -> Result<Option<i64>, sqlx::Error> {
    let _ = (conn, queue, worker_group, worker_id);
    todo!()
}

/// The runs that a session holds, for the page: oldest first.
pub async fn list_held(conn: &mut PgConnection, epoch: i64, limit: i64) -> Result<Vec<(TaskId, RunId)>, sqlx::Error> {
    let _ = (conn, epoch, limit);
    todo!()
}

/// Locks a session, waiting for the transaction that ends it.
pub async fn lock(transaction: &mut PgConnection, epoch: i64) -> Result<(), sqlx::Error> {
    let _ = (transaction, epoch);
    todo!()
}
