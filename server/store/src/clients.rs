//! The table `clients`. Access tokens are encrypted and decrypted only here.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use sqlx::{PgConnection, PgExecutor};
use tenure_api::credentials::AccessToken;
use tenure_api::dates::Timestamp;

use crate::failure::classify;
use crate::outage;
use crate::secrets::{SecretKeys, Undecryptable};

pub const CLIENT_ID_MAX: usize = 255;

/// Minimum interval between updates of a client's last use.
const USE_NOTED_EVERY_HOURS: i32 = 6;
/// A repeated creation within this time returns the same token.
const REPEATABLE_MINUTES: i32 = 15;

/// The migration checks the same.
#[must_use]
pub fn valid_client_id(text: &str) -> bool {
    (1..=CLIENT_ID_MAX).contains(&text.len())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"!@/:.+|_-".contains(&byte))
}

#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    #[error("a client could not be read from the database")]
    Database(#[from] sqlx::Error),
    /// The server lacks the secret key of the row.
    #[error("clients.token of {client_id:?} cannot be decrypted: is TENURE_SECRET_KEY the key it was stored with?")]
    Token {
        client_id: String,
        #[source]
        source: Undecryptable,
    },
}

impl ClientError {
    /// True if this is a database outage that was logged already.
    pub fn is_known_outage(&self) -> bool {
        matches!(self, Self::Database(error) if outage::is_known(error))
    }

    pub fn is_worth_a_retry(&self) -> bool {
        match self {
            Self::Database(error) => classify(error).is_worth_a_retry(),
            Self::Token { .. } => false,
        }
    }
}

