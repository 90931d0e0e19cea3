//! Workers of the worker manager: creation and registration.

use chrono::{DateTime, Utc};
use serde_json::json;
use sqlx::{Connection, PgPool};
use tenure_api::dates::Timestamp;
use tenure_api::worker_manager::{STATIC, WorkerSecret};

use super::OpError;
use super::actor::{Actor, Recorded};
use tenure_domain::audit::{Action, Entry};
use tenure_domain::registration::{Shown, Standing, WorkerName, credentials_end, credentials_start, may_exchange};
use tenure_store::clock;
use tenure_store::secrets::{WorkerDigests, random};
use tenure_store::worker_manager::{self, NewWorker, Registered, WorkerChange};

#[derive(Debug)]
pub struct Create {
    /// Secret to register with.
    pub secret: WorkerSecret,
    pub capacity: u16,
    /// JSON text.
    pub config: String,
    /// Deadline for registering.
    pub expires: DateTime<Utc>,
}

/// A change of a worker. Fields that are `None` stay.
#[derive(Debug)]
pub struct Change {
    /// Secret to register with.
    pub secret: Option<WorkerSecret>,
    pub capacity: u16,
    /// JSON text.
    pub config: Option<String>,
    /// Deadline for registering.
    pub expires: DateTime<Utc>,
}

#[derive(Debug)]
pub struct LetIn {
    /// JSON text.
    pub config: String,
    /// Secret for the next registration.
    pub secret: WorkerSecret,
    /// Start of the credentials.
    pub from: DateTime<Utc>,
    /// End of the credentials.
    pub until: DateTime<Utc>,
}

/// Creates a worker. A repeat with the same secret returns the existing worker.
pub async fn create(
    pool: &PgPool,
    digests: &WorkerDigests,
    actor: &Actor,
    name: &WorkerName,
    create: &Create,
) -> Result<Registered, OpError> {
    let worker = name.to_string();
    let mut conn = pool.acquire().await?;
    if create.expires <= clock::get_now(&mut conn).await? {
        return Err(OpError::Input("`expires` must be in the future".to_owned()));
    }
    let new = NewWorker {
        static_secret: digests.digest(&worker, &create.secret),
        capacity: create.capacity.into(),
        config: create.config.clone(),
        expires: create.expires,
    };
    let mut transaction = conn.begin().await?;
    let created = worker_manager::create(&mut *transaction, name, &new).await?;
    let mut recorded = None;
    if created {
        let detail = json!({"capacity": create.capacity, "expires": Timestamp::new(create.expires)});
        recorded = Some(actor.record(&mut transaction, Entry::new(Action::CreateWorker, name, detail)).await?);
    }
    transaction.commit().await?;
    recorded.into_iter().for_each(Recorded::log);
    let Some(found) = worker_manager::find(&mut *conn, name).await? else { return Err(OpError::Unavailable) };
    match found.standing() {
        _ if !created && !digests.matches(&worker, &create.secret, &found.static_secret) => {
            Err(OpError::Conflict(format!(
                "worker {name} already exists with another secret; update it, or choose another id for the new worker"
            )))
        }
        Standing::Removed => Err(OpError::Conflict(format!(
            "worker {name} was removed, and its id stays taken until it expires; use another id"
        ))),
        // Registration would fail with any `expires` in this request.
        Standing::Expired => Err(OpError::Conflict(format!(
            "worker {name} has expired; update it with a later `expires`, or use another id"
        ))),
        Standing::Running => Ok(found),
    }
}

/// Changes a worker that was not removed.
pub async fn update(
    pool: &PgPool,
    digests: &WorkerDigests,
    actor: &Actor,
    name: &WorkerName,
    change: Change,
) -> Result<Registered, OpError> {
    let mut conn = pool.acquire().await?;
    let mut transaction = conn.begin().await?;
    worker_manager::lock(&mut transaction, name).await?;
    let found = worker_manager::find(&mut *transaction, name).await?.ok_or_else(|| missing(name))?;
    if found.removed.is_some() {
        return Err(OpError::Conflict(format!("worker {name} was removed and can no longer be changed")));
    }
    let worker = name.to_string();
    let is_another =
        change.secret.as_ref().is_some_and(|secret| !digests.matches(&worker, secret, &found.static_secret));
    let change = WorkerChange {
        static_secret: change.secret.map(|secret| digests.digest(&worker, &secret)),
        is_another,
        capacity: change.capacity.into(),
        config: change.config,
        expires: change.expires,
    };
    worker_manager::update(&mut transaction, name, &change).await?;
    let changed = worker_manager::find(&mut *transaction, name).await?.ok_or_else(|| missing(name))?;
    let is_same = !is_another
        && (found.capacity, &found.config, found.expires) == (changed.capacity, &changed.config, changed.expires);
    let mut recorded = None;
    if !is_same {
        let expires = Timestamp::new(changed.expires);
        let detail = json!({"capacity": changed.capacity, "expires": expires, "newSecret": is_another});
        recorded = Some(actor.record(&mut transaction, Entry::new(Action::UpdateWorker, name, detail)).await?);
    }
    transaction.commit().await?;
    recorded.into_iter().for_each(Recorded::log);
    Ok(changed)
}

