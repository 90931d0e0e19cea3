//! Policies and pauses of queues.

use serde_json::json;
use sqlx::{Connection, PgConnection, PgPool};
use tenure_api::dates::Timestamp;
use tenure_api::ids::TaskQueueId;
use tenure_api::policy::{PauseRequest, QueuePolicy};

use super::OpError;
use super::actor::Actor;
use crate::notifiers::{Effects, Notifiers};
use tenure_domain::audit::{Action, Entry};
use tenure_domain::events::note::Note;
use tenure_domain::policy::document::{self, Change, Match, Policy};
use tenure_domain::policy::pause::{self, Outcome, Paused};
use tenure_domain::policy::refile::{self, Stage};
use tenure_store::counters::{self, Counts};
use tenure_store::events::Sequenced;
use tenure_store::failure::{Class, classify};
use tenure_store::policies::{self, StoredPolicy};
use tenure_store::queues::{self, Queues};
use tenure_store::{admission, clock, partitions};

#[derive(Clone, Copy)]
pub struct Parts<'a> {
    pub pool: &'a PgPool,
    pub queues: &'a Queues,
    pub notifiers: &'a Notifiers,
    /// Position after which counter changes are read.
    pub sequenced: Sequenced,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Current {
    pub stored: StoredPolicy,
    /// Upper bound of runs still treated by the old policy; 0 exactly if all follow the new one.
    pub refiling: i64,
}

fn missing(queue: &TaskQueueId) -> OpError {
    OpError::NotFound(format!("queue {queue} has no policy"))
}

/// Returns the policy of a queue.
///
/// # Errors
/// If the queue has none.
pub async fn get(parts: Parts<'_>, queue: &TaskQueueId) -> Result<Current, OpError> {
    let key = parts.queues.find_key(parts.pool, queue).await?.ok_or_else(|| missing(queue))?;
    let mut conn = parts.pool.acquire().await?;
    let stored = policies::find(&mut conn, key).await?.ok_or_else(|| missing(queue))?;
    with_refiling(parts, &mut conn, queue, stored).await
}

async fn with_refiling(
    parts: Parts<'_>,
    conn: &mut PgConnection,
    queue: &TaskQueueId,
    stored: StoredPolicy,
) -> Result<Current, OpError> {
    if stored.stage == Stage::Done {
        return Ok(Current { stored, refiling: 0 });
    }
    let counts = counters::get_counts(conn, parts.sequenced, std::slice::from_ref(queue)).await?;
    let Counts { pending, claimed, delayed } = counts.first().copied().unwrap_or_default();
    let refiling = refile::runs_left(stored.stage, pending, delayed, claimed);
    Ok(Current { stored, refiling })
}

#[derive(Debug)]
pub struct Put {
    pub sent: QueuePolicy,
    /// Parsed and checked.
    pub policy: Policy,
    /// The policy that may be replaced.
    pub replaces: Match,
}

/// Replaces the policy of a queue. Creates the queue if needed. The same policy changes nothing.
///
/// # Errors
/// If the current policy is not the one to replace.
pub async fn put(parts: Parts<'_>, actor: &Actor, queue: &TaskQueueId, put: Put) -> Result<Current, OpError> {
    let Put { sent, policy, replaces } = put;
    let client_id = actor.client_id.as_str();
    let key = parts.queues.get_or_create_key(parts.pool, queue).await?;
    let mut conn = parts.pool.acquire().await?;
    let mut transaction = conn.begin().await?;
    if let Some(group) = &policy.partition
        && !partitions::keep(&mut transaction, group).await?
    {
        return Err(OpError::Input(format!(
            "`partition` names the group {group:?}, which does not exist: store it first"
        )));
    }
    admission::lock_given(&mut transaction, key).await?;
    if !policies::lock_queue(&mut transaction, key).await? {
        return Err(OpError::Unavailable);
    }
    let current = policies::find(&mut transaction, key).await?;
    match (replaces.change(current.as_ref().map(as_rule), Some(policy.text())), current) {
        (Change::Refused(refusal), _) => return Err(OpError::Conflict(refusal)),
        (Change::Nothing, Some(current)) => return with_refiling(parts, &mut transaction, queue, current).await,
        (Change::Nothing, None) | (Change::Allowed, _) => {}
    }
    let limited = policy.admission().is_some();
    let (stored, inboxes) = policies::put(&mut transaction, key, &policy, client_id).await?;
    let detail = json!({"policyVersion": stored.version, "policy": sent});
    let note = Note::queue_policy_changed(queue.clone(), client_id.to_owned(), stored.version, Some(sent));
    policies::emit(&mut transaction, &note).await?;
    let recorded = actor.record(&mut transaction, Entry::new(Action::PutQueuePolicy, queue, detail)).await?;
    parts.notifiers.commit(transaction, Effects { inboxes, ..Effects::default() }).await?;
    recorded.log();
    if limited {
        parts.notifiers.expect_limited(key);
        parts.notifiers.notify_schedulers();
    }
    with_refiling(parts, &mut conn, queue, stored).await
}

fn as_rule(stored: &StoredPolicy) -> document::Current<'_> {
    document::Current { version: stored.version, text: &stored.policy }
}

