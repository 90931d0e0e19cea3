//! Authentication: the sender of a request and its scopes.
//!
//! Callers sign with Hawk (permanent, temporary or task credentials) in a header or in the URL
//! (bewit), send `clientId:accessToken` by HTTP Basic, or are anonymous. The module depends on no
//! HTTP library.
//! A client's scopes are expanded by roles when it is read. Scopes of temporary credentials are
//! expanded for each request, but only if they assume a role.
//!
//! Replayed requests are not detected, as in every Taskcluster service; operations are idempotent
//! instead.

mod cache;
mod decoy;
mod expansion;
mod own_issuer;
mod request;
mod session;
mod signed_as;
mod task_credentials;
mod tester;
mod worker_credentials;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use sqlx::PgPool;
use tenure_api::credentials::{AccessToken, CertificateError, SigningKey};
use tenure_api::hawk::bewit::BewitError;
use tenure_api::hawk::{ExtError, HeaderError};

use tenure_domain::registration::WorkerName;
use tenure_domain::roles::{GIVEN_MAX, Resolver, TooLarge};
use tenure_domain::scopes::{Expression, ScopeSet};
use tenure_engine::remembered::Facts;
use tenure_store::clients::{self, CLIENT_ID_MAX, ClientAccount, ClientError};
use tenure_store::secrets::SecretKeys;
use tenure_store::worker_manager;

use cache::{AGE_MAX, Cache};
use decoy::decoy;
use expansion::{Expanded, Expansion, Roles};
use request::{Claim, Issuer};
pub use request::{Clock, Now, RequestParts, SignedPayload, TIMESTAMP_SKEW_SECONDS, first_forwarded};
use session::Tickets;
pub use session::{SESSION_LIFETIME, Session};
pub use task_credentials::{ClaimedRun, TaskCredentials};
pub use tester::Tester;
use worker_credentials::WorkerAccount;
pub use worker_credentials::WorkerCredentials;

/// Timeout of a client lookup.
const LOOKUP_MAX: Duration = Duration::from_secs(10);

const BASIC_WRONG: &str = "the client id or the access token of the Basic header is wrong";

/// Each is a 401. The messages may be sent to the client.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AuthFailure {
    #[error("the Authorization header must be of the scheme Hawk, or Basic with clientId:accessToken")]
    Scheme,
    #[error(transparent)]
    Header(#[from] HeaderError),
    #[error(transparent)]
    Bewit(#[from] BewitError),
    #[error("a request is signed by its Authorization header or by the query parameter bewit, not by both")]
    HeaderAndBewit,
    #[error("the query parameter bewit is for GET and HEAD only; sign other requests with a header")]
    BewitMethod,
    #[error("the signed URL has expired: the expiry of its bewit is past")]
    BewitOver,
    #[error(transparent)]
    Ext(#[from] ExtError),
    #[error(transparent)]
    Certificate(#[from] CertificateError),
    #[error("there is no client {0:?}")]
    UnknownClient(String),
    #[error("the client {0:?} is disabled")]
    Disabled(String),
    #[error("the client {0:?} has expired")]
    Expired(String),
    #[error(
        "the mac does not match: the client id or the access token is wrong, or method, path, query, host or port \
         changed on the way (this server saw {0})"
    )]
    Mac(String),
    #[error(
        "stale timestamp: by the server's clock, the request was signed {seconds} s {clock}; {TIMESTAMP_SKEW_SECONDS} s are \
         allowed"
    )]
    Stale { seconds: u64, clock: Clock },
    #[error("the payload hash does not match the body and its content type")]
    PayloadHash,
    #[error("the issuer {issuer:?} of the certificate lacks the scope {scope:?}")]
    IssuerScope { issuer: String, scope: String },
    #[error("the id of temporary credentials must have at most {CLIENT_ID_MAX} characters, as that of a client")]
    LongName,
    #[error("ext.authorizedScopes has {0:?}, which the credentials do not")]
    AuthorizedScopes(String),
    #[error(transparent)]
    TooLarge(#[from] TooLarge),
    #[error("the Basic header must be base64 of clientId:accessToken")]
    BasicSyntax,
    /// Unknown, or the credentials are from before the worker's creation.
    #[error("the worker {0:?} is not registered; it must register again")]
    UnknownWorker(String),
    /// The message of a wrong token, so that it does not reveal which clients exist.
    #[error("{BASIC_WRONG}")]
    BasicClient,
    #[error("{BASIC_WRONG}")]
    BasicToken,
}

