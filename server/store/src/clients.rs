//! The table `clients`. Access tokens are encrypted on their way in and decrypted on their way out, nowhere else.

use chrono::{DateTime, Utc};
use serde::Serialize;
use sqlx::PgExecutor;
use tenure_api::credentials::AccessToken;
use tenure_api::dates::Timestamp;

use crate::failure::classify;
use crate::outage;
use crate::secrets::{SecretKeys, Undecryptable};

/// The most characters that a client id may have.
pub const CLIENT_ID_MAX: usize = 255;

/// How often a client's use is noted at most.
const USE_NOTED_EVERY_HOURS: i32 = 6;
/// How long after a client was made its creation may be repeated and gives the same token.
const REPEATABLE_MINUTES: i32 = 15;

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
        client_id: String,
        /// Why not.
        #[source]
        source: Undecryptable,
    },
}

impl ClientError {
    /// Whether there is an outage of the database, which the log has already.
    pub fn is_known_outage(&self) -> bool {
        matches!(self, Self::Database(error) if outage::is_known(error))
    }

    /// Whether the same question may be answered later.
    pub fn is_worth_a_retry(&self) -> bool {
        match self {
            Self::Database(error) => classify(error).is_worth_a_retry(),
            Self::Token { .. } => false,
        }
    }
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
    /// Whether it is hours since a use was noted, see [`note_use`].
    pub use_is_news: bool,
}

/// A client as it is shown, without its secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ClientInfo {
    /// What the client calls itself.
    pub client_id: String,
    /// What it may do, before expansion.
    pub scopes: Vec<String>,
    pub description: String,
    /// From when on it is refused; none: never.
    pub expires: Option<Timestamp>,
    /// Whether it may be deleted then.
    pub delete_on_expiration: bool,
    /// Whether it is refused for now.
    pub disabled: bool,
    pub created: Timestamp,
    /// When anything about it was last changed.
    pub last_modified: Timestamp,
    /// When its token was created.
    pub last_rotated: Timestamp,
    /// When it was last used, to within hours; when it was created, if it was never used.
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

/// A client to create.
#[derive(Debug, Clone)]
pub struct NewClient {
    /// What the client will call itself.
    pub client_id: String,
    /// What it may do, before expansion.
    pub scopes: Vec<String>,
    pub description: String,
    /// From when on it is refused; none: never.
    pub expires: Option<DateTime<Utc>>,
    /// Whether it may be deleted then.
    pub delete_on_expiration: bool,
}

/// What a client is to become; what is none stays.
#[derive(Debug, Clone, Default)]
pub struct ClientChange {
    /// What it may do, before expansion.
    pub scopes: Option<Vec<String>>,
    pub description: Option<String>,
    /// From when on it is refused; inner none: never.
    pub expires: Option<Option<DateTime<Utc>>>,
    /// Whether it may be deleted then.
    pub delete_on_expiration: Option<bool>,
}

/// Makes a client; false if one of that id exists, which then is unchanged.
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

/// The token of a client that was made this recently and is unchanged: its creator may not have received the response.
///
/// # Errors
/// If the database refuses, or the secret key is not the one that the token was stored with.
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

/// Clients by id after this one, each with its encrypted token.
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

/// Notes that a client was used, unless that was noted some hours ago.
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

/// A client, if it exists.
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

/// Clients by id whose ids begin like this, after this one; so many of them, or all.
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

/// Changes a client, if it exists and, where that matters, still has the scopes that the caller saw.
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

/// Refuses a client from now on, or no longer; none if there is no such client.
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

/// Gives a client a new token; false if there is no such client. Servers accept the old one for up to a second more.
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

/// Removes a client; false if there is none. Servers accept it for up to a second more.
pub async fn delete(db: impl PgExecutor<'_>, client_id: &str) -> Result<bool, sqlx::Error> {
    let done = sqlx::query!("DELETE FROM clients WHERE client_id = $1 -- delete_client", client_id).execute(db).await?;
    Ok(done.rows_affected() == 1)
}

#[cfg(test)]
mod tests;
