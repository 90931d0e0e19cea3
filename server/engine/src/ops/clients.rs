//! Making a client, which may be repeated for a while.

use sqlx::PgPool;
use tenure_api::credentials::AccessToken;

use super::OpError;
use tenure_domain::roles::{check_description, check_scopes};
use tenure_store::clients::{self, CLIENT_ID_MAX, ClientError, NewClient, valid_client_id};
use tenure_store::secrets::{SecretKeys, new_access_token};

/// Says what is wrong with the id of a client.
///
/// # Errors
/// A sentence for the caller.
pub fn check_client_id(client_id: &str) -> Result<(), String> {
    if valid_client_id(client_id) {
        return Ok(());
    }
    Err(format!("a client id has 1 to {CLIENT_ID_MAX} letters, digits and characters of !@/:.+|_-"))
}

/// Says what is wrong with what a client is to have.
///
/// # Errors
/// A sentence for the caller.
pub fn check(description: &str, scopes: &[String]) -> Result<(), String> {
    check_scopes(scopes)?;
    check_description(description)
}

/// Makes a client and gives its token. A repeat soon after, with the same definition, gives the same token, because
/// whoever made the client may not have got the answer; any other client of that id is a conflict.
pub async fn create(
    pool: &PgPool,
    keys: &SecretKeys,
    client: &NewClient,
) -> Result<Result<AccessToken, OpError>, ClientError> {
    let token = new_access_token();
    if clients::create(pool, keys, client, &token).await? {
        return Ok(Ok(token));
    }
    let fresh = clients::find_fresh_token(pool, keys, client).await?;
    Ok(fresh.ok_or_else(|| {
        let id = &client.client_id;
        OpError::Conflict(format!("there is a client {id:?} already; update it, or reset its access token"))
    }))
}

/// What is said of a client that does not exist.
#[must_use]
pub fn missing(client_id: &str) -> OpError {
    OpError::NotFound(format!("there is no client {client_id:?}"))
}