/// Removes the policy of a queue, if any.
///
/// # Errors
/// If the current policy is not the one to remove.
pub async fn delete(parts: Parts<'_>, actor: &Actor, queue: &TaskQueueId, wanted: Match) -> Result<(), OpError> {
    let client_id = actor.client_id.as_str();
    let Some(key) = parts.queues.find_key(parts.pool, queue).await? else { return Ok(()) };
    let mut conn = parts.pool.acquire().await?;
    let mut transaction = conn.begin().await?;
    policies::lock_queue(&mut transaction, key).await?;
    let current = policies::find(&mut transaction, key).await?;
    match wanted.change(current.as_ref().map(as_rule), None) {
        Change::Refused(refusal) => return Err(OpError::Conflict(refusal)),
        Change::Nothing => return Ok(()),
        Change::Allowed => {}
    }
    let Some(version) = policies::delete(&mut transaction, key, client_id).await? else { return Ok(()) };
    let note = Note::queue_policy_changed(queue.clone(), client_id.to_owned(), version, None);
    policies::emit(&mut transaction, &note).await?;
    let entry = Entry::new(Action::DeleteQueuePolicy, queue, json!({"policyVersion": version}));
    let recorded = actor.record(&mut transaction, entry).await?;
    parts.notifiers.commit(transaction, Effects::default()).await?;
    recorded.log();
    Ok(())
}

/// Pauses a queue. Creates the queue if needed. A paused queue takes the new reason and end. No
/// statement that begins after the answer gives one of its runs to a worker, on any server.
///
/// # Errors
/// If the request is invalid.
pub async fn pause(
    parts: Parts<'_>,
    actor: &Actor,
    queue: &TaskQueueId,
    request: &PauseRequest,
) -> Result<Paused, OpError> {
    let key = parts.queues.get_or_create_key(parts.pool, queue).await?;
    let mut conn = parts.pool.acquire().await?;
    let mut transaction = conn.begin().await?;
    if !policies::lock_queue(&mut transaction, key).await? {
        return Err(OpError::Unavailable);
    }
    let current = policies::find_pause(&mut transaction, key).await?;
    let now = clock::get_now(&mut transaction).await?;
    let paused = match pause::pause(current.as_ref(), request, &actor.client_id, now)? {
        Outcome::Repeat(paused) => return Ok(paused),
        Outcome::Paused(paused) => paused,
    };
    policies::set_pause(&mut transaction, key, Some(&paused)).await?;
    policies::emit(&mut transaction, &Note::queue_paused(queue.clone(), &paused)).await?;
    let detail = json!({"reason": paused.reason, "until": paused.until.map(Timestamp::new)});
    let recorded = actor.record(&mut transaction, Entry::new(Action::PauseQueue, queue, detail)).await?;
    parts.notifiers.commit(transaction, Effects::default()).await?;
    recorded.log();
    Ok(paused)
}

pub async fn resume(parts: Parts<'_>, actor: &Actor, queue: &TaskQueueId) -> Result<(), OpError> {
    let Some(key) = parts.queues.find_key(parts.pool, queue).await? else { return Ok(()) };
    let mut conn = parts.pool.acquire().await?;
    let mut transaction = conn.begin().await?;
    admission::lock_given(&mut transaction, key).await?;
    policies::lock_queue(&mut transaction, key).await?;
    if policies::find_pause(&mut transaction, key).await?.is_none() {
        return Ok(());
    }
    let inboxes = policies::set_pause(&mut transaction, key, None).await?;
    policies::emit(&mut transaction, &Note::queue_resumed(queue.clone(), Some(actor.client_id.clone()))).await?;
    let recorded = actor.record(&mut transaction, Entry::new(Action::ResumeQueue, queue, json!({}))).await?;
    parts.notifiers.commit(transaction, Effects { inboxes, ..Effects::claimable([key]) }).await?;
    recorded.log();
    Ok(())
}

/// Resumes up to `limit` queues whose pause is over. Returns their number. Each has its own
/// transaction: a locked run keeps only its own queue paused.
///
/// # Errors
/// If the database is unavailable; or the first error of a queue, after the other queues were
/// resumed.
pub async fn resume_over(parts: Parts<'_>, limit: i64) -> Result<usize, sqlx::Error> {
    let mut conn = parts.pool.acquire().await?;
    let (mut resumed, mut failed) = (0, None);
    for queue in policies::list_over(&mut conn, limit).await? {
        match resume_if_over(parts, &mut conn, queue).await {
            Ok(done) => resumed += usize::from(done),
            Err(error) if classify(&error) == Class::Contention => {}
            Err(error) if classify(&error) == Class::Unavailable => return Err(error),
            Err(error) => {
                failed.get_or_insert(error);
            }
        }
    }
    if resumed > 0 {
        tracing::info!(queues = resumed, "queues were resumed, because their pause expired");
    }
    failed.map_or(Ok(resumed), Err)
}

async fn resume_if_over(parts: Parts<'_>, conn: &mut PgConnection, queue: i32) -> Result<bool, sqlx::Error> {
    let mut transaction = conn.begin().await?;
    admission::lock_given(&mut transaction, queue).await?;
    let Some(name) = policies::lock_over(&mut transaction, queue).await? else { return Ok(false) };
    let inboxes = policies::set_pause(&mut transaction, queue, None).await?;
    policies::emit(&mut transaction, &Note::queue_resumed(queues::parse_name(&name)?, None)).await?;
    parts.notifiers.commit(transaction, Effects { inboxes, ..Effects::claimable([queue]) }).await?;
    Ok(true)
}
