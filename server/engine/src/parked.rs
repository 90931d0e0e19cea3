//! Parked requests: requests of this server that wait for a change of the database.
//!
//! One task per kind of request owns them. It polls
//! - keys of new requests and notified keys at once, but at most every 20 ms;
//! - all keys every 500 ms, because a notification may be lost and other servers make changes too.
//!
//! A [`Source`] defines the key, the query for many keys, and the response to each request.

use std::collections::{HashMap, HashSet};
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::essential;
use crate::notifiers::fallbacks_are_on;
pub(crate) use signal::Signal;
use signal::Waiting;

mod signal;
#[cfg(test)]
mod tests;

const POLL_AT_MOST_EVERY: Duration = Duration::from_millis(20);

/// A kind of parked requests.
pub(crate) trait Source: Sized + Send + 'static {
    /// Key that a request waits for, such as a session id.
    type Key: Copy + Eq + Hash + Send + Sync + 'static;
    /// A request, with the channel for its response.
    type Waiter: Waiter;
    const GAUGE: &'static str;

    /// Answers requests for a notified key. Returns false if the key must be polled first.
    fn answer_notified(&mut self, _parked: &mut Parked<Self>, _key: Self::Key) -> bool {
        false
    }

    /// Polls the due keys and answers their requests. Returns true if another poll may find more.
    fn poll(
        &mut self,
        parked: &mut Parked<Self>,
        due: &Due<Self::Key>,
    ) -> impl Future<Output = Result<bool, sqlx::Error>> + Send;
}

pub(crate) trait Waiter: Send + 'static {
    fn is_closed(&self) -> bool;
    fn give_up(self, reason: GiveUp);
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum GiveUp {
    Deadline,
    /// The deadline has passed without a successful poll of the key.
    Unpolled,
    Draining,
}

#[derive(Debug)]
pub(crate) struct Due<K> {
    pub(crate) arrived: HashSet<K>,
    pub(crate) notified: HashSet<K>,
    pub(crate) all: bool,
    /// The last poll may have left something.
    again: bool,
}

impl<K> Default for Due<K> {
    fn default() -> Self {
        Self { arrived: HashSet::new(), notified: HashSet::new(), all: false, again: false }
    }
}

impl<K: Copy + Eq + Hash> Due<K> {
    /// Lists new and notified keys, each once.
    pub(crate) fn named(&self) -> impl Iterator<Item = K> {
        self.arrived.union(&self.notified).copied()
    }

    fn any(&self) -> bool {
        self.all || self.again || !self.arrived.is_empty() || !self.notified.is_empty()
    }
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Timing {
    pub(crate) all_every: Duration,
    /// Timeout of a poll: the database may have gone silent.
    pub(crate) timeout: Duration,
    /// False switches the polls of all keys off.
    pub(crate) fallback: bool,
}

impl Default for Timing {
    fn default() -> Self {
        Self { all_every: Duration::from_millis(500), timeout: Duration::from_secs(10), fallback: fallbacks_are_on() }
    }
}

pub(crate) struct Parking<S: Source> {
    arrivals: mpsc::UnboundedSender<(S::Key, ParkedRequest<S::Waiter>)>,
    signal: Arc<Signal<S::Key>>,
}

impl<S: Source> Parking<S> {
    /// Starts the task. It ends with the last handle; after `stop` it gives up all requests.
    pub(crate) fn start(
        source: S,
        signal: Arc<Signal<S::Key>>,
        timing: Timing,
        tasks: &TaskTracker,
        stop: CancellationToken,
    ) -> Self {
        // Bounded by the capacity that its users give.
        let (arrivals, arriving) = mpsc::unbounded_channel();
        let now = Instant::now();
        let task = Task {
            source,
            timing,
            arriving,
            stop,
            signal: Arc::clone(&signal),
            parked: Parked::default(),
            due: Due::default(),
            poll_from: now,
            all_from: now,
        };
        essential::spawn(tasks, task.run());
        Self { arrivals, signal }
    }

