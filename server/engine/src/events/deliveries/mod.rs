//! Deliveries: this server's share of sending events to the receivers of subscriptions.
//!
//! One server at a time sends the messages of a subscription. It leases the row of `subscriptions`
//! under a new term, and reads the log as a stream (`reader`). Before it sends a message, it
//! commits the message's end as `in_flight`, together with the acknowledgement of the message
//! before (`delivery`). No transaction is open while it sends (`webhook`, `amqp`).
//!
//! - *No event is skipped*: `position` moves only past events that were acknowledged or do not pass
//!   the filter. Each commit compares term and positions, so a server that was replaced, or that
//!   remembers commits which a failover has lost, changes nothing.
//! - *A repeat is the same message*: a server that takes over sends the events from `position` to
//!   `in_flight` again, rendered from what never changes. Their tasks stay until then.
//! - *Nothing is held back for ever*: the pass `subscription_ages` suspends a subscription whose
//!   oldest event is too old.

mod amqp;
mod delivery;
mod reader;
mod webhook;

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use sqlx::pool::PoolConnection;
use sqlx::{Connection as _, PgPool, Postgres};
use tenure_api::credentials::SigningKey;
use tenure_api::dates::Timestamp;
use tenure_api::states::SuspendedBy;
use tenure_api::subscriptions::TestDelivery;
use tenure_domain::delivery::address::DeliverTo;
use tenure_domain::delivery::message::{Message, WebhookSecret};
use tenure_domain::delivery::{Attempt, Definition, Meaning, Protocol};
use tenure_domain::scopes::Expression;
use tenure_store::secrets::{SubscriptionSecrets, Undecryptable, random};
use tenure_store::subscriptions::{SealedSecret, sending};
use tenure_store::{session, subscriptions};
use tokio::sync::{Notify, Semaphore, SemaphorePermit};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use uuid::Uuid;

use self::amqp::Publisher;
use self::delivery::Receiver;
use self::webhook::Sender;
use super::sequencer::Sequencer;
use super::tail::Tail;
use crate::authority::Authority;
use crate::clock::real_now;
use crate::failure::OpError;

/// Connections that all deliveries of this server use at the same time.
const CONNECTIONS_MAX: usize = 2;
/// Test messages at the same time: clients choose when and where to, and each look-up of a name may
/// hold a thread.
const TESTS_MAX: usize = 10;

#[derive(Debug, Clone)]
pub struct DeliverySettings {
    /// Addresses that webhooks may reach beyond public ones.
    pub deliver_to: DeliverTo,
    /// Maximum age of an event that is held back for a subscription.
    pub hold: Duration,
}

pub struct Parts {
    pub pool: PgPool,
    pub sequencer: Sequencer,
    pub tail: Tail,
    /// Id of this server.
    pub server: Uuid,
    pub authority: Arc<dyn Authority>,
    pub secrets: SubscriptionSecrets,
    pub settings: DeliverySettings,
    pub tasks: TaskTracker,
    /// Cancelled on drain: the answer to the current message is awaited for a few seconds.
    pub drain: CancellationToken,
}

/// Clones share the deliveries.
#[derive(Clone)]
pub struct Deliveries {
    shared: Arc<DeliveriesInner>,
}

struct DeliveriesInner {
    parts: Parts,
    sender: Sender,
    /// Names of the subscriptions that this server sends.
    running: Mutex<BTreeSet<String>>,
    connections: Semaphore,
    tests: Semaphore,
    /// The tasks that send.
    sending: TaskTracker,
    /// Notified by a change of a subscription at this server.
    changed: Notify,
}

