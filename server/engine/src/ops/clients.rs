//! Changes of clients. A create may safely be repeated for a while.

use serde_json::json;
use sqlx::PgPool;
use tenure_api::credentials::AccessToken;
use tenure_api::dates::Timestamp;

use super::OpError;
use super::actor::{Actor, Recorded};
use tenure_domain::audit::{self, Account, Action, Entry};
use tenure_domain::roles::{check_description, check_scopes};
use tenure_store::clients::{self, CLIENT_ID_MAX, ClientChange, ClientError, ClientInfo, NewClient, valid_client_id};
use tenure_store::secrets::{SecretKeys, new_access_token};

/// The error is a message for the caller.
pub fn check_client_id(client_id: &str) -> Result<(), String> {
    if valid_client_id(client_id) {
        return Ok(());
    }
    Err(format!("a client id has 1 to {CLIENT_ID_MAX} letters, digits and characters of !@/:.+|_-"))
}

/// The error is a message for the caller.
pub fn check(description: &str, scopes: &[String]) -> Result<(), String> {
    check_scopes(scopes)?;
    check_description(description)
}

/// Returns the client's token. A repeat soon after, with the same definition, returns the same
/// token: the first response may be lost. Any other existing client with this id is a conflict.
pub async fn create(
    pool: &PgPool,
    keys: &SecretKeys,
    actor: &Actor,
    client: &NewClient,
) -> Result<Result<AccessToken, OpError>, ClientError> {
    if let Some(token) = create_new(pool, keys, actor, client).await? {
        return Ok(Ok(token));
    }
    let existing = clients::find_recent_token(pool, keys, client).await?;
    Ok(existing.ok_or_else(|| {
        let id = &client.client_id;
        OpError::Conflict(format!("client {id:?} already exists; update it, or reset its access token"))
    }))
}

/// Creates a client and returns its token; none if the id exists.
pub async fn create_new(
    pool: &PgPool,
    keys: &SecretKeys,
    actor: &Actor,
    client: &NewClient,
) -> Result<Option<AccessToken>, sqlx::Error> {
    let token = new_access_token();
    let mut transaction = pool.begin().await?;
    if !clients::create(&mut *transaction, keys, client, &token).await? {
        return Ok(None);
    }
    let account = Account {
        scopes: &client.scopes,
        description: &client.description,
        expires: client.expires.map(Timestamp::new),
        delete_on_expiration: client.delete_on_expiration,
    };
    let entry = Entry::new(Action::CreateClient, &client.client_id, audit::created(account));
    let recorded = actor.record(&mut transaction, entry).await?;
    transaction.commit().await?;
    recorded.log();
    Ok(Some(token))
}

fn account(client: &ClientInfo) -> Account<'_> {
    Account {
        scopes: &client.scopes,
        description: &client.description,
        expires: client.expires,
        delete_on_expiration: client.delete_on_expiration,
    }
}

/// Changes a client, if it exists and, given `seen`, still has those scopes.
pub async fn update(
    pool: &PgPool,
    actor: &Actor,
    client_id: &str,
    seen: Option<&[String]>,
    change: &ClientChange,
) -> Result<Option<ClientInfo>, sqlx::Error> {
    let mut transaction = pool.begin().await?;
    let Some(before) = clients::lock(&mut transaction, client_id).await? else { return Ok(None) };
    let Some(after) = clients::update(&mut *transaction, client_id, seen, change).await? else { return Ok(None) };
    let mut recorded = None;
    if let Some(detail) = audit::changed(account(&before), account(&after)) {
        let entry = Entry::new(Action::UpdateClient, client_id, detail);
        recorded = Some(actor.record(&mut transaction, entry).await?);
    }
    transaction.commit().await?;
    recorded.into_iter().for_each(Recorded::log);
    Ok(Some(after))
}

/// Disables or enables a client. None if it does not exist.
pub async fn set_disabled(
    pool: &PgPool,
    actor: &Actor,
    client_id: &str,
    disabled: bool,
) -> Result<Option<ClientInfo>, sqlx::Error> {
    let mut transaction = pool.begin().await?;
    let Some(before) = clients::lock(&mut transaction, client_id).await? else { return Ok(None) };
    let after = clients::set_disabled(&mut *transaction, client_id, disabled).await?;
    let mut recorded = None;
    if before.disabled != disabled {
        let action = if disabled { Action::DisableClient } else { Action::EnableClient };
        recorded = Some(actor.record(&mut transaction, Entry::new(action, client_id, json!({}))).await?);
    }
    transaction.commit().await?;
    recorded.into_iter().for_each(Recorded::log);
    Ok(after)
}

/// Replaces the token of a client and returns the new one. None if the client does not exist.
pub async fn reset_token(
    pool: &PgPool,
    keys: &SecretKeys,
    actor: &Actor,
    client_id: &str,
) -> Result<Option<AccessToken>, sqlx::Error> {
    let token = new_access_token();
    let mut transaction = pool.begin().await?;
    if !clients::reset_token(&mut *transaction, keys, client_id, &token).await? {
        return Ok(None);
    }
    let entry = Entry::new(Action::ResetAccessToken, client_id, json!({}));
    let recorded = actor.record(&mut transaction, entry).await?;
    transaction.commit().await?;
    recorded.log();
    Ok(Some(token))
}

/// Deletes a client. False if it does not exist.
pub async fn delete(pool: &PgPool, actor: &Actor, client_id: &str) -> Result<bool, sqlx::Error> {
    let mut transaction = pool.begin().await?;
    if !clients::delete(&mut *transaction, client_id).await? {
        return Ok(false);
    }
    let recorded = actor.record(&mut transaction, Entry::new(Action::DeleteClient, client_id, json!({}))).await?;
    transaction.commit().await?;
    recorded.log();
    Ok(true)
}

#[must_use]
pub fn missing(client_id: &str) -> OpError {
    OpError::NotFound(format!("there is no client {client_id:?}"))
}
