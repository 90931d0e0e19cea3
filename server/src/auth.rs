//! Authentication: who sends a request, and what they may do.
//!
//! Callers sign with Hawk (permanent, temporary and task credentials) in a header or in the URL (bewit), or send
//! `clientId:accessToken` by HTTP Basic, or are anonymous. Nothing here depends on an HTTP library: the caller passes
//! in what the signature covers. The scopes of a client are expanded from roles when it is read, and not for each
//! request; those of temporary credentials are expanded for each request, but only if they assume a role.
//!
//! A replayed request is not detected, as with every Taskcluster service; operations are idempotent instead.

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

/// How long looking a client up may take before its request is refused as unavailable.
const LOOKUP_MAX: Duration = Duration::from_secs(10);

/// The message for a client id and an access token that do not match, whichever of them is wrong.
const BASIC_WRONG: &str = "the client id or the access token of the Basic header is wrong";

/// Why the identity that a request claims is not accepted; each is a 401. The messages may be sent to the client.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AuthFailure {
    /// Neither Hawk nor Basic.
    #[error("the Authorization header must be of the scheme Hawk, or Basic with clientId:accessToken")]
    Scheme,
    /// The Hawk header cannot be read.
    #[error(transparent)]
    Header(#[from] HeaderError),
    /// The signature in the URL cannot be read.
    #[error(transparent)]
    Bewit(#[from] BewitError),
    /// Signed twice.
    #[error("a request is signed by its Authorization header or by the query parameter bewit, not by both")]
    HeaderAndBewit,
    /// A signed URL is for reading.
    #[error("the query parameter bewit is for GET and HEAD only; sign other requests with a header")]
    BewitMethod,
    /// The URL was good once.
    #[error("the signed URL has expired: its bewit has come to its end")]
    BewitOver,
    /// The attribute `ext` cannot be read.
    #[error(transparent)]
    Ext(#[from] ExtError),
    /// The certificate of temporary credentials is not valid.
    #[error(transparent)]
    Certificate(#[from] CertificateError),
    /// There is no client with this id.
    #[error("there is no client {0:?}")]
    UnknownClient(String),
    /// An operator has shut the client out.
    #[error("the client {0:?} is disabled")]
    Disabled(String),
    /// The client's time is over.
    #[error("the client {0:?} has expired")]
    Expired(String),
    /// Signed with another token or for a client that does not exist, or something on the way changed the request.
    #[error(
        "the mac does not match: the client id or the access token is wrong, or method, path, query, host or port \
         changed on the way (this server saw {0})"
    )]
    Mac(String),
    /// Signed too long ago, or by a clock that is wrong.
    #[error(
        "stale timestamp: by the server's clock, the request was signed {seconds} s {clock}; {TIMESTAMP_SKEW_SECONDS} s are \
         allowed"
    )]
    Stale {
        /// How far the clocks are apart.
        seconds: u64,
        /// Which way.
        clock: Clock,
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
    /// Temporary credentials have an id of their own, which no client could have for its length.
    #[error("the id of temporary credentials must have at most {CLIENT_ID_MAX} characters, as that of a client")]
    LongName,
    /// `authorizedScopes` has more than the credentials have.
    #[error("ext.authorizedScopes has {0:?}, which the credentials do not")]
    AuthorizedScopes(String),
    /// The roles that the credentials assume are too large.
    #[error(transparent)]
    TooLarge(#[from] TooLarge),
    /// The Basic header cannot be read.
    #[error("the Basic header must be base64 of clientId:accessToken")]
    BasicSyntax,
    /// A worker's credentials are from before it was created, or there is no such worker.
    #[error("the worker {0:?} is not registered; it must register again")]
    UnknownWorker(String),
    /// There is no client of the id in the Basic header. The answer is that of a wrong token, so that it does not
    /// reveal which clients exist.
    #[error("{BASIC_WRONG}")]
    BasicClient,
    /// The token in the Basic header is another than the client's.
    #[error("{BASIC_WRONG}")]
    BasicToken,
}

/// Why a caller could not be authenticated.
#[derive(Debug, Clone, thiserror::Error)]
pub enum AuthError {
    /// It is the caller's fault: 401.
    #[error(transparent)]
    Failure(#[from] AuthFailure),
    /// It is not: 503.
    #[error("clients cannot be looked up now")]
    Lookup(#[source] Arc<ClientError>),
}

impl AuthError {
    /// Whether there is an outage of the database, which the log has already.
    #[must_use]
    pub fn is_known_outage(&self) -> bool {
        matches!(self, Self::Lookup(error) if error.is_known_outage())
    }
}

/// An operation needs scopes that the caller lacks: 403. The message is fit for an API answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{caller} lacks the scopes for this: missing {missing}{}", self.rest())]
pub struct InsufficientScopes {
    /// The id of the client that sent the request.
    pub caller: String,
    /// What they would still need.
    pub missing: Expression,
    /// What the operation requires.
    pub required: Expression,
}

impl InsufficientScopes {
    /// The required scopes, unless all of them are missing. A handler may require more scopes later, for example when it
    /// follows a link.
    fn rest(&self) -> String {
        if self.missing == self.required { String::new() } else { format!("; required {}", self.required) }
    }
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
    /// Checks that the principal has these scopes.
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
    client_id: String,
    token: AccessToken,
    key: SigningKey,
    expansion: Arc<Expansion>,
    expires_ms: Option<i64>,
    disabled: bool,
    expired: bool,
    /// Whether the next use is worth a note.
    use_is_news: AtomicBool,
}

impl Account {
    fn new(client_id: &str, client: ClientAccount) -> Self {
        Self::read_again(client_id, client, None)
    }

    /// The account of a client that was read before, if it was.
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

    /// Whether the client may come in. Only a caller that has proven that it has the client's token, or credentials
    /// that were made with it, may be told.
    fn check_usable(&self) -> Result<(), AuthFailure> {
        if self.disabled {
            return Err(AuthFailure::Disabled(self.client_id.clone()));
        }
        if self.expired {
            return Err(AuthFailure::Expired(self.client_id.clone()));
        }
        Ok(())
    }

    /// What the client may do by these roles.
    fn scopes(&self, roles: Roles<'_>) -> Expanded {
        self.expansion.by(roles)
    }
}

/// The scope that every client holds besides its own: a role can be made for it by name.
#[must_use]
pub fn role_of_client(client_id: &str) -> String {
    format!("assume:client-id:{client_id}")
}

/// Authenticates requests.
pub struct Authenticator {
    pool: PgPool,
    keys: Arc<SecretKeys>,
    accounts: Cache<Account, ClientError>,
    decoy: Arc<Account>,
    /// A reading of the facts that requests wait for, when there was none lately.
    looks: Cache<(), ClientError>,
    facts: Facts,
    tasks: TaskCredentials,
    workers: WorkerCredentials,
    registered: Cache<WorkerAccount, ClientError>,
    tickets: Tickets,
}

/// How long the report of a worker waits for roles that it hardly needs.
const ROLES_TIMEOUT: Duration = Duration::from_millis(100);
/// There is one entry for all facts.
const ALL_FACTS: &str = "facts";

/// What an [`Authenticator`] remembers, which may be dropped.
pub struct Caches {
    accounts: Cache<Account, ClientError>,
    registered: Cache<WorkerAccount, ClientError>,
    looks: Cache<(), ClientError>,
}

impl Caches {
    /// Drops it.
    pub fn drop_all(&self) {
        self.accounts.drop_all();
        self.registered.drop_all();
        self.looks.drop_all();
    }
}

impl Authenticator {
    /// Looks clients up in this database, and makes the credentials of tasks with these keys.
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

    /// What it remembers, which may be dropped.
    #[must_use]
    pub fn caches(&self) -> Caches {
        let (accounts, registered, looks) = (self.accounts.clone(), self.registered.clone(), self.looks.clone());
        Caches { accounts, registered, looks }
    }

    /// The issuer of credentials for claims, which this authenticator accepts.
    #[must_use]
    pub fn task_credentials(&self) -> &TaskCredentials {
        &self.tasks
    }

    /// The issuer of credentials for workers that register, which this authenticator accepts.
    #[must_use]
    pub fn worker_credentials(&self) -> &WorkerCredentials {
        &self.workers
    }

    /// The keys that access tokens are stored with.
    #[must_use]
    pub fn keys(&self) -> &SecretKeys {
        &self.keys
    }

    /// Who sent this request, whatever roles give to them.
    ///
    /// # Errors
    /// If the sender's credentials are not valid, or the database does not answer.
    pub async fn authenticate(&self, request: &RequestParts<'_>, now: Now) -> Result<Principal, AuthError> {
        self.authenticate_within(request, now, GIVEN_MAX).await
    }

    /// Who sent this request, if roles give no more than so many bytes to them. Only a caller that has proven who it is learns that
    /// they give more.
    ///
    /// # Errors
    /// If the sender's credentials are not valid, roles give more, or the database does not answer.
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
                // First what needs no database, so that no caller can make the server look up invented names.
                claim.check_issued(&self.workers)?;
                let (worker, roles) = futures_util::future::join(self.worker(claim.id()), self.roles()).await;
                let (worker, roles) = (worker?, roles?);
                let given = Roles::within(&roles, given_max);
                return Ok(claim.check_worker(&self.workers, &worker, given, request, now)?);
            }
            Issuer::Client(id) => id.to_owned(),
        };
        let (account, roles) = futures_util::future::join(self.find_account(&client_id), self.roles()).await;
        // An unknown client gets the answer of a wrong token, as slowly.
        let account = account?.unwrap_or_else(|| Arc::clone(&self.decoy));
        // That a client is disabled is found in here, behind its proof.
        let principal = claim.check(&account, Roles::within(&roles?, given_max), request, now)?;
        self.note_use(&account);
        Ok(principal)
    }

    /// The sender of a request without credentials.
    ///
    /// # Errors
    /// If the database does not answer.
    pub async fn anonymous(&self) -> Result<Principal, AuthError> {
        Ok(anonymous(&*self.roles().await?))
    }

    /// All roles as they were at most a second ago.
    ///
    /// # Errors
    /// If the database does not answer.
    pub async fn roles(&self) -> Result<Arc<Resolver>, AuthError> {
        if let Some(roles) = self.facts.roles.find_confirmed(AGE_MAX) {
            return Ok(roles);
        }
        let look = |_, _| {
            let facts = self.facts.clone();
            async move { Ok(Some(facts.look().await.map(drop)?)) }
        };
        if let Err(error) = self.looks.get(ALL_FACTS, look).await {
            // Some other fact may be the one that cannot be read.
            return self.facts.roles.find_confirmed(AGE_MAX).ok_or(AuthError::Lookup(error));
        }
        Ok(self.facts.roles.get())
    }

    /// The same, but rather those of earlier than wait for a database that does not answer: a worker whose credentials
    /// assume nothing gets nothing from them but what anonymous callers may do.
    async fn roles_soon(&self) -> Result<Arc<Resolver>, AuthError> {
        if let Ok(Ok(roles)) = tokio::time::timeout(ROLES_TIMEOUT, self.roles()).await {
            return Ok(roles);
        }
        match self.facts.roles.find() {
            Some(roles) => Ok(roles),
            None => self.roles().await,
        }
    }

    /// What was remembered of this client is no longer true: the next request reads it again.
    pub fn client_changed(&self, client_id: &str) {
        self.accounts.invalidate(client_id);
    }

    /// What was remembered of the worker that has this client id is no longer true.
    pub fn worker_changed(&self, client_id: &str) {
        self.registered.invalidate(client_id);
    }

    /// What was remembered of the roles is no longer true.
    pub fn roles_changed(&self) {
        self.facts.expire_roles();
        self.looks.invalidate(ALL_FACTS);
    }

    /// The account of a client that may come in.
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
        // No client has such an id, and what is remembered of ids that were invented is to be small.
        if !clients::valid_client_id(client_id) {
            return Ok(None);
        }
        self.accounts.get(client_id, read).await.map_err(AuthError::Lookup)
    }

    async fn worker(&self, client_id: &str) -> Result<Arc<WorkerAccount>, AuthError> {
        // Only what may be the name of a worker is looked up, and remembered.
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

    /// Once in some hours, and without keeping the request waiting.
    fn note_use(&self, account: &Account) {
        // Read first: nearly always there is no news, and a write would take the cache line from the other threads.
        if !account.use_is_news.load(Ordering::Relaxed) || !account.use_is_news.swap(false, Ordering::Relaxed) {
            return;
        }
        let (pool, id) = (self.pool.clone(), account.client_id.clone());
        tokio::spawn(async move {
            if let Err(error) = clients::note_use(&pool, &id).await {
                tracing::debug!(error = %error, "when a client was last used could not be noted");
            }
        });
    }
}

fn anonymous(roles: &Resolver) -> Principal {
    Principal { client_id: None, scopes: roles.of_every_caller(), expires_ms: None }
}

#[cfg(test)]
mod tests;
