//! Authentication: who sends a request, and what they may do.
//!
//! Callers sign with Hawk (permanent, temporary and task credentials), or send `clientId:accessToken` by HTTP Basic,
//! or are nobody in particular. Nothing here knows an HTTP library: the caller hands over what the signature covers.
//! A replayed request is not noticed, as with every Taskcluster service; operations are repeatable instead.

mod cache;
mod request;
mod session;
mod task_credentials;

use std::sync::Arc;

use sqlx::PgPool;
use tenure_api::credentials::{AccessToken, CertificateError, SigningKey};
use tenure_api::hawk::{ExtError, HeaderError};

use crate::domain::scopes::{Expression, ScopeSet, expand};
use crate::secrets::SecretKeys;
use crate::store::clients::{self, ClientAccount, ClientError};

use cache::Cache;
use request::{Claim, Issuer};
pub use request::{Now, RequestParts, TIMESTAMP_SKEW_SECONDS};
use session::Tickets;
pub use session::{SESSION_LIFETIME, Session};
pub use task_credentials::{ClaimedRun, TaskCredentials};

/// Why a request is not from whom it says; each is a 401. The messages are fit for an API answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AuthFailure {
    /// Neither Hawk nor Basic.
    #[error("the Authorization header must be of the scheme Hawk, or Basic with clientId:accessToken")]
    Scheme,
    /// The Hawk header cannot be read.
    #[error(transparent)]
    Header(#[from] HeaderError),
    /// The attribute `ext` cannot be read.
    #[error(transparent)]
    Ext(#[from] ExtError),
    /// The certificate of temporary credentials is not valid.
    #[error(transparent)]
    Certificate(#[from] CertificateError),
    /// Nobody has this id.
    #[error("there is no client {0:?}")]
    UnknownClient(String),
    /// An operator has shut the client out.
    #[error("the client {0:?} is disabled")]
    Disabled(String),
    /// The client's time is over.
    #[error("the client {0:?} has expired")]
    Expired(String),
    /// Signed with another token, or something on the way changed the request.
    #[error(
        "the mac does not match: the access token is wrong, or method, path, query, host or port changed on the way \
         (this server saw {0})"
    )]
    Mac(String),
    /// Signed too long ago, or by a clock that is wrong.
    #[error(
        "stale timestamp: the request was signed {seconds} s from now, by the server's clock; {TIMESTAMP_SKEW_SECONDS} s are allowed"
    )]
    Stale {
        /// How far the clocks are apart.
        seconds: u64,
    },
    /// The body is not the one that was signed.
    #[error("the payload hash does not match the body and its content type")]
    PayloadHash,
    /// The issuer of a certificate lacks a scope that the certificate lends.
    #[error("the issuer {issuer:?} of the certificate lacks the scope {scope:?}")]
    IssuerScope {
        /// Who signed the certificate.
        issuer: String,
        /// What they cannot lend.
        scope: String,
    },
    /// `authorizedScopes` asks for more than the credentials have.
    #[error("ext.authorizedScopes has {0:?}, which the credentials do not")]
    AuthorizedScopes(String),
    /// The Basic header cannot be read.
    #[error("the Basic header must be base64 of clientId:accessToken")]
    BasicSyntax,
    /// The token in the Basic header is another than the client's.
    #[error("the access token is wrong")]
    BasicToken,
}