impl DeliveriesInner {
    fn running(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a connection when few other deliveries have one. Keep both while it is needed.
    async fn connect(&self) -> Result<(PoolConnection<Postgres>, Option<SemaphorePermit<'_>>), sqlx::Error> {
        let turn = self.connections.acquire().await.ok();
        Ok((self.parts.pool.acquire().await?, turn))
    }

    /// None if the secret cannot be decrypted.
    fn receiver(&self, name: &str, protocol: &Protocol, sealed: &[Vec<u8>]) -> Option<Receiver> {
        match protocol {
            Protocol::Webhook => self.keys(name, sealed).ok().map(Receiver::Webhook),
            Protocol::Amqp { .. } => {
                let url = self.broker_url(name, sealed.first()?)?;
                Some(Receiver::Amqp(Box::new(Publisher::new(url, Arc::clone(self.sender.deliver_to())))))
            }
        }
    }

    fn broker_url(&self, name: &str, sealed: &[u8]) -> Option<String> {
        String::from_utf8(self.parts.secrets.open(name, sealed).ok()?).ok()
    }

    /// Signing keys of a subscription, the current one first. A previous one may be unreadable.
    fn keys(&self, name: &str, sealed: &[Vec<u8>]) -> Result<Vec<SigningKey>, Undecryptable> {
        let mut keys = Vec::with_capacity(sealed.len());
        for sealed in sealed {
            match self.parts.secrets.open(name, sealed) {
                Ok(secret) => keys.push(WebhookSecret::from_bytes(secret).key()),
                Err(error) if keys.is_empty() => return Err(error),
                Err(_) => {}
            }
        }
        Ok(keys)
    }
}

impl Deliveries {
    #[must_use]
    pub fn new(parts: Parts) -> Self {
        let sender = Sender::new(parts.settings.deliver_to.clone());
        let shared = DeliveriesInner {
            parts,
            sender,
            running: Mutex::default(),
            connections: Semaphore::new(CONNECTIONS_MAX),
            tests: Semaphore::new(TESTS_MAX),
            sending: TaskTracker::new(),
            changed: Notify::new(),
        };
        Self { shared: Arc::new(shared) }
    }

    #[must_use]
    pub fn hold(&self) -> Duration {
        self.shared.parts.settings.hold
    }

    /// Checks the URL of a receiver and stores its normal form. Returns the URL of a broker, which
    /// is a secret. The address of a name is checked when it is connected to.
    ///
    /// # Errors
    /// If it is no URL, or leads to an address that is not allowed.
    pub fn check_url(&self, definition: &mut Definition) -> Result<Option<String>, OpError> {
        let deliver_to = &self.shared.parts.settings.deliver_to;
        let refused = |why| OpError::Input(format!("`url` {why}"));
        match definition.protocol {
            Protocol::Webhook => {
                definition.url = webhook::check(&definition.url, deliver_to).map_err(refused)?.into();
                Ok(None)
            }
            Protocol::Amqp { .. } => {
                let broker = amqp::check(&definition.url, deliver_to).map_err(refused)?;
                definition.url = broker.shown;
                Ok(Some(broker.url))
            }
        }
    }

    #[must_use]
    pub fn seal(&self, name: &str, secret: &[u8]) -> Vec<u8> {
        self.shared.parts.secrets.seal(name, secret)
    }

    /// Encrypts a given secret, and compares it with the stored one.
    pub async fn seal_given(&self, name: &str, secret: &[u8]) -> Result<SealedSecret, sqlx::Error> {
        let Parts { pool, secrets, .. } = &self.shared.parts;
        let stored = subscriptions::find_secret(pool, name).await?;
        let is_known = |stored: Vec<u8>| secrets.open(name, &stored).is_ok_and(|stored| stored == secret);
        Ok(SealedSecret { bytes: self.seal(name, secret), is_new: !stored.is_some_and(is_known) })
    }

    /// Ends the waits of this server's deliveries, which then notice changes.
    pub fn notify_changed(&self) {
        self.shared.changed.notify_waiters();
    }

