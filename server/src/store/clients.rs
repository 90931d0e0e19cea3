//! The table `clients`. Access tokens are encrypted on their way in and decrypted on their way out, nowhere else.

use chrono::{DateTime, Utc};
use serde::Serialize;
use sqlx::PgExecutor;
use tenure_api::credentials::AccessToken;
use tenure_api::dates::Timestamp;

use crate::secrets::{SecretKeys, Undecryptable};

/// The most characters that a client id may have.
pub const CLIENT_ID_MAX: usize = 255;

/// Whether a text can be the id of a client with a row; the migration checks the same.
#[must_use]
pub fn valid_client_id(text: &str) -> bool {
    (1..=CLIENT_ID_MAX).contains(&text.len())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"!@/:.+|_-".contains(&byte))
}

/// Why a client could not be read.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The database did not answer as it should.
    #[error("the database could not be asked for a client")]
    Database(#[from] sqlx::Error),
    /// The row is there, but the server lacks the secret key for it.
    #[error("clients.token of {client_id:?} cannot be decrypted: is TENURE_SECRET_KEY the key it was stored with?")]
    Token {
        /// Which client.
        client_id: String,
        /// Why not.
        #[source]
        source: Undecryptable,
    },
}

/// A client as authentication needs it.
#[derive(Debug)]
pub struct ClientAccount {
    /// The secret that the client signs with.
    pub access_token: AccessToken,
    /// What it may do, before expansion.
    pub scopes: Vec<String>,
    /// Whether an operator has shut it out.
    pub disabled: bool,
    /// When it is shut out by itself.
    pub expires: Option<DateTime<Utc>>,
    /// Whether that time had come when the row was read.
    pub expired: bool,
}

/// A client as it is shown, without its secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ClientInfo {
    /// What the client calls itself.
    pub client_id: String,
    /// What it may do, before expansion.
    pub scopes: Vec<String>,
    /// For people.
    pub description: String,
    /// From when on it is refused; none: never.
    pub expires: Option<Timestamp>,
    /// Whether it is refused for now.
    pub disabled: bool,
    /// When it was made.
    pub created: Timestamp,
    /// When anything about it was last changed.
    pub last_modified: Timestamp,
}

struct ClientRow {
    client_id: String,
    scopes: Vec<String>,
    description: String,
    expires: Option<DateTime<Utc>>,
    disabled: bool,
    created: DateTime<Utc>,
    last_modified: DateTime<Utc>,
}

impl From<ClientRow> for ClientInfo {
    fn from(row: ClientRow) -> Self {
        Self {
            client_id: row.client_id,
            scopes: row.scopes,
            description: row.description,
            expires: row.expires.map(Timestamp::new),
            disabled: row.disabled,
            created: Timestamp::new(row.created),
            last_modified: Timestamp::new(row.last_modified),
        }
    }
}

/// A client that is to be made.
#[derive(Debug, Clone)]
pub struct NewClient {
    /// What the client will call itself.
    pub client_id: String,
    /// What it may do, before expansion.
    pub scopes: Vec<String>,
    /// For people.
    pub description: String,
    /// From when on it is refused; none: never.
    pub expires: Option<DateTime<Utc>>,
}

/// Makes a client; false if one of that id exists, which then is unchanged.
///
/// # Errors
/// If the database refuses.
pub async fn create(
    db: impl PgExecutor<'_>,
    keys: &SecretKeys,
    client: &NewClient,
    access_token: &AccessToken,
) -> Result<bool, sqlx::Error> {
    let NewClient { client_id, scopes, description, expires } = client;
    let done = sqlx::query!(
        "-- create_client
        INSERT INTO clients (client_id, token, scopes, description, expires)
        VALUES ($1, $2, $3, $4, $5)
        ON CONFLICT (client_id) DO NOTHING",
        client_id,
        keys.encrypt_token(client_id, access_token),
        scopes,
        description,
        *expires,
    )
    .execute(db)
    .await?;
    Ok(done.rows_affected() == 1)
}

/// What authentication needs to know of a client, if it exists.
///
/// # Errors
/// If the database refuses, or the secret key is not the one that the token was stored with.
pub async fn find_account(
    db: impl PgExecutor<'_>,
    keys: &SecretKeys,
    client_id: &str,
) -> Result<Option<ClientAccount>, ClientError> {
    let row = sqlx::query!(
        r#"-- find_client_account
        SELECT token, scopes, disabled, expires, coalesce(expires < tenure_now(), false) AS "expired!"
        FROM clients
        WHERE client_id = $1"#,
        client_id,
    )
    .fetch_optional(db)
    .await?;
    let Some(row) = row else { return Ok(None) };
    let access_token = keys
        .decrypt_token(client_id, &row.token)
        .map_err(|source| ClientError::Token { client_id: client_id.to_owned(), source })?;
    let (scopes, disabled, expires, expired) = (row.scopes, row.disabled, row.expires, row.expired);
    Ok(Some(ClientAccount { access_token, scopes, disabled, expires, expired }))
}

/// A client, if it exists.
///
/// # Errors
/// If the database refuses.
pub async fn find(db: impl PgExecutor<'_>, client_id: &str) -> Result<Option<ClientInfo>, sqlx::Error> {
    let row = sqlx::query_as!(
        ClientRow,
        "-- find_client
        SELECT client_id, scopes, description, expires, disabled, created, last_modified
        FROM clients
        WHERE client_id = $1",
        client_id,
    )
    .fetch_optional(db)
    .await?;
    Ok(row.map(ClientInfo::from))
}

/// All clients by id.
///
/// # Errors
/// If the database refuses.
pub async fn list(db: impl PgExecutor<'_>) -> Result<Vec<ClientInfo>, sqlx::Error> {
    let rows = sqlx::query_as!(
        ClientRow,
        "-- list_clients
        SELECT client_id, scopes, description, expires, disabled, created, last_modified
        FROM clients
        ORDER BY client_id",
    )
    .fetch_all(db)
    .await?;
    Ok(rows.into_iter().map(ClientInfo::from).collect())
}

/// Gives a client a new token; false if there is no such client. Servers accept the old one for up to a second more.
///
/// # Errors
/// If the database refuses.
pub async fn reset_token(
    db: impl PgExecutor<'_>,
    keys: &SecretKeys,
    client_id: &str,
    access_token: &AccessToken,
) -> Result<bool, sqlx::Error> {
    let done = sqlx::query!(
        "-- reset_client_token
        UPDATE clients SET token = $2, last_modified = tenure_now() WHERE client_id = $1",
        client_id,
        keys.encrypt_token(client_id, access_token),
    )
    .execute(db)
    .await?;
    Ok(done.rows_affected() == 1)
}

/// Removes a client; false if there is none. Servers accept it for up to a second more.
///
/// # Errors
/// If the database refuses.
pub async fn delete(db: impl PgExecutor<'_>, client_id: &str) -> Result<bool, sqlx::Error> {
    let done = sqlx::query!("DELETE FROM clients WHERE client_id = $1 -- delete_client", client_id).execute(db).await?;
    Ok(done.rows_affected() == 1)
}

#[cfg(test)]
pub(crate) mod tests;
