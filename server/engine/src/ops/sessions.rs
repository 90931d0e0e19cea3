//! Worker sessions: start, renewal, inbox, commands, end.

mod end;
mod renew;

use std::time::{Duration, Instant};

use chrono::{DateTime, TimeDelta, Utc};
use serde_json::json;
use sqlx::{Connection, PgPool};
use tenure_api::dates::Timestamp;
use tenure_api::ids::{SessionId, TaskQueueId};
use tenure_api::sessions::{CommandRequest, InboxItem};
use tenure_api::states::SessionEnd;

pub use self::end::{Attempt, Left, end, end_whole, give_back_more};
pub use self::renew::{RenewSession, Renewing};
use super::OpError;
use super::actor::Actor;
use super::report::send_away;
use crate::batch::Batcher;
use crate::notifiers::{Effects, Notifiers, WAIT_LIST_TIMEOUT};
use crate::sessions::{Certainty, Sessions};
use tenure_domain::audit::{self, Action, Entry};
use tenure_domain::events::note::Note;
use tenure_domain::session::{
    COMMANDS_MAX, Identity, Start, StartRefused, Stated, WORKERS_SHOWN_MAX, check_command, may_start,
};
use tenure_store::policies;
use tenure_store::queues::Queues;
use tenure_store::worker_removals::Gone;
use tenure_store::worker_sessions::{self, Before, Begun, Member, Renewal, Renewed, Sent, Stored};

/// Tries of a start that meets another start of the worker, or a lost queue key.
const STARTS_MAX: u32 = 3;

#[derive(Clone, Copy)]
pub struct Parts<'a> {
    pub pool: &'a PgPool,
    pub queues: &'a Queues,
    pub notifiers: &'a Notifiers,
    pub sessions: &'a Sessions,
    pub renew: &'a Batcher<RenewSession>,
}

#[derive(Debug, Clone)]
pub struct Started {
    pub identity: Identity,
    pub until: DateTime<Utc>,
    pub policy_version: i64,
}

#[derive(Debug, Clone)]
pub struct Read {
    /// The renewal at the start of the read, or an earlier one with later changes.
    pub renewed: Renewed,
    /// Empty after a timeout.
    pub items: Vec<InboxItem>,
    /// How long the request waited for items.
    pub waited: Duration,
}

/// Starts a session. With takeover, first ends the worker's live session.
///
/// # Errors
/// `SessionExists` or `PolicyMismatch`.
pub async fn start(parts: Parts<'_>, start: &Start, client_id: &str) -> Result<Started, OpError> {
    for _ in 0..STARTS_MAX {
        let queue = parts.queues.get_or_create_key(parts.pool, &start.queue).await?;
        if let Some(started) = try_start(parts, start, queue, client_id).await? {
            tracing::info!(
                session.id = %started.identity.id,
                worker.group = %start.worker_group,
                worker.id = %start.worker_id,
                queue.id = %start.queue,
                client.id = client_id,
                "a worker has started a session"
            );
            return Ok(started);
        }
    }
    // Other sessions of the worker keep beginning and ending.
    Err(OpError::Unavailable)
}

/// Returns `None` to retry: the previous session was ended, another one began, or the queue's key
/// was lost.
async fn try_start(parts: Parts<'_>, start: &Start, queue: i32, client_id: &str) -> Result<Option<Started>, OpError> {
    let remembered = parts.sessions.identities.epoch();
    let mut conn = parts.pool.acquire().await?;
    let (group, id) = (start.worker_group.as_str(), start.worker_id.as_str());
    let mut transaction = conn.begin().await?;
    let before = worker_sessions::lock_live(&mut transaction, (queue, &start.queue), group, id).await?;
    let Some(Before { live, policy_version, now }) = before else {
        parts.queues.drop_key(&start.queue);
        return Ok(None);
    };
    may_start(start, live.map(|live| (live.started, live.until)), policy_version, now)
        .map_err(|refused| why_not(start, &refused))?;
    if let Some(live) = live {
        transaction.rollback().await?;
        // In its own transaction: its runs are back before the new session begins.
        return match end_whole(&mut conn, parts.notifiers, None, live.epoch, SessionEnd::Takeover).await? {
            Attempt::Held => Err(OpError::Unavailable),
            Attempt::Ended(_) | Attempt::NotLive => Ok(None),
        };
    }
    let Some(Begun { identity, until }) = worker_sessions::begin(&mut transaction, queue, start, client_id).await?
    else {
        return Ok(None);
    };
    policies::emit(&mut transaction, &Note::session_started(&identity, client_id.to_owned())).await?;
    parts.notifiers.commit(transaction, Effects::default()).await?;
    parts.sessions.identities.note(remembered, identity.clone());
    parts.sessions.activity.seen();
    Ok(Some(Started { identity, until, policy_version }))
}

