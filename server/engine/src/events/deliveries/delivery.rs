//! The task that sends the messages of one subscription.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use tenure_api::credentials::SigningKey;
use tenure_api::states::SuspendedBy;
use tenure_domain::delivery::message::{Item, Message};
use tenure_domain::delivery::publication::Publication;
use tenure_domain::delivery::{Attempt, Definition, Meaning, Protocol, backoff};
use tenure_domain::event_filter::Filter;
#[cfg(feature = "test-util")]
use tenure_store::breakage::{self, Breakage};
use tenure_store::outage;
use tenure_store::secrets::random;
use tenure_store::subscriptions::Lease;
use tenure_store::subscriptions::sending::{self, Leased, Recorded};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::amqp::Publisher;
use super::reader::{Filled, Reader, Results, item, load_results, published};
use super::{DeliveriesInner, UNDECRYPTABLE, required_scopes, suspend};
use crate::authority::{Denied, Needed};
use crate::events::Start;
use crate::events::render::RenderedEvent;
use crate::events::stream::Stream;

/// Extends the lease while there is nothing else to commit.
const RENEW_EVERY: Duration = Duration::from_secs(10);
/// How often `position` moves past events that do not pass the filter.
const SKIP_EVERY: Duration = Duration::from_secs(5);
/// How long events of a message are read without extending the lease.
const FILL_MAX: Duration = Duration::from_secs(5);
/// How long a drain waits for the answer to a message.
const DRAIN_ANSWER: Duration = Duration::from_secs(5);

/// Why the task ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// Another server took over, the subscription was changed, or the log may have been rolled back.
    Lost,
    Drained,
    Suspended(SuspendedBy),
}

/// Events of a message with their results.
type Composed = (Vec<Arc<RenderedEvent>>, Results);

pub(super) enum Receiver {
    /// With the signing keys.
    Webhook(Vec<SigningKey>),
    Amqp(Box<Publisher>),
}

/// Events as their receiver takes them.
enum Outgoing {
    Webhook(Message),
    Amqp(Vec<Publication>),
}

struct Delivery {
    inner: Arc<DeliveriesInner>,
    lease: Lease,
    definition: Definition,
    filter: Filter,
    client_id: String,
    /// None if its secret cannot be decrypted.
    receiver: Option<Receiver>,
    /// From then on only the first key signs.
    previous_until: Instant,
    failures: u32,
    /// Set once everything up to `in_flight` is done, until this is committed.
    done: Option<Recorded>,
    /// Last commit, which extended the lease.
    committed: Instant,
}

/// Marks a subscription as sent by this server.
struct Running {
    inner: Arc<DeliveriesInner>,
    name: String,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.inner.running().remove(&self.name);
    }
}

/// Sends the messages of a leased subscription until it is lost, suspended, or the server drains.
/// After an error the pass leases it again.
pub(super) async fn run(inner: Arc<DeliveriesInner>, leased: Leased) {
    let name = leased.lease.name.clone();
    let _running = Running { inner: Arc::clone(&inner), name: name.clone() };
    for outcome in ["delivered", "failed"] {
        count(&name, outcome, 0);
    }
    // A later release may know other exchanges.
    let filter = match leased.definition.filter() {
        Ok(filter) => filter,
        Err(why) => {
            tracing::error!(subscription.name = name.as_str(), error = ?why, "the filter of a subscription is not valid any more");
            return sleep_or_drain(&inner, RENEW_EVERY).await;
        }
    };
    let receiver = inner.receiver(&name, &leased.definition.protocol, &leased.secrets);
    let Leased { lease, definition, client_id, failures, wait, secrets: _, previous_for } = leased;
    let (done, committed) = (None, Instant::now());
    let previous_until = committed + previous_for;
    let mut delivery =
        Delivery { inner, lease, definition, filter, client_id, receiver, previous_until, failures, done, committed };
    let ended = match delivery.deliver(wait).await {
        Ok(End::Lost) => Ok(()),
        Ok(End::Drained) => delivery.release().await,
        Ok(End::Suspended(by)) => {
            suspend(&delivery.inner.parts.pool, &name, delivery.lease.position, by).await.map(drop)
        }
        Err(error) => Err(error),
    };
    if let Err(error) = ended
        && !outage::is_known(&error)
    {
        tracing::warn!(subscription.name = name.as_str(), error = %error, "a subscription could not be sent; it will be retried");
    }
}

async fn sleep_or_drain(inner: &DeliveriesInner, time: Duration) {
    tokio::select! {
        () = inner.parts.drain.cancelled() => {}
        () = sleep(time) => {}
    }
}

