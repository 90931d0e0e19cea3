//! Subscriptions: storing, resuming and deleting them. [`crate::events::deliveries`] sends their
//! messages.

use serde_json::{Value, json};
use sqlx::{Connection, PgConnection, PgPool};
use tenure_api::subscriptions::After;
use tenure_domain::audit::{Action, Entry};
use tenure_domain::delivery::{Definition, SUBSCRIPTIONS_MAX, Subscription};
use tenure_store::events::{self, Ends, Sequenced};
use tenure_store::subscriptions::SealedSecret;
use tenure_store::{session, subscriptions};

use super::OpError;
use super::actor::{Actor, Recorded};
use crate::gate::Gate;
use crate::notifiers::{Effects, Notifiers};

/// Parts of the engine for subscriptions.
#[derive(Clone, Copy)]
pub struct Parts<'a> {
    pub pool: &'a PgPool,
    pub notifiers: &'a Notifiers,
    pub sequenced: Sequenced,
    /// The log has no row before this position.
    pub begins: i64,
    pub gate: &'a Gate,
}

/// A subscription to store.
pub struct Put {
    pub definition: Definition,
    pub secret: Option<SealedSecret>,
    /// For a new subscription without a secret, encrypted.
    pub sealed_default: Vec<u8>,
    pub after: Option<After>,
}

/// What became of the secret of a stored subscription.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SecretUsed {
    Given,
    Kept,
    Default,
}

fn missing(name: &str) -> OpError {
    OpError::NotFound(format!("the subscription {name:?} does not exist"))
}

/// # Errors
/// If it does not exist.
pub async fn get(parts: Parts<'_>, name: &str) -> Result<Subscription, OpError> {
    subscriptions::list(parts.pool, Some(name)).await?.pop().ok_or_else(|| missing(name))
}

/// Lists all subscriptions by name.
pub async fn list(parts: Parts<'_>) -> Result<Vec<Subscription>, OpError> {
    Ok(subscriptions::list(parts.pool, None).await?)
}

/// Stores a subscription of this client. An existing one keeps its position.
///
/// # Errors
/// If too many subscriptions exist, or the position is not in the log.
pub async fn put(parts: Parts<'_>, actor: &Actor, name: &str, put: Put) -> Result<SecretUsed, OpError> {
    parts.gate.open().await?;
    let Put { definition, secret, sealed_default, after } = put;
    let mut conn = parts.pool.acquire().await?;
    // Before the transaction: the sequencer has its own.
    let ends = read_ends(parts, &mut conn).await?;
    let mut transaction = conn.begin().await?;
    session::idle_briefly(&mut transaction).await?;
    let mut recorded = None;
    let used = if subscriptions::lock(&mut transaction, name).await?.is_some() {
        if after.is_some() {
            return Err(OpError::Input(
                "`after` is for new subscriptions; resume an existing one with `after` to move it".to_owned(),
            ));
        }
        let old = subscriptions::list(&mut *transaction, Some(name)).await?.pop();
        let is_same = |old: &Subscription| old.definition == definition && old.client_id == actor.client_id;
        // The secret of a broker signs nothing.
        let is_other_protocol =
            old.as_ref().is_some_and(|old| old.definition.protocol.prefix().is_some() && secret.is_none());
        let secret =
            if is_other_protocol { Some(SealedSecret { bytes: sealed_default, is_new: true }) } else { secret };
        let has_new_secret = secret.as_ref().is_some_and(|secret| secret.is_new);
        if has_new_secret || !old.as_ref().is_some_and(is_same) {
            let entry = Entry::new(Action::PutSubscription, name, detail(&definition, has_new_secret));
            recorded = Some(actor.record(&mut transaction, entry).await?);
        }
        subscriptions::update(&mut transaction, name, &definition, secret.as_ref(), &actor.client_id).await?;
        match secret {
            _ if is_other_protocol => SecretUsed::Default,
            Some(_) => SecretUsed::Given,
            None => SecretUsed::Kept,
        }
    } else {
        if subscriptions::is_full(&mut transaction, SUBSCRIPTIONS_MAX as i64).await? {
            return Err(OpError::Conflict(format!(
                "{SUBSCRIPTIONS_MAX} subscriptions exist, which is the limit: delete unneeded ones"
            )));
        }
        let sealed = secret.as_ref().map_or(&sealed_default, |secret| &secret.bytes);
        let begin = check_position(ends, after.unwrap_or(After::Latest))?;
        if !subscriptions::insert(&mut transaction, name, &definition, sealed, &actor.client_id, begin).await? {
            return Err(OpError::Conflict(format!(
                "another request has just stored the subscription {name:?}; send it again"
            )));
        }
        let entry = Entry::new(Action::PutSubscription, name, detail(&definition, true));
        recorded = Some(actor.record(&mut transaction, entry).await?);
        if secret.is_some() { SecretUsed::Given } else { SecretUsed::Default }
    };
    parts.notifiers.commit(transaction, Effects::default()).await?;
    recorded.into_iter().for_each(Recorded::log);
    Ok(used)
}