    /// Leases the subscriptions that no server sends, and starts to send them. Returns their number.
    pub async fn start_free(&self) -> Result<usize, sqlx::Error> {
        let inner = &self.shared;
        if inner.parts.drain.is_cancelled() {
            return Ok(0);
        }
        let running: Vec<String> = inner.running().iter().cloned().collect();
        let server = inner.parts.server;
        let leased = {
            let (mut conn, _turn) = inner.connect().await?;
            sending::lease(&mut conn, server, &running).await?
        };
        let count = leased.len();
        for leased in leased {
            inner.running().insert(leased.lease.name.clone());
            inner.parts.tasks.spawn(inner.sending.track_future(delivery::run(Arc::clone(inner), leased)));
        }
        Ok(count)
    }

    /// Waits until the deliveries have ended. The drain ends each.
    pub async fn ended(&self) {
        self.shared.sending.close();
        self.shared.sending.wait().await;
    }

    /// Sends a test message, also for a suspended subscription.
    ///
    /// # Errors
    /// If the subscription does not exist, its secret cannot be decrypted, or too many tests run.
    pub async fn test(&self, name: &str) -> Result<TestDelivery, OpError> {
        let inner = &self.shared;
        let _turn = inner.tests.try_acquire().map_err(|_| OpError::Overloaded("testSubscription"))?;
        let missing = || OpError::NotFound(format!("the subscription {name:?} does not exist"));
        let found = subscriptions::list(&inner.parts.pool, Some(name)).await?.pop().ok_or_else(missing)?;
        let sealed = subscriptions::find_secret(&inner.parts.pool, name).await?.ok_or_else(missing)?;
        let undecryptable = || OpError::Conflict(UNDECRYPTABLE.to_owned());
        let message = Message::test(name, Timestamp::new(real_now()), random());
        let started = Instant::now();
        let elapsed = || u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
        if found.definition.protocol != Protocol::Webhook {
            let url = inner.broker_url(name, &sealed).ok_or_else(undecryptable)?;
            let error = amqp::test(&url, &message, inner.sender.deliver_to()).await.err();
            let delivered = error.is_none();
            return Ok(TestDelivery { delivered, status: None, body: None, error, milliseconds: elapsed() });
        }
        let keys = inner.keys(name, &[sealed]).map_err(|_| undecryptable())?;
        let sent = inner.sender.send(&found.definition.url, &message, &keys).await;
        let milliseconds = elapsed();
        Ok(match sent {
            Ok(answer) => {
                let delivered = Attempt::Answered(answer.status, None).meaning() == Meaning::Accepted;
                TestDelivery {
                    delivered,
                    status: Some(answer.status),
                    error: (!delivered).then(|| answer.describe()),
                    body: Some(answer.body).filter(|body| !body.is_empty()),
                    milliseconds,
                }
            }
            Err(error) => TestDelivery { delivered: false, status: None, body: None, error: Some(error), milliseconds },
        })
    }
}

const UNDECRYPTABLE: &str = "the secret of the subscription cannot be decrypted with the secret keys of this server; \
                             store the subscription with a new `secret`, or with the URL of its broker";

/// Scopes that the owner of a subscription needs for each message.
fn required_scopes(with_results: bool) -> Expression {
    let of_results = with_results.then_some("tenure:get-result:*");
    Expression::all_of(std::iter::once("tenure:list-events").chain(of_results))
}

/// Suspends a subscription that is at this position. Returns false if it has changed meanwhile.
pub async fn suspend(pool: &PgPool, name: &str, position: i64, by: SuspendedBy) -> Result<bool, sqlx::Error> {
    let mut conn = pool.acquire().await?;
    let mut transaction = conn.begin().await?;
    session::idle_briefly(&mut transaction).await?;
    if !subscriptions::suspend(&mut transaction, name, position, by).await? {
        return Ok(false);
    }
    transaction.commit().await?;
    tracing::warn!(
        subscription.name = name,
        subscription.suspended_by = by.as_str(),
        "a subscription was suspended: its receiver gets no events until it is resumed"
    );
    Ok(true)
}