    /// Parks a request until it is answered or its deadline has passed. Later notifications are not
    /// lost.
    pub(crate) fn park(&self, key: S::Key, deadline: Option<Instant>, waiter: S::Waiter) {
        let entry = ParkedRequest { waiter, deadline, polled: Polled::Not, _waiting: self.signal.enter() };
        // The task ends only after this sender.
        drop(self.arrivals.send((key, entry)));
    }
}

impl<S: Source> Clone for Parking<S> {
    fn clone(&self) -> Self {
        Self { arrivals: self.arrivals.clone(), signal: Arc::clone(&self.signal) }
    }
}

struct ParkedRequest<W> {
    waiter: W,
    deadline: Option<Instant>,
    polled: Polled,
    _waiting: Waiting,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Polled {
    Not,
    Failed,
    Done,
}

pub(crate) struct Parked<S: Source> {
    by_key: HashMap<S::Key, Vec<ParkedRequest<S::Waiter>>>,
    /// Lower bound of the deadlines of polled requests.
    next_deadline: Option<Instant>,
    /// Earliest time of the next scan for passed deadlines, which reads all requests.
    scan_from: Instant,
}

impl<S: Source> Default for Parked<S> {
    fn default() -> Self {
        Self { by_key: HashMap::new(), next_deadline: None, scan_from: Instant::now() }
    }
}

impl<S: Source> Parked<S> {
    pub(crate) fn keys(&self) -> impl Iterator<Item = S::Key> {
        self.by_key.keys().copied()
    }

    pub(crate) fn get(&self, key: S::Key) -> impl Iterator<Item = &S::Waiter> {
        self.by_key.get(&key).into_iter().flatten().map(|entry| &entry.waiter)
    }

    pub(crate) fn get_mut(&mut self, key: S::Key) -> impl Iterator<Item = &mut S::Waiter> {
        self.by_key.get_mut(&key).into_iter().flatten().map(|entry| &mut entry.waiter)
    }

    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut S::Waiter> {
        self.by_key.values_mut().flatten().map(|entry| &mut entry.waiter)
    }

    /// Removes the requests for a key, to be answered.
    pub(crate) fn take(&mut self, key: S::Key) -> impl Iterator<Item = S::Waiter> + use<S> {
        self.by_key.remove(&key).into_iter().flatten().map(|entry| entry.waiter)
    }

    pub(crate) fn retain(&mut self, mut keep: impl FnMut(&S::Waiter) -> bool) {
        self.by_key.retain(|_, entries| {
            entries.retain(|entry| keep(&entry.waiter));
            !entries.is_empty()
        });
    }

    fn insert(&mut self, key: S::Key, entry: ParkedRequest<S::Waiter>) {
        self.by_key.entry(key).or_default().push(entry);
    }

    fn expect_deadline(&mut self, deadline: Option<Instant>) {
        self.next_deadline = self.next_deadline.into_iter().chain(deadline).min();
    }

    /// Records a poll. From the first one on, deadlines of these requests apply.
    fn note_poll(&mut self, due: &Due<S::Key>, polled: Polled) {
        let keys: Vec<S::Key> = if due.all { self.keys().collect() } else { due.named().collect() };
        for key in keys {
            let mut deadline = None;
            for entry in self.by_key.get_mut(&key).into_iter().flatten() {
                if entry.polled != Polled::Done {
                    entry.polled = polled;
                }
                deadline = deadline.into_iter().chain(entry.deadline).min();
            }
            self.expect_deadline(deadline);
        }
    }

    fn next_scan(&self) -> Option<Instant> {
        self.next_deadline.map(|next| next.max(self.scan_from))
    }