fn count(name: &str, outcome: &'static str, number: u64) {
    metrics::counter!("tenure_deliveries_total", "name" => name.to_owned(), "outcome" => outcome).increment(number);
}

/// What became of an attempt.
enum Attempted {
    Accepted,
    Gone(String),
    Failed {
        error: String,
        wait: Duration,
    },
    /// No answer before the end of the drain.
    Drained,
}

fn failed(error: String) -> Attempted {
    Attempted::Failed { error, wait: Duration::ZERO }
}

impl Delivery {
    async fn deliver(&mut self, mut wait: Duration) -> Result<End, sqlx::Error> {
        let mut reader = match self.begin().await? {
            Ok(reader) => reader,
            Err(end) => return Ok(end),
        };
        loop {
            let (events, results) = match self.next_events(&mut reader).await? {
                Ok(composed) => composed,
                Err(end) => return Ok(end),
            };
            if events.is_empty() {
                self.done = Some(Recorded::Nothing);
                continue;
            }
            let outgoing = self.outgoing(&events, &results);
            if let Some(end) = self.send(&outgoing, wait).await? {
                return Ok(end);
            }
            self.done = Some(Recorded::Success);
            wait = Duration::ZERO;
        }
    }

    fn outgoing(&self, events: &[Arc<RenderedEvent>], results: &Results) -> Outgoing {
        let items = events.iter().map(|event| item(event, results));
        match &self.definition.protocol {
            Protocol::Webhook => {
                let items: Vec<Item<'_>> = items.collect();
                Outgoing::Webhook(Message::of(&items, self.definition.form()))
            }
            Protocol::Amqp { prefix } => {
                let publish =
                    |(item, event): (Item<'_>, &Arc<RenderedEvent>)| Publication::of(&item, published(event), prefix);
                Outgoing::Amqp(items.zip(events).map(publish).collect())
            }
        }
    }

    async fn begin(&self) -> Result<Result<Reader, End>, sqlx::Error> {
        let parts = &self.inner.parts;
        let Some(listener) = parts.tail.listen_for_subscription() else { return Ok(Err(End::Lost)) };
        let start = Start::After(self.lease.position);
        let begun = Stream::begin(parts.pool.clone(), &parts.sequencer, listener, start, self.filter.clone()).await?;
        // Never moved silently: the receiver would miss events.
        Ok(begun.map(Reader::new).map_err(|_| End::Suspended(SuspendedBy::EventsLost)))
    }

    /// Returns the events of the next message, whose end is committed as `in_flight`.
    async fn next_events(&mut self, reader: &mut Reader) -> Result<Result<Composed, End>, sqlx::Error> {
        if self.lease.in_flight > self.lease.position && self.done.is_none() {
            return self.repeat(reader).await;
        }
        loop {
            // The acknowledgement is committed with the next message, or at once if there is none.
            let until = if self.done.is_some() { Instant::now() } else { self.next_commit() };
            let drain = self.inner.parts.drain.clone();
            let filled = tokio::select! {
                // A drain begins no further message, even if there always is one.
                biased;
                () = drain.cancelled() => return Ok(Err(self.end_drained(reader).await?)),
                filled = reader.fill(1, until) => filled?,
                () = self.inner.changed.notified() => {
                    if !self.commit(reader, self.lease.in_flight, self.lease.in_flight).await? {
                        return Ok(Err(End::Lost));
                    }
                    continue;
                }
            };
            if let Some(end) = ended(filled) {
                return Ok(Err(end));
            }
            if reader.is_empty() {
                let through = reader.taken_through().max(self.lease.in_flight);
                let moved = self.done.is_some() || through > self.lease.in_flight;
                if (moved || self.committed.elapsed() >= RENEW_EVERY) && !self.commit(reader, through, through).await? {
                    return Ok(Err(End::Lost));
                }
                continue;
            }
            return self.compose(reader).await;
        }
    }

    /// Takes the events of a new message, and commits its end.
    async fn compose(&mut self, reader: &mut Reader) -> Result<Result<Composed, End>, sqlx::Error> {
        let batch = usize::from(self.definition.batch);
        // Few events of a long log may pass the filter: then the message is smaller.
        if let Ok(filled) = timeout(FILL_MAX, reader.fill(batch, Instant::now())).await
            && let Some(end) = ended(filled?)
        {
            return Ok(Err(end));
        }
        let results = if self.definition.result {
            let (mut conn, _turn) = self.inner.connect().await?;
            load_results(&mut conn, reader.peek(batch)).await?
        } else {
            Results::new()
        };
        let events = perhaps_without_last(reader.take(batch, &results));
        let end = reader.taken_through();
        if !self.commit(reader, self.lease.in_flight, end).await? {
            return Ok(Err(End::Lost));
        }
        Ok(Ok((events, results)))
    }

    /// Reads the message that the server before may have sent. Without its last events it would be
    /// another message, so this takes as long as it needs.
    async fn repeat(&mut self, reader: &mut Reader) -> Result<Result<Composed, End>, sqlx::Error> {
        let end = self.lease.in_flight;
        let drain = self.inner.parts.drain.clone();
        while !reader.has_read(end) {
            let filled = tokio::select! {
                filled = reader.fill_through(end, Instant::now() + FILL_MAX) => filled?,
                () = drain.cancelled() => return Ok(Err(End::Drained)),
            };
            if let Some(end) = ended(filled) {
                return Ok(Err(end));
            }
            if !reader.has_read(end) && !self.commit(reader, self.lease.position, end).await? {
                return Ok(Err(End::Lost));
            }
        }
        let events = reader.take_through(end);
        let results = if self.definition.result {
            let (mut conn, _turn) = self.inner.connect().await?;
            load_results(&mut conn, events.iter()).await?
        } else {
            Results::new()
        };
        Ok(Ok((events, results)))
    }

    fn next_commit(&self) -> Instant {
        let skip = self.committed + SKIP_EVERY;
        if Instant::now() < skip { skip } else { self.committed + RENEW_EVERY }
    }

    /// Commits the acknowledgement and the end of the next message. Returns false if the lease is
    /// lost.
    async fn commit(&mut self, reader: &Reader, position: i64, in_flight: i64) -> Result<bool, sqlx::Error> {
        let inner = Arc::clone(&self.inner);
        let (mut conn, _turn) = inner.connect().await?;
        // A connection to another database has reported the break before it is used. Positions that
        // were read before the break may belong to other events now.
        if reader.has_ended() {
            return Ok(false);
        }
        let recorded = self.done.unwrap_or(Recorded::Nothing);
        let kept = sending::advance(&mut conn, &self.lease, (position, in_flight), recorded).await?;
        if kept {
            (self.lease.position, self.lease.in_flight) = (position, in_flight);
            self.done = None;
            self.committed = Instant::now();
        }
        Ok(kept)
    }

    async fn end_drained(&mut self, reader: &Reader) -> Result<End, sqlx::Error> {
        let through = reader.taken_through().max(self.lease.in_flight);
        let moved = self.done.is_some() || through > self.lease.in_flight;
        let kept = !moved || self.commit(reader, through, through).await?;
        Ok(if kept { End::Drained } else { End::Lost })
    }

    async fn release(&self) -> Result<(), sqlx::Error> {
        let (mut conn, _turn) = self.inner.connect().await?;
        sending::release(&mut conn, &self.lease).await
    }

    /// Sends events until they are accepted.
    async fn send(&mut self, outgoing: &Outgoing, mut wait: Duration) -> Result<Option<End>, sqlx::Error> {
        let name = self.lease.name.clone();
        loop {
            if let Some(end) = self.pause(wait).await? {
                return Ok(Some(end));
            }
            match self.attempt(outgoing).await {
                Attempted::Accepted => {
                    if self.failures > 0 {
                        tracing::info!(
                            subscription.name = name.as_str(),
                            "the receiver of a subscription accepts messages again"
                        );
                    }
                    self.failures = 0;
                    count(&name, "delivered", 1);
                    return Ok(None);
                }
                Attempted::Gone(error) => {
                    count(&name, "failed", 1);
                    let kept = self.note_failure(Duration::ZERO, &error).await?;
                    return Ok(Some(if kept { End::Suspended(SuspendedBy::Gone) } else { End::Lost }));
                }
                Attempted::Failed { error, wait: asked } => {
                    count(&name, "failed", 1);
                    if self.failures == 0 {
                        tracing::warn!(subscription.name = name.as_str(), error = %error, "a message of a subscription failed; it will be retried");
                    }
                    self.failures = self.failures.saturating_add(1);
                    let chance = f64::from(u32::from_le_bytes(random())) / f64::from(u32::MAX);
                    wait = backoff(self.failures, chance).max(asked);
                    if !self.note_failure(wait, &error).await? {
                        return Ok(Some(End::Lost));
                    }
                }
                Attempted::Drained => return Ok(Some(End::Drained)),
            }
        }
    }

    async fn attempt(&mut self, outgoing: &Outgoing) -> Attempted {
        let parts = &self.inner.parts;
        let required = required_scopes(self.definition.result);
        match parts.authority.check(&self.client_id, Needed::Scopes(&required)).await {
            Ok(()) => {}
            Err(Denied::Refused(why)) => return failed(format!("the owner may not read events: {why}")),
            Err(Denied::Unavailable) => return failed(Denied::Unavailable.to_string()),
        }
        let drain = parts.drain.clone();
        let drained = async {
            drain.cancelled().await;
            sleep(DRAIN_ANSWER).await;
        };
        tokio::select! {
            attempted = self.transmit(outgoing) => attempted,
            () = drained => Attempted::Drained,
        }
    }

    async fn transmit(&mut self, outgoing: &Outgoing) -> Attempted {
        match (&mut self.receiver, outgoing) {
            (Some(Receiver::Webhook(keys)), Outgoing::Webhook(message)) => {
                let signing = if Instant::now() < self.previous_until { keys.len() } else { 1 };
                let keys = keys.get(..signing).unwrap_or(keys);
                let message = perhaps_altered(message, self.failures > 0);
                let answer = match self.inner.sender.send(&self.definition.url, &message, keys).await {
                    Ok(answer) => answer,
                    Err(error) => return failed(error),
                };
                match Attempt::Answered(answer.status, answer.retry_after).meaning() {
                    Meaning::Accepted => Attempted::Accepted,
                    Meaning::Gone => Attempted::Gone(answer.describe()),
                    Meaning::Again(wait) => Attempted::Failed { error: answer.describe(), wait },
                }
            }
            (Some(Receiver::Amqp(publisher)), Outgoing::Amqp(publications)) => {
                publisher.publish(publications).await.map_or_else(failed, |()| Attempted::Accepted)
            }
            // The receiver was made from the same definition as the message.
            (None | Some(_), _) => failed(UNDECRYPTABLE.to_owned()),
        }
    }

    async fn note_failure(&mut self, wait: Duration, error: &str) -> Result<bool, sqlx::Error> {
        let inner = Arc::clone(&self.inner);
        let (mut conn, _turn) = inner.connect().await?;
        let kept = sending::note_failure(&mut conn, &self.lease, wait, error).await?;
        self.committed = Instant::now();
        Ok(kept)
    }

    /// Waits, and extends the lease meanwhile.
    async fn pause(&mut self, wait: Duration) -> Result<Option<End>, sqlx::Error> {
        let until = Instant::now() + wait;
        let drain = self.inner.parts.drain.clone();
        while Instant::now() < until {
            tokio::select! {
                () = sleep_until(until.min(self.committed + RENEW_EVERY)) => {}
                () = drain.cancelled() => return Ok(Some(End::Drained)),
                () = self.inner.changed.notified() => {}
            }
            let inner = Arc::clone(&self.inner);
            let (mut conn, _turn) = inner.connect().await?;
            let positions = (self.lease.position, self.lease.in_flight);
            if !sending::advance(&mut conn, &self.lease, positions, Recorded::Nothing).await? {
                return Ok(Some(End::Lost));
            }
            self.committed = Instant::now();
        }
        Ok(None)
    }
}

#[cfg(feature = "test-util")]
fn perhaps_without_last(mut events: Vec<Arc<RenderedEvent>>) -> Vec<Arc<RenderedEvent>> {
    if breakage::strikes(Breakage::SkipEvent) {
        events.pop();
    }
    events
}

#[cfg(not(feature = "test-util"))]
fn perhaps_without_last(events: Vec<Arc<RenderedEvent>>) -> Vec<Arc<RenderedEvent>> {
    events
}

#[cfg(feature = "test-util")]
fn perhaps_altered(message: &Message, is_repeat: bool) -> Cow<'_, Message> {
    if is_repeat && breakage::strikes(Breakage::RepeatDiffers) {
        let body = message.body.replacen('{', "{\"altered\":true,", 1);
        return Cow::Owned(Message { id: message.id.clone(), body });
    }
    Cow::Borrowed(message)
}

#[cfg(not(feature = "test-util"))]
fn perhaps_altered(message: &Message, _: bool) -> Cow<'_, Message> {
    Cow::Borrowed(message)
}

fn ended(filled: Filled) -> Option<End> {
    match filled {
        Filled::Yes => None,
        Filled::Gone => Some(End::Suspended(SuspendedBy::EventsLost)),
        Filled::Ended => Some(End::Lost),
    }
}