/// Registers a worker by its original secret. May be repeated, as by a restarted machine.
pub async fn register(
    pool: &PgPool,
    digests: &WorkerDigests,
    name: &WorkerName,
    provider: &str,
    secret: &WorkerSecret,
) -> Result<LetIn, OpError> {
    if provider != STATIC {
        return Err(OpError::NotFound(format!("the provider does not exist; `providerId` must be \"{STATIC}\"")));
    }
    let worker = name.to_string();
    let check = |found: &Registered| {
        if digests.matches(&worker, secret, &found.static_secret) {
            Ok(None)
        } else {
            Err(OpError::Input(format!("the secret is not the one that worker {name} was created with")))
        }
    };
    let_in(pool, digests, name, || missing(name), check).await
}

/// Registers a worker again by the secret of its last response, or of the one before if the last
/// was lost.
pub async fn reregister(
    pool: &PgPool,
    digests: &WorkerDigests,
    name: &WorkerName,
    secret: &WorkerSecret,
) -> Result<LetIn, OpError> {
    let worker = name.to_string();
    // One message for every error, as in Taskcluster: a client without a secret learns nothing.
    let invalid = || OpError::Input(format!("the secret is not the latest one of worker {name}; register it anew"));
    let check = |found: &Registered| {
        let is =
            |digest: &Option<String>| digest.as_deref().is_some_and(|digest| digests.matches(&worker, secret, digest));
        let shown = match (is(&found.next_secret), is(&found.used_secret)) {
            (true, _) => Shown::Next,
            (false, true) => Shown::Used(found.used),
            (false, false) => Shown::Neither,
        };
        if !may_exchange(shown, found.now) {
            return Err(invalid());
        }
        // A repeat must not extend the time for repeats.
        let at = match shown {
            Shown::Used(Some(at)) => at,
            Shown::Next | Shown::Used(None) | Shown::Neither => found.now,
        };
        Ok(Some((digests.digest(&worker, secret), at)))
    };
    let_in(pool, digests, name, invalid, check).await
}

/// Checks and locks a worker, and issues credentials and a new secret. `check` returns the secret
/// used up.
async fn let_in(
    pool: &PgPool,
    digests: &WorkerDigests,
    name: &WorkerName,
    unknown: impl Fn() -> OpError,
    check: impl Fn(&Registered) -> Result<Option<(String, DateTime<Utc>)>, OpError>,
) -> Result<LetIn, OpError> {
    let mut conn = pool.acquire().await?;
    // Anyone may ask: without a secret a caller takes and waits for no lock.
    check(&worker_manager::find(&mut *conn, name).await?.ok_or_else(&unknown)?)?;
    let mut transaction = conn.begin().await?;
    worker_manager::lock(&mut transaction, name).await?;
    let found = worker_manager::find(&mut *transaction, name).await?.ok_or_else(unknown)?;
    let used = check(&found)?;
    match found.standing() {
        Standing::Running => {}
        Standing::Removed => return Err(OpError::Input(format!("the worker {name} was removed"))),
        Standing::Expired => return Err(OpError::Input(format!("the worker {name} has expired"))),
    }
    let (from, until) = (credentials_start(found.now, found.created), credentials_end(found.now, found.expires));
    let secret = WorkerSecret::from_random(random());
    let next = digests.digest(&name.to_string(), &secret);
    let used = used.as_ref().map(|(digest, at)| (digest.as_str(), *at));
    worker_manager::note_credentials(&mut transaction, name, &next, used, until).await?;
    transaction.commit().await?;
    Ok(LetIn { config: found.config, secret, from, until })
}

#[must_use]
pub fn missing(name: &WorkerName) -> OpError {
    OpError::NotFound(format!("worker {name} does not exist; create it with createWorker"))
}