fn why_not(start: &Start, refused: &StartRefused) -> OpError {
    let Start { queue, worker_group, worker_id, .. } = start;
    match refused {
        StartRefused::Exists(since, until) => OpError::SessionExists(format!(
            "worker {worker_group}/{worker_id} of queue {queue} has had a session since {}, which expires at {} \
             unless it is renewed; end it, or start with `takeover`",
            Timestamp::new(*since),
            Timestamp::new(*until)
        )),
        StartRefused::TooSoon(from) => OpError::SessionExists(format!(
            "worker {worker_group}/{worker_id} of queue {queue} has just started a session, which can be taken over \
             from {} on",
            Timestamp::new(*from)
        )),
        StartRefused::Policy(version) => OpError::PolicyMismatch(format!(
            "the policy of queue {queue} has version {version}, not the one in `policyVersion`; read the policy again"
        )),
    }
}

/// Returns the identity of a session, cached or stored. Ended sessions are found for a day.
pub async fn identify(parts: Parts<'_>, id: SessionId) -> Result<Identity, OpError> {
    let identities = &parts.sessions.identities;
    if let Some(identity) = identities.find(id) {
        return Ok(identity);
    }
    // Boxed: rarely run, and keeps request futures small.
    Box::pin(async {
        let epoch = identities.epoch();
        let mut conn = parts.pool.acquire().await?;
        let identity = worker_sessions::identify(&mut conn, id).await?.ok_or_else(|| missing(id))?;
        identities.note(epoch, identity.clone());
        Ok(identity)
    })
    .await
}

fn missing(id: SessionId) -> OpError {
    OpError::NotFound(format!("session {id} does not exist"))
}

/// Returns the epoch of the session that a claim names. The claim itself checks that the session is
/// live.
///
/// # Errors
/// `NotFound`; `Input` if the session belongs to another worker or queue.
pub async fn of_claim(
    parts: Parts<'_>,
    id: SessionId,
    queue: &TaskQueueId,
    worker_group: &str,
    worker_id: &str,
) -> Result<i64, OpError> {
    let identity = identify(parts, id).await?;
    if identity.is_of(queue, worker_group, worker_id) {
        return Ok(identity.epoch);
    }
    let Identity { queue, worker_group, worker_id, .. } = identity;
    Err(OpError::Input(format!(
        "`sessionId` {id} belongs to worker {worker_group}/{worker_id} of queue {queue}: send a session of the \
         worker and the queue that this request names"
    )))
}

/// Returns `answer`, but `NotFound` for a session that ended more than a day ago. Servers that
/// cache its identity then answer like all others.
///
/// # Errors
/// As `answer`.
pub async fn unless_gone<T>(parts: Parts<'_>, id: Option<SessionId>, answer: Result<T, OpError>) -> Result<T, OpError> {
    let (Some(id), Err(OpError::SessionEnded(_))) = (id, &answer) else { return answer };
    // Boxed, as in `identify`.
    Box::pin(async {
        let mut conn = parts.pool.acquire().await?;
        if worker_sessions::identify(&mut conn, id).await?.is_none() {
            parts.sessions.identities.remove(id);
            return Err(missing(id));
        }
        answer
    })
    .await
}

/// Renews a session.
///
/// # Errors
/// `SessionEnded`, or `NotFound` if it ended more than a day ago.
pub async fn renew(parts: Parts<'_>, identity: &Identity, stated: Stated) -> Result<Renewed, OpError> {
    if stated.frozen == Some(true) {
        let answered = tokio::time::timeout(WAIT_LIST_TIMEOUT, Box::pin(answer_waiting(parts, identity))).await;
        if let Err(error) = answered.unwrap_or(Err(OpError::Unavailable)) {
            tracing::debug!(error = %error, "waiting requests of a frozen worker could not be answered");
        }
    }
    let renewal = Renewal { epoch: identity.epoch, stated, after: 0 };
    let renewed = parts.renew.submit(Renewing::in_no_hurry(renewal)).await;
    let renewed = unless_gone(parts, Some(identity.id), renewed).await?;
    parts.sessions.activity.seen();
    Ok(renewed)
}

/// Ends the waiting claim requests of a frozen worker, on all servers. If that fails, they may get
/// claims until their timeout.
async fn answer_waiting(parts: Parts<'_>, identity: &Identity) -> Result<(), OpError> {
    let Parts { pool, queues, notifiers, .. } = parts;
    let Some(queue) = queues.find_key(pool, &identity.queue).await? else { return Ok(()) };
    let (worker_group, worker_id) = (identity.worker_group.to_string(), identity.worker_id.to_string());
    send_away(pool, notifiers, Gone { queue, worker_group, worker_id }).await
}