/// Why a caller could not be authenticated.
#[derive(Debug, Clone, thiserror::Error)]
pub enum AuthError {
    /// It is the caller's fault: 401.
    #[error(transparent)]
    Failure(#[from] AuthFailure),
    /// It is not: 503.
    #[error("clients cannot be looked up at the moment")]
    Lookup(#[source] Arc<ClientError>),
}

/// An operation needs scopes that the caller lacks: 403. The message is fit for an API answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{caller} lacks the scopes for this: missing {missing}; required {required}")]
pub struct InsufficientScopes {
    /// Who asked.
    pub caller: String,
    /// What they would still need.
    pub missing: Expression,
    /// What the operation requires.
    pub required: Expression,
}

/// Who sent a request.
#[derive(Debug, Clone)]
pub struct Principal {
    /// The id that was proven; none if the request was not signed.
    pub client_id: Option<String>,
    /// What the sender may do, expanded.
    pub scopes: Arc<ScopeSet>,
    /// When the credentials end, in milliseconds since 1970; none: never.
    pub expires_ms: Option<i64>,
}

impl Principal {
    /// Lets the sender do what requires these scopes, or says what is missing.
    ///
    /// # Errors
    /// If the expression does not hold.
    pub fn authorize(&self, required: &Expression) -> Result<(), InsufficientScopes> {
        let Some(missing) = self.scopes.missing(required) else { return Ok(()) };
        let caller = match &self.client_id {
            Some(id) => format!("the client {id:?}"),
            None => "a request without credentials".to_owned(),
        };
        Err(InsufficientScopes { caller, missing, required: required.clone() })
    }
}

/// A client that can prove itself, with everything about it worked out that does not depend on the request.
struct Account {
    token: AccessToken,
    key: SigningKey,
    scopes: Arc<ScopeSet>,
    expires_ms: Option<i64>,
    disabled: bool,
    expired: bool,
}

impl From<ClientAccount> for Account {
    fn from(client: ClientAccount) -> Self {
        Self {
            key: client.access_token.key(),
            token: client.access_token,
            scopes: Arc::new(expand(client.scopes)),
            expires_ms: client.expires.map(|time| time.timestamp_millis()),
            disabled: client.disabled,
            expired: client.expired,
        }
    }
}

/// Finds out who sends requests.
pub struct Authenticator {
    pool: PgPool,
    keys: Arc<SecretKeys>,
    accounts: Cache<Account, ClientError>,
    tasks: TaskCredentials,
    tickets: Tickets,
    anonymous: Principal,
}

impl Authenticator {
    /// Looks clients up in this database, and makes the credentials of tasks with these keys.
    #[must_use]
    pub fn new(pool: PgPool, keys: SecretKeys) -> Self {
        Self {
            pool,
            tasks: TaskCredentials::new(&keys),
            tickets: Tickets::new(&keys),
            keys: Arc::new(keys),
            accounts: Cache::new(),
            anonymous: Principal { client_id: None, scopes: Arc::new(expand([])), expires_ms: None },
        }
    }

    /// The issuer of credentials for claims, which this authenticator accepts.
    #[must_use]
    pub fn task_credentials(&self) -> &TaskCredentials {
        &self.tasks
    }

    /// Who sent this request.
    ///
    /// # Errors
    /// If the sender's credentials are not valid, or the database cannot be asked about them.
    pub async fn authenticate(&self, request: &RequestParts<'_>, now: Now) -> Result<Principal, AuthError> {
        let Some(authorization) = request.authorization else { return Ok(self.anonymous.clone()) };
        let claim = Claim::read(authorization)?;
        let account = match claim.issuer()? {
            Issuer::Tasks => return Ok(claim.check_task(&self.tasks, request, now)?),
            Issuer::Client(id) => self.account(id).await?,
        };
        Ok(claim.check(&account, request, now)?)
    }

    async fn account(&self, client_id: &str) -> Result<Arc<Account>, AuthError> {
        let read = |id: String| {
            let (pool, keys) = (self.pool.clone(), Arc::clone(&self.keys));
            async move { Ok(clients::find_account(&pool, &keys, &id).await?.map(Account::from)) }
        };
        let account = self.accounts.get(client_id, read).await.map_err(AuthError::Lookup)?;
        usable(client_id, account).map_err(AuthError::from)
    }
}

fn usable(client_id: &str, account: Option<Arc<Account>>) -> Result<Arc<Account>, AuthFailure> {
    match account {
        None => Err(AuthFailure::UnknownClient(client_id.to_owned())),
        Some(account) if account.disabled => Err(AuthFailure::Disabled(client_id.to_owned())),
        Some(account) if account.expired => Err(AuthFailure::Expired(client_id.to_owned())),
        Some(account) => Ok(account),
    }
}

#[cfg(test)]
mod tests;