#[derive(Debug, Clone, thiserror::Error)]
pub enum AuthError {
    /// 401.
    #[error(transparent)]
    Failure(#[from] AuthFailure),
    /// 503.
    #[error("the database did not answer; send the request again")]
    Lookup(#[source] Arc<ClientError>),
}

impl AuthError {
    /// True for a database outage, which has already been logged.
    #[must_use]
    pub fn is_known_outage(&self) -> bool {
        matches!(self, Self::Lookup(error) if error.is_known_outage())
    }
}

/// 403. The message may be sent to the client.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{caller} lacks the scopes for this: missing {missing}{}", self.rest())]
pub struct InsufficientScopes {
    pub caller: String,
    pub missing: Expression,
    pub required: Expression,
}

impl InsufficientScopes {
    /// The required scopes, unless all are missing. A handler may require more scopes later, for
    /// example when it follows a link.
    fn rest(&self) -> String {
        if self.missing == self.required { String::new() } else { format!("; required {}", self.required) }
    }
}

#[derive(Debug, Clone)]
pub struct Principal {
    /// None if the request was not signed.
    pub client_id: Option<String>,
    pub scopes: Arc<ScopeSet>,
    /// Expiry of the credentials, in milliseconds since 1970; none: never.
    pub expires_ms: Option<i64>,
    /// True if a client or a task lent the credentials.
    pub is_temporary: bool,
    /// True if the request gives up scopes of its credentials, with `authorizedScopes`.
    pub is_narrowed: bool,
}

impl Principal {
    pub fn authorize(&self, required: &Expression) -> Result<(), InsufficientScopes> {
        let Some(missing) = self.scopes.missing(required) else { return Ok(()) };
        let caller = match &self.client_id {
            Some(id) => format!("the client {id:?}"),
            None => "a request without credentials".to_owned(),
        };
        Err(InsufficientScopes { caller, missing, required: required.clone() })
    }
}

/// A client, and every derived value that does not depend on the request.
struct Account {
    client_id: String,
    token: AccessToken,
    key: SigningKey,
    expansion: Arc<Expansion>,
    expires_ms: Option<i64>,
    disabled: bool,
    expired: bool,
    /// True if the next use must be recorded in the database.
    use_is_news: AtomicBool,
}

impl Account {
    fn new(client_id: &str, client: ClientAccount) -> Self {
        Self::read_again(client_id, client, None)
    }

    /// Reuses the expansion of the last reading.
    fn read_again(client_id: &str, client: ClientAccount, before: Option<&Self>) -> Self {
        Self {
            client_id: client_id.to_owned(),
            key: client.access_token.key(),
            token: client.access_token,
            expansion: Expansion::of(client.scopes, before.map(|before| &before.expansion)),
            expires_ms: client.expires.map(|time| time.timestamp_millis()),
            disabled: client.disabled,
            expired: client.expired,
            use_is_news: AtomicBool::new(client.use_is_news),
        }
    }

    /// Call it after the proof: only holders of the client's token, or of credentials made with it,
    /// may learn the reason.
    fn check_usable(&self) -> Result<(), AuthFailure> {
        if self.disabled {
            return Err(AuthFailure::Disabled(self.client_id.clone()));
        }
        if self.expired {
            return Err(AuthFailure::Expired(self.client_id.clone()));
        }
        Ok(())
    }

    fn scopes(&self, roles: Roles<'_>) -> Expanded {
        self.expansion.by(roles)
    }
}

/// Every client holds it implicitly, so that a role can be made for its id.
#[must_use]
pub fn role_of_client(client_id: &str) -> String {
    format!("assume:client-id:{client_id}")
}

pub struct Authenticator {
    pool: PgPool,
    keys: Arc<SecretKeys>,
    accounts: Cache<Account, ClientError>,
    decoy: Arc<Account>,
    /// Coalesces readings of the facts.
    looks: Cache<(), ClientError>,
    facts: Facts,
    tasks: TaskCredentials,
    workers: WorkerCredentials,
    registered: Cache<WorkerAccount, ClientError>,
    tickets: Tickets,
}

/// A worker's report rarely needs current roles.
const ROLES_TIMEOUT: Duration = Duration::from_millis(100);
const ALL_FACTS: &str = "facts";

pub struct Caches {
    accounts: Cache<Account, ClientError>,
    registered: Cache<WorkerAccount, ClientError>,
    looks: Cache<(), ClientError>,
}

impl Caches {
    pub fn drop_all(&self) {
        self.accounts.drop_all();
        self.registered.drop_all();
        self.looks.drop_all();
    }
}

impl Authenticator {
    #[must_use]
    pub fn new(pool: PgPool, facts: Facts, keys: SecretKeys) -> Self {
        Self {
            pool,
            tasks: TaskCredentials::new(&keys),
            workers: WorkerCredentials::new(&keys),
            registered: Cache::new(),
            tickets: Tickets::new(&keys),
            keys: Arc::new(keys),
            accounts: Cache::new(),
            decoy: Arc::new(decoy()),
            looks: Cache::new(),
            facts,
        }
    }

    #[must_use]
    pub fn caches(&self) -> Caches {
        let (accounts, registered, looks) = (self.accounts.clone(), self.registered.clone(), self.looks.clone());
        Caches { accounts, registered, looks }
    }

    #[must_use]
    pub fn task_credentials(&self) -> &TaskCredentials {
        &self.tasks
    }

    #[must_use]
    pub fn worker_credentials(&self) -> &WorkerCredentials {
        &self.workers
    }

    #[must_use]
    pub fn keys(&self) -> &SecretKeys {
        &self.keys
    }

    pub async fn authenticate(&self, request: &RequestParts<'_>, now: Now) -> Result<Principal, AuthError> {
        self.authenticate_within(request, now, GIVEN_MAX).await
    }

    /// Limits the scopes from roles to `given_max` bytes. Only a caller that has proven its
    /// identity learns that they give more.
    pub async fn authenticate_within(
        &self,
        request: &RequestParts<'_>,
        now: Now,
        given_max: usize,
    ) -> Result<Principal, AuthError> {
        let Some(claim) = Claim::read(request)? else { return self.anonymous().await };
        let client_id = match claim.issuer()? {
            Issuer::Tasks => {
                let roles = if claim.assumes_roles() { self.roles().await? } else { self.roles_soon().await? };
                return Ok(claim.check_task(&self.tasks, Roles::within(&roles, given_max), request, now)?);
            }
            Issuer::Workers => {
                // Checks without the database come first, so that nobody can make the server look
                // up invented names.
                claim.check_issued(&self.workers)?;
                let (worker, roles) = futures_util::future::join(self.worker(claim.id()), self.roles()).await;
                let (worker, roles) = (worker?, roles?);
                let given = Roles::within(&roles, given_max);
                return Ok(claim.check_worker(&self.workers, &worker, given, request, now)?);
            }
            Issuer::Client(id) => id.to_owned(),
        };
        let (account, roles) = futures_util::future::join(self.find_account(&client_id), self.roles()).await;
        // An unknown client is refused like a wrong token, after the same time.
        let account = account?.unwrap_or_else(|| Arc::clone(&self.decoy));
        let principal = claim.check(&account, Roles::within(&roles?, given_max), request, now)?;
        self.note_use(&account);
        Ok(principal)
    }

    pub async fn anonymous(&self) -> Result<Principal, AuthError> {
        Ok(anonymous(&*self.roles().await?))
    }

    /// Returns all roles, at most a second old.
    pub async fn roles(&self) -> Result<Arc<Resolver>, AuthError> {
        if let Some(roles) = self.facts.roles.find_confirmed(AGE_MAX) {
            return Ok(roles);
        }
        let look = |_, _| {
            let facts = self.facts.clone();
            async move { Ok(Some(facts.refresh().await.map(drop)?)) }
        };
        if let Err(error) = self.looks.get(ALL_FACTS, look).await {
            // Another fact than the roles may be unreadable.
            return self.facts.roles.find_confirmed(AGE_MAX).ok_or(AuthError::Lookup(error));
        }
        Ok(self.facts.roles.get())
    }

    /// Like [`Self::roles`], but prefers stale roles to waiting for the database. A worker that
    /// assumes no role gets only the scopes of anonymous callers from roles.
    async fn roles_soon(&self) -> Result<Arc<Resolver>, AuthError> {
        if let Ok(Ok(roles)) = tokio::time::timeout(ROLES_TIMEOUT, self.roles()).await {
            return Ok(roles);
        }
        match self.facts.roles.find() {
            Some(roles) => Ok(roles),
            None => self.roles().await,
        }
    }

    /// Returns the scopes of a client that is neither disabled nor expired, at most a second old.
    pub async fn scopes_of(&self, client_id: &str) -> Result<Arc<ScopeSet>, AuthError> {
        let (account, roles) = futures_util::future::join(self.account(client_id), self.roles()).await;
        let (account, roles) = (account?, roles?);
        Ok(account.scopes(Roles::whole(&roles)).map_err(AuthFailure::from)?)
    }

    /// Evicts a changed client: the next request reads it again.
    pub fn client_changed(&self, client_id: &str) {
        self.accounts.invalidate(client_id);
    }

    pub fn worker_changed(&self, client_id: &str) {
        self.registered.invalidate(client_id);
    }

    pub fn roles_changed(&self) {
        self.facts.expire_roles();
        self.looks.invalidate(ALL_FACTS);
    }

    async fn account(&self, client_id: &str) -> Result<Arc<Account>, AuthError> {
        let account = self.find_account(client_id).await?;
        let account = account.ok_or_else(|| AuthFailure::UnknownClient(client_id.to_owned()))?;
        account.check_usable()?;
        Ok(account)
    }

    async fn find_account(&self, client_id: &str) -> Result<Option<Arc<Account>>, AuthError> {
        let read = |id: String, before: Option<Arc<Account>>| {
            let (pool, keys) = (self.pool.clone(), Arc::clone(&self.keys));
            async move {
                let found = tokio::time::timeout(LOOKUP_MAX, clients::find_account(&pool, &keys, &id)).await;
                let found = found.unwrap_or(Err(ClientError::Database(sqlx::Error::PoolTimedOut)))?;
                let Some(mut client) = found else { return Ok(None) };
                client.scopes.push(role_of_client(&id));
                Ok(Some(Account::read_again(&id, client, before.as_deref())))
            }
        };
        // Such a client cannot exist, and cached invented ids must stay small.
        if !clients::valid_client_id(client_id) {
            return Ok(None);
        }
        self.accounts.get(client_id, read).await.map_err(AuthError::Lookup)
    }

    async fn worker(&self, client_id: &str) -> Result<Arc<WorkerAccount>, AuthError> {
        let Some(name) = WorkerName::of_client(client_id) else {
            return Err(AuthFailure::UnknownWorker(client_id.to_owned()).into());
        };
        let read = |_, _| {
            let pool = self.pool.clone();
            async move {
                let finding = tokio::time::timeout(LOOKUP_MAX, worker_manager::find_account(&pool, &name)).await;
                let found = finding.unwrap_or(Err(sqlx::Error::PoolTimedOut))?;
                Ok(found.map(|found| WorkerAccount { name, found }))
            }
        };
        let worker = self.registered.get(client_id, read).await.map_err(AuthError::Lookup)?;
        worker.ok_or_else(|| AuthFailure::UnknownWorker(client_id.to_owned()).into())
    }

    /// Records a use every few hours, without delaying the request.
    fn note_use(&self, account: &Account) {
        // Loaded before the swap: a write would take the cache line from other threads.
        if !account.use_is_news.load(Ordering::Relaxed) || !account.use_is_news.swap(false, Ordering::Relaxed) {
            return;
        }
        let (pool, id) = (self.pool.clone(), account.client_id.clone());
        tokio::spawn(async move {
            if let Err(error) = clients::note_use(&pool, &id).await {
                tracing::debug!(error = %error, "the time of a client's last use could not be stored");
            }
        });
    }
}

fn anonymous(roles: &Resolver) -> Principal {
    Principal {
        client_id: None,
        scopes: roles.of_every_caller(),
        expires_ms: None,
        is_temporary: false,
        is_narrowed: false,
    }
}

#[cfg(test)]
mod tests;