    fn give_up_after_deadline(&mut self, now: Instant) {
        if self.next_scan().is_none_or(|next| next > now) {
            return;
        }
        self.scan_from = now + POLL_AT_MOST_EVERY;
        let is_over = |entry: &mut ParkedRequest<S::Waiter>| {
            entry.polled != Polled::Not && entry.deadline.is_some_and(|deadline| deadline <= now)
        };
        for entry in self.by_key.values_mut().flat_map(|entries| entries.extract_if(.., is_over)) {
            let reason = if entry.polled == Polled::Done { GiveUp::Deadline } else { GiveUp::Unpolled };
            entry.waiter.give_up(reason);
        }
        self.retain(|_| true);
        let polled = self.by_key.values().flatten().filter(|entry| entry.polled != Polled::Not);
        self.next_deadline = polled.filter_map(|entry| entry.deadline).min();
    }
}

struct Task<S: Source> {
    source: S,
    timing: Timing,
    arriving: mpsc::UnboundedReceiver<(S::Key, ParkedRequest<S::Waiter>)>,
    stop: CancellationToken,
    signal: Arc<Signal<S::Key>>,
    parked: Parked<S>,
    due: Due<S::Key>,
    poll_from: Instant,
    all_from: Instant,
}

impl<S: Source> Task<S> {
    async fn run(mut self) {
        let gauge = metrics::gauge!(S::GAUGE);
        gauge.set(0.0);
        while !self.stop.is_cancelled() {
            let wake_at = self.wake_at();
            tokio::select! {
                arrived = self.arriving.recv() => match arrived {
                    Some((key, entry)) => self.enter(key, entry),
                    None => return,
                },
                () = self.signal.wait() => {}
                () = sleep_until(wake_at) => {}
                () = self.stop.cancelled() => break,
            }
            while let Ok((key, entry)) = self.arriving.try_recv() {
                self.enter(key, entry);
            }
            self.take_notified();
            let now = Instant::now();
            if now >= self.all_from {
                self.all_from = now + self.timing.all_every;
                self.parked.retain(|waiter| !waiter.is_closed());
                self.due.all |= self.timing.fallback;
            }
            if now >= self.poll_from && self.due.any() {
                self.poll(now).await;
            }
            self.parked.give_up_after_deadline(Instant::now());
            gauge.set(self.signal.waiting() as f64);
        }
        for entry in self.parked.by_key.into_values().flatten() {
            entry.waiter.give_up(GiveUp::Draining);
        }
        while let Some((_, entry)) = self.arriving.recv().await {
            entry.waiter.give_up(GiveUp::Draining);
        }
    }

    fn wake_at(&self) -> Instant {
        let poll_at = self.due.any().then_some(self.poll_from);
        poll_at.into_iter().chain(self.parked.next_scan()).fold(self.all_from, Instant::min)
    }

    fn enter(&mut self, key: S::Key, entry: ParkedRequest<S::Waiter>) {
        self.due.arrived.insert(key);
        self.parked.insert(key, entry);
    }

    fn take_notified(&mut self) {
        let notified = self.signal.take();
        self.due.all |= notified.all;
        for key in notified.keys {
            if !self.source.answer_notified(&mut self.parked, key) {
                self.due.notified.insert(key);
            }
        }
    }

    /// A failed poll is repeated with the next poll of all keys.
    async fn poll(&mut self, now: Instant) {
        let due = std::mem::take(&mut self.due);
        let poll = timeout(self.timing.timeout, self.source.poll(&mut self.parked, &due)).await;
        match poll.unwrap_or(Err(sqlx::Error::PoolTimedOut)) {
            Ok(again) => {
                self.parked.note_poll(&due, Polled::Done);
                self.due.again = again;
                self.poll_from = now + POLL_AT_MOST_EVERY;
            }
            Err(error) => {
                tracing::debug!(error = %error, requests = S::GAUGE, "parked requests could not be polled");
                self.parked.note_poll(&due, Polled::Failed);
                self.due = due;
                self.poll_from = Instant::now() + self.timing.all_every;
            }
        }
    }
}