#[derive(Debug)]
pub struct ClientAccount {
    pub access_token: AccessToken,
    /// Before expansion.
    pub scopes: Vec<String>,
    pub disabled: bool,
    pub expires: Option<DateTime<Utc>>,
    /// True if `expires` had passed when the row was read.
    pub expired: bool,
    /// True if [`note_use`] is due.
    pub use_is_news: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ClientInfo {
    pub client_id: String,
    /// Before expansion.
    pub scopes: Vec<String>,
    pub description: String,
    /// None if it never expires.
    pub expires: Option<Timestamp>,
    /// True if it may be deleted at `expires`.
    pub delete_on_expiration: bool,
    pub disabled: bool,
    pub created: Timestamp,
    pub last_modified: Timestamp,
    pub last_rotated: Timestamp,
    /// Within hours; the creation time if never used.
    pub last_date_used: Timestamp,
}

struct ClientRow {
    client_id: String,
    scopes: Vec<String>,
    description: String,
    expires: Option<DateTime<Utc>>,
    delete_on_expiration: bool,
    disabled: bool,
    created: DateTime<Utc>,
    last_modified: DateTime<Utc>,
    last_rotated: Option<DateTime<Utc>>,
    last_used: Option<DateTime<Utc>>,
}

impl From<ClientRow> for ClientInfo {
    fn from(row: ClientRow) -> Self {
        Self {
            client_id: row.client_id,
            scopes: row.scopes,
            description: row.description,
            expires: row.expires.map(Timestamp::new),
            delete_on_expiration: row.delete_on_expiration,
            disabled: row.disabled,
            created: Timestamp::new(row.created),
            last_modified: Timestamp::new(row.last_modified),
            last_rotated: Timestamp::new(row.last_rotated.unwrap_or(row.created)),
            last_date_used: Timestamp::new(row.last_used.unwrap_or(row.created)),
        }
    }
}

#[derive(Debug, Clone)]
pub struct NewClient {
    pub client_id: String,
    /// Before expansion.
    pub scopes: Vec<String>,
    pub description: String,
    pub expires: Option<DateTime<Utc>>,
    pub delete_on_expiration: bool,
}

/// Changes; none keeps a value.
#[derive(Debug, Clone, Default)]
pub struct ClientChange {
    /// Before expansion.
    pub scopes: Option<Vec<String>>,
    pub description: Option<String>,
    /// Inner none: it never expires.
    pub expires: Option<Option<DateTime<Utc>>>,
    pub delete_on_expiration: Option<bool>,
}

/// Creates a client. False if the id exists; that client is unchanged.
pub async fn create(
    db: impl PgExecutor<'_>,
    keys: &SecretKeys,
    client: &NewClient,
    access_token: &AccessToken,
) -> Result<bool, sqlx::Error> {
    let NewClient { client_id, scopes, description, expires, delete_on_expiration } = client;
    let done = sqlx::query!(
        "-- create_client
        WITH db_now AS MATERIALIZED (SELECT now FROM db_now)
        INSERT INTO clients (client_id, token, scopes, description, expires, delete_on_expiration, created, last_modified)
        SELECT $1, $2, $3, $4, $5, $6, now, now FROM db_now
        ON CONFLICT (client_id) DO NOTHING",
        client_id,
        keys.encrypt_token(client_id, access_token),
        scopes,
        description,
        *expires,
        *delete_on_expiration,
    )
    .execute(db)
    .await?;
    Ok(done.rows_affected() == 1)
}

/// Returns a client for authentication.
///
/// # Errors If the database fails, or the token was encrypted with an unknown key.
pub async fn find_account(
    db: impl PgExecutor<'_>,
    keys: &SecretKeys,
    client_id: &str,
) -> Result<Option<ClientAccount>, ClientError> {
    let row = sqlx::query!(
        r#"-- find_client_account
        WITH db_now AS MATERIALIZED (SELECT now FROM db_now)
        SELECT token, scopes, disabled, expires, coalesce(expires < now, false) AS "expired!",
               last_used IS NULL OR last_used < now - make_interval(hours => $2) AS "use_is_news!"
        FROM clients, db_now
        WHERE client_id = $1"#,
        client_id,
        USE_NOTED_EVERY_HOURS,
    )
    .fetch_optional(db)
    .await?;
    let Some(row) = row else { return Ok(None) };
    let access_token = decrypt(keys, client_id, &row.token)?;
    let (scopes, disabled, expires, expired) = (row.scopes, row.disabled, row.expires, row.expired);
    Ok(Some(ClientAccount { access_token, scopes, disabled, expires, expired, use_is_news: row.use_is_news }))
}

fn decrypt(keys: &SecretKeys, client_id: &str, token: &[u8]) -> Result<AccessToken, ClientError> {
    keys.decrypt_token(client_id, token)
        .map_err(|source| ClientError::Token { client_id: client_id.to_owned(), source })
}

/// Returns the token of an identical client that was created recently: its creator may have missed
/// the response.
///
/// # Errors If the database fails, or the token was encrypted with an unknown key.
pub async fn find_recent_token(
    db: impl PgExecutor<'_>,
    keys: &SecretKeys,
    client: &NewClient,
) -> Result<Option<AccessToken>, ClientError> {
    let NewClient { client_id, scopes, description, expires, delete_on_expiration } = client;
    let token = sqlx::query_scalar!(
        "-- find_fresh_client
        WITH db_now AS MATERIALIZED (SELECT now FROM db_now)
        SELECT token
        FROM clients, db_now
        WHERE client_id = $1 AND scopes = $2 AND description = $3 AND expires IS NOT DISTINCT FROM $4
          AND delete_on_expiration = $5 AND NOT disabled AND last_rotated IS NULL
          AND created > now - make_interval(mins => $6)",
        client_id,
        scopes,
        description,
        *expires,
        *delete_on_expiration,
        REPEATABLE_MINUTES,
    )
    .fetch_optional(db)
    .await?;
    token.map(|token| decrypt(keys, client_id, &token)).transpose()
}

pub async fn list_tokens(
    db: impl PgExecutor<'_>,
    after: Option<&str>,
    limit: i64,
) -> Result<Vec<(String, Vec<u8>)>, sqlx::Error> {
    let rows = sqlx::query!(
        r#"-- list_client_tokens
        SELECT client_id, token
        FROM clients
        WHERE $1::text IS NULL OR client_id COLLATE "C" > $1
        ORDER BY client_id COLLATE "C"
        LIMIT $2"#,
        after,
        limit,
    )
    .fetch_all(db)
    .await?;
    Ok(rows.into_iter().map(|row| (row.client_id, row.token)).collect())
}

/// Records a use, unless one was recorded within some hours.
pub async fn note_use(db: impl PgExecutor<'_>, client_id: &str) -> Result<(), sqlx::Error> {
    sqlx::query!(
        "-- note_client_use
        WITH db_now AS MATERIALIZED (SELECT now FROM db_now)
        UPDATE clients SET last_used = now
        FROM db_now
        WHERE client_id = $1 AND (last_used IS NULL OR last_used < now - make_interval(hours => $2))",
        client_id,
        USE_NOTED_EVERY_HOURS,
    )
    .execute(db)
    .await?;
    Ok(())
}

pub async fn find(db: impl PgExecutor<'_>, client_id: &str) -> Result<Option<ClientInfo>, sqlx::Error> {
    let row = sqlx::query_as!(
        ClientRow,
        "-- find_client
        SELECT client_id, scopes, description, expires, delete_on_expiration, disabled, created, last_modified,
               last_rotated, last_used
        FROM clients
        WHERE client_id = $1",
        client_id,
    )
    .fetch_optional(db)
    .await?;
    Ok(row.map(ClientInfo::from))
}

/// Locks a client against changes and returns it.
pub async fn lock(transaction: &mut PgConnection, client_id: &str) -> Result<Option<ClientInfo>, sqlx::Error> {
    let row = sqlx::query_as!(
        ClientRow,
        "-- lock_client
        SELECT client_id, scopes, description, expires, delete_on_expiration, disabled, created, last_modified,
               last_rotated, last_used
        FROM clients
        WHERE client_id = $1
        FOR UPDATE",
        client_id,
    )
    .fetch_optional(transaction)
    .await?;
    Ok(row.map(ClientInfo::from))
}

/// Lists clients with this prefix, after `after`, up to `limit`.
pub async fn list(
    db: impl PgExecutor<'_>,
    prefix: &str,
    after: Option<&str>,
    limit: Option<i64>,
) -> Result<Vec<ClientInfo>, sqlx::Error> {
    let rows = sqlx::query_as!(
        ClientRow,
        r#"-- list_clients
        SELECT client_id, scopes, description, expires, delete_on_expiration, disabled, created, last_modified,
               last_rotated, last_used
        FROM clients
        WHERE starts_with(client_id, $1) AND ($2::text IS NULL OR client_id COLLATE "C" > $2)
        ORDER BY client_id COLLATE "C"
        LIMIT $3"#,
        prefix,
        after,
        limit,
    )
    .fetch_all(db)
    .await?;
    Ok(rows.into_iter().map(ClientInfo::from).collect())
}

/// Changes a client, if it exists and, given `seen`, still has those scopes.
pub async fn update(
    db: impl PgExecutor<'_>,
    client_id: &str,
    seen: Option<&[String]>,
    change: &ClientChange,
) -> Result<Option<ClientInfo>, sqlx::Error> {
    let row = sqlx::query_as!(
        ClientRow,
        "-- update_client
        WITH db_now AS MATERIALIZED (SELECT now FROM db_now)
        UPDATE clients
        SET scopes = coalesce($3 /* scopes */, scopes), description = coalesce($4 /* description */, description),
            expires = CASE WHEN $5 /* whether expires changes */ THEN $6 /* expires */ ELSE expires END,
            delete_on_expiration = coalesce($7 /* delete on expiration */, delete_on_expiration), last_modified = now
        FROM db_now
        WHERE client_id = $1 /* client */ AND ($2::text[] /* seen scopes */ IS NULL OR scopes = $2)
        RETURNING client_id, scopes, description, expires, delete_on_expiration, disabled, created, last_modified,
                  last_rotated, last_used",
        client_id,
        seen,
        change.scopes.as_deref(),
        change.description,
        change.expires.is_some(),
        change.expires.flatten(),
        change.delete_on_expiration,
    )
    .fetch_optional(db)
    .await?;
    Ok(row.map(ClientInfo::from))
}

/// Disables or enables a client. None if it does not exist.
pub async fn set_disabled(
    db: impl PgExecutor<'_>,
    client_id: &str,
    disabled: bool,
) -> Result<Option<ClientInfo>, sqlx::Error> {
    let row = sqlx::query_as!(
        ClientRow,
        "-- set_client_disabled
        WITH db_now AS MATERIALIZED (SELECT now FROM db_now)
        UPDATE clients
        SET disabled = $2, last_modified = CASE WHEN disabled = $2 THEN last_modified ELSE now END
        FROM db_now
        WHERE client_id = $1
        RETURNING client_id, scopes, description, expires, delete_on_expiration, disabled, created, last_modified,
                  last_rotated, last_used",
        client_id,
        disabled,
    )
    .fetch_optional(db)
    .await?;
    Ok(row.map(ClientInfo::from))
}

/// Replaces the token of a client. False if it does not exist. Servers accept the old token for up
/// to a second.
pub async fn reset_token(
    db: impl PgExecutor<'_>,
    keys: &SecretKeys,
    client_id: &str,
    access_token: &AccessToken,
) -> Result<bool, sqlx::Error> {
    let done = sqlx::query!(
        "-- reset_client_token
        WITH db_now AS MATERIALIZED (SELECT now FROM db_now)
        UPDATE clients SET token = $2, last_rotated = now, last_modified = now
        FROM db_now
        WHERE client_id = $1",
        client_id,
        keys.encrypt_token(client_id, access_token),
    )
    .execute(db)
    .await?;
    Ok(done.rows_affected() == 1)
}

/// Deletes a client. False if it does not exist. Servers accept it for up to a second.
pub async fn delete(db: impl PgExecutor<'_>, client_id: &str) -> Result<bool, sqlx::Error> {
    let done = sqlx::query!("DELETE FROM clients WHERE client_id = $1 -- delete_client", client_id).execute(db).await?;
    Ok(done.rows_affected() == 1)
}

#[cfg(test)]
mod tests;
