//! Sessions of workers: start, renewal, inbox, commands, end.

use std::time::Duration;

use chrono::{DateTime, Utc};
use tenure_api::ids::{SessionId, TaskQueueId};
use tenure_api::sessions::{CommandRequest, InboxItem};
use tenure_domain::session::{Identity, Start, Stated};
use tenure_store::worker_sessions::{Member, Renewed, Stored};

use super::OpError;
use crate::engine::Engine;

/// A session that has begun.
#[derive(Debug, Clone)]
pub struct Started {
    /// What never changes.
    pub identity: Identity,
    /// Until when it is live.
    pub until: DateTime<Utc>,
    /// The version of the queue's policy.
    pub policy_version: i64,
}

/// What a reader of an inbox gets.
#[derive(Debug, Clone)]
pub struct Read {
    /// The renewal that it began with.
    pub renewed: Renewed,
    /// The items; none if none came in time.
    pub items: Vec<InboxItem>,
}

/// Starts a session, and ends the live one of the same worker if it takes that over.
///
/// # Errors
/// `SessionExists` or `PolicyMismatch`.
pub async fn start(engine: &Engine, start: &Start, client_id: &str) -> Result<Started, OpError> {
    let _ = (engine, start, client_id);
    todo!()
}

/// Whose session it is, from memory or from the database; also of one that ended within a day.
///
/// # Errors
/// `NotFound`.
pub async fn identify(engine: &Engine, id: SessionId) -> Result<Identity, OpError> {
    let _ = (engine, id);
    todo!()
}

/// The epoch of the session that claims of this worker are to belong to. Whether it is live is found out by the claim itself.
///
/// # Errors
/// `NotFound`; `Input` if it is the session of another worker or of another queue.
pub async fn of_claim(
    engine: &Engine,
    id: SessionId,
    queue: &TaskQueueId,
    worker_group: &str,
    worker_id: &str,
) -> Result<i64, OpError> {
    let _ = (engine, id, queue, worker_group, worker_id);
    todo!()
}

/// Renews a session.
///
/// # Errors
/// `SessionEnded`.
pub async fn renew(engine: &Engine, identity: &Identity, stated: Stated) -> Result<Renewed, OpError> {
    let _ = (engine, identity, stated);
    todo!()
}

/// Renews a session, deletes the items of its inbox up to `after`, and waits for others.
///
/// # Errors
/// `SessionEnded`, also while it waits.
pub async fn inbox(engine: &Engine, identity: &Identity, after: i64, wait: Duration) -> Result<Read, OpError> {
    let _ = (engine, identity, after, wait);
    todo!()
}

/// Ends a session for its worker: how many runs left it. A repeat answers the same.
///
/// # Errors
/// If the database does not answer.
pub async fn close(engine: &Engine, identity: &Identity) -> Result<i64, OpError> {
    let _ = (engine, identity);
    todo!()
}

/// A session as it is now.
///
/// # Errors
/// `NotFound`.
pub async fn find(engine: &Engine, id: SessionId) -> Result<Stored, OpError> {
    let _ = (engine, id);
    todo!()
}

/// The live sessions of a queue, in one snapshot.
///
/// # Errors
/// If the database does not answer.
pub async fn list_workers(engine: &Engine, queue: &TaskQueueId) -> Result<Vec<Member>, OpError> {
    let _ = (engine, queue);
    todo!()
}

/// Puts a command into the inbox of a session: the item's id.
///
/// # Errors
/// `NotFound` if it has ended, `Conflict` if there are too many.
pub async fn command(engine: &Engine, identity: &Identity, request: &CommandRequest) -> Result<i64, OpError> {
    let _ = (engine, identity, request);
    todo!()
}