/// Leaves out the path of the URL, which may be a secret of the receiver.
fn detail(definition: &Definition, has_new_secret: bool) -> Value {
    let Definition { url, protocol, exchanges, routing_key_pattern, route, result, batch, give_up_after } = definition;
    let mut detail = json!({
        "to": url.split('/').take(3).collect::<Vec<_>>().join("/"),
        "result": result,
        "batch": batch,
        "giveUpAfter": give_up_after.num_seconds(),
    });
    if let Some(prefix) = protocol.prefix() {
        detail["prefix"] = prefix.into();
    }
    for (field, value) in [("exchange", exchanges), ("routingKeyPattern", routing_key_pattern), ("route", route)] {
        if let Some(value) = value {
            detail[field] = value.as_str().into();
        }
    }
    if has_new_secret {
        detail["secret"] = "new".into();
    }
    detail
}

/// Lets a subscription continue after this position, or where it stopped.
///
/// # Errors
/// If it does not exist, or the position is not in the log.
pub async fn resume(
    parts: Parts<'_>,
    actor: &Actor,
    name: &str,
    after: Option<After>,
) -> Result<Subscription, OpError> {
    let mut conn = parts.pool.acquire().await?;
    let ends = read_ends(parts, &mut conn).await?;
    let mut transaction = conn.begin().await?;
    session::idle_briefly(&mut transaction).await?;
    let stopped_at = subscriptions::lock(&mut transaction, name).await?.ok_or_else(|| missing(name))?;
    // It may have moved on since the caller has seen it.
    let position = check_position(ends, after.unwrap_or(After::Position(stopped_at)))?;
    subscriptions::resume(&mut transaction, name, position).await?;
    let entry = Entry::new(Action::ResumeSubscription, name, json!({"position": position}));
    let recorded = actor.record(&mut transaction, entry).await?;
    parts.notifiers.commit(transaction, Effects::default()).await?;
    recorded.log();
    drop(conn);
    get(parts, name).await
}

/// # Errors
/// If it does not exist.
pub async fn delete(parts: Parts<'_>, actor: &Actor, name: &str) -> Result<(), OpError> {
    let mut conn = parts.pool.acquire().await?;
    let mut transaction = conn.begin().await?;
    session::idle_briefly(&mut transaction).await?;
    if !subscriptions::delete(&mut transaction, name).await? {
        return Err(missing(name));
    }
    let recorded = actor.record(&mut transaction, Entry::new(Action::DeleteSubscription, name, json!({}))).await?;
    parts.notifiers.commit(transaction, Effects::default()).await?;
    recorded.log();
    Ok(())
}

/// Reads the range of the log. Everything committed before the call has a position.
async fn read_ends(parts: Parts<'_>, conn: &mut PgConnection) -> Result<Ends, sqlx::Error> {
    events::sequence(&mut *conn, parts.sequenced).await?;
    events::get_ends(conn, parts.sequenced, parts.begins).await
}

fn check_position(ends: Ends, after: After) -> Result<i64, OpError> {
    match after {
        After::Latest => Ok(ends.newest),
        After::Position(position) if position < ends.oldest => Err(OpError::Expired(format!(
            "events up to position {oldest} are no longer retained; continue with `after`: {oldest}, or \"latest\"",
            oldest = ends.oldest
        ))),
        After::Position(position) if position > ends.newest => {
            Err(OpError::Input(format!("position {position} does not exist yet, the newest is {}", ends.newest)))
        }
        After::Position(position) => Ok(position),
    }
}