/// Renews a session, deletes inbox items up to `after`, and waits for others; `now` is the server's
/// time. A waiting read of a recently renewed session renews only if it acknowledges items: its
/// worker asks again soon.
///
/// # Errors
/// `SessionEnded`, even during the wait, or `NotFound` if it ended more than a day ago.
pub async fn inbox(
    parts: Parts<'_>,
    identity: &Identity,
    after: i64,
    wait: Duration,
    now: DateTime<Utc>,
) -> Result<Read, OpError> {
    let wait = wait.min(identity.wait_max());
    let renewals = &parts.sessions.renewals;
    let (since, asked) = (renewals.epoch(), Instant::now());
    let acknowledges = !renewals.is_acknowledged(identity.epoch, after);
    let ttl = TimeDelta::seconds(identity.ttl);
    let fresh = renewals.find_fresh(identity.epoch, ttl, (now, asked)).filter(|_| !wait.is_zero() && !acknowledges);
    let certainty = if fresh.is_some() { Certainty::MayHaveEnded } else { Certainty::Live };
    let mut renewed = match fresh {
        Some(renewed) => renewed,
        None => {
            let renewal = Renewal { epoch: identity.epoch, stated: Stated::default(), after };
            // An uncached session may acknowledge nothing: no reason to hurry.
            let renewing = if acknowledges && renewals.has(identity.epoch) {
                Renewing::acknowledging(renewal)
            } else {
                Renewing::within(renewal, wait)
            };
            let renewed = unless_gone(parts, Some(identity.id), parts.renew.submit(renewing).await).await?;
            renewals.note(since, asked, renewed.clone(), after);
            renewed
        }
    };
    parts.sessions.activity.seen();
    let began = Instant::now();
    let found = parts.sessions.inboxes.read(identity.epoch, after, wait, certainty).await?;
    let waited = began.elapsed().min(wait);
    if let Some(live) = found.live {
        // Another renewal may have been answered since, by any server: `until` never goes back.
        renewed.until = live.until.max(renewed.until);
        renewed.policy_version = live.policy_version;
    }
    Ok(Read { renewed, items: found.items, waited })
}

/// Ends a session for its worker. Returns the number of returned runs, also on a repeat. The audit
/// omits ends by the client that started the session.
pub async fn close(parts: Parts<'_>, actor: &Actor, identity: &Identity) -> Result<i64, OpError> {
    let mut conn = parts.pool.acquire().await?;
    let starter = worker_sessions::find_starter(&mut conn, identity.epoch).await?;
    let actor = Some(actor).filter(|actor| starter.as_ref() != Some(&actor.client_id));
    match end_whole(&mut conn, parts.notifiers, actor, identity.epoch, SessionEnd::Closed).await? {
        Attempt::Ended(left) => Ok(i64::try_from(left.runs).unwrap_or(i64::MAX)),
        Attempt::Held => Err(OpError::Unavailable),
        Attempt::NotLive => {
            let stored = worker_sessions::find(&mut conn, identity.epoch).await?;
            let (_, _, returned) = stored.ok_or_else(|| missing(identity.id))?.ended.ok_or(OpError::Unavailable)?;
            Ok(returned)
        }
    }
}

pub async fn find(parts: Parts<'_>, id: SessionId) -> Result<Stored, OpError> {
    let identity = identify(parts, id).await?;
    let mut conn = parts.pool.acquire().await?;
    worker_sessions::find(&mut conn, identity.epoch).await?.ok_or_else(|| missing(id))
}

/// Lists a queue's live sessions in one snapshot.
pub async fn list_workers(parts: Parts<'_>, queue: &TaskQueueId) -> Result<Vec<Member>, OpError> {
    let Some(key) = parts.queues.find_key(parts.pool, queue).await? else { return Ok(Vec::new()) };
    let mut conn = parts.pool.acquire().await?;
    Ok(worker_sessions::list_workers(&mut conn, key, queue, WORKERS_SHOWN_MAX).await?)
}

/// Puts a command into a session's inbox and returns the item's id.
///
/// # Errors
/// `NotFound` if the session has ended, `Conflict` if it has too many commands.
pub async fn command(
    parts: Parts<'_>,
    actor: &Actor,
    identity: &Identity,
    request: &CommandRequest,
) -> Result<i64, OpError> {
    check_command(request)?;
    let mut conn = parts.pool.acquire().await?;
    let mut transaction = conn.begin().await?;
    match worker_sessions::command(&mut transaction, identity.epoch, request.command, request.task_id).await? {
        Sent::Item(id) => {
            let detail = json!({"sessionId": identity.id, "command": request.command, "taskId": request.task_id});
            let entry = Entry::new(Action::CommandSession, worker_of(identity), detail);
            let recorded = actor.record(&mut transaction, entry).await?;
            let effects = Effects { inboxes: vec![identity.epoch], ..Effects::default() };
            parts.notifiers.commit(transaction, effects).await?;
            recorded.log();
            Ok(id)
        }
        Sent::Ended => Err(OpError::NotFound(format!("session {} has ended", identity.id))),
        Sent::TooMany => Err(OpError::Conflict(format!(
            "session {} has {COMMANDS_MAX} commands that its worker has not acknowledged",
            identity.id
        ))),
    }
}

/// Names the session's worker in the audit.
fn worker_of(identity: &Identity) -> String {
    audit::worker(identity.queue.as_str(), identity.worker_group.as_str(), identity.worker_id.as_str())
}
