//! Creates clients. A create may safely be repeated for a while.

use sqlx::PgPool;
use tenure_api::credentials::AccessToken;

use super::OpError;
use tenure_domain::roles::{check_description, check_scopes};
use tenure_store::clients::{self, CLIENT_ID_MAX, ClientError, NewClient, valid_client_id};
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
    client: &NewClient,
) -> Result<Result<AccessToken, OpError>, ClientError> {
    let token = new_access_token();
    if clients::create(pool, keys, client, &token).await? {
        return Ok(Ok(token));
    }
    let existing = clients::find_recent_token(pool, keys, client).await?;
    Ok(existing.ok_or_else(|| {
        let id = &client.client_id;
        OpError::Conflict(format!("client {id:?} already exists; update it, or reset its access token"))
    }))
}

#[must_use]
pub fn missing(client_id: &str) -> OpError {
    OpError::NotFound(format!("there is no client {client_id:?}"))
}
