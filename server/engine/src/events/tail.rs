//! Buffer of the newest events, for all streams of this server.
//!
//! One task reads the log, sequences new events, and renders each once for all listeners. Without
//! listeners it does not query the database. It never waits for listeners: a listener behind the
//! bounded buffer reads the log itself until it has caught up.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use sqlx::PgPool;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::render::RenderedEvent;
use super::sequencer::Sequencer;
use crate::essential;
use crate::notifiers::Notifiers;
use tenure_domain::delivery::SUBSCRIPTIONS_MAX;
use tenure_domain::duty_cycle::DutyCycle;
use tenure_store::events::{self, Stretch};
use tenure_store::outage;

/// Listeners of clients per server.
pub const LISTENERS_MAX: usize = 500;
/// Listeners of subscriptions per server. Twice their number: a task that ends, and its successor.
const SUBSCRIBERS_MAX: usize = 2 * SUBSCRIPTIONS_MAX;
/// Poll interval of the log while there are listeners. Some events, and all of other servers, come
/// without a notification.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Minimum time between reads.
const LOOK_PAUSE: Duration = Duration::from_millis(20);
/// Pauses between reads without a notification.
const LOOK_CYCLE: DutyCycle = DutyCycle::new(4, LOOK_EVERY, Duration::from_secs(1));
/// Timeout of a pass: the database may have gone silent. Events read before it are kept.
const LOOK_MAX: Duration = Duration::from_secs(10);
/// Pause after a failed read.
const AFTER_FAILURE: Duration = Duration::from_secs(1);
/// Events per read.
const PAGE: usize = 200;
const BUFFERED_MAX: usize = 4_096;
const BUFFERED_BYTES_MAX: usize = 16 << 20;
/// Events per answer to a listener.
const ANSWER_MAX: usize = 64;
/// An answer that reaches this size takes no further event.
const ANSWER_BYTES_MAX: usize = 256 << 10;
/// Concurrent listeners reading the log: they must not take all connections of the pool.
const CATCHING_UP_MAX: usize = 2;

/// The end of the log, in memory.
#[derive(Default)]
struct Ring {
    /// `events` has all events after this position, up to `through`.
    floor: i64,
    through: i64,
    events: VecDeque<Arc<RenderedEvent>>,
    bytes: usize,
}

impl Ring {
    fn starting_at(position: i64) -> Self {
        Self { floor: position, through: position, ..Self::default() }
    }

    fn push(&mut self, events: Vec<Arc<RenderedEvent>>, through: i64) {
        self.bytes += events.iter().map(|event| event.bytes()).sum::<usize>();
        self.events.extend(events);
        self.through = through;
        while self.events.len() > BUFFERED_MAX || self.bytes > BUFFERED_BYTES_MAX {
            let Some(oldest) = self.events.pop_front() else { break };
            self.bytes -= oldest.bytes();
            self.floor = oldest.position;
        }
    }

    fn after(&self, position: i64) -> Option<Next> {
        if position < self.floor {
            return Some(Next::Behind);
        }
        if position >= self.through {
            return None;
        }
        let start = self.events.partition_point(|event| event.position <= position);
        let mut bytes = 0;
        let events_after: Vec<Arc<RenderedEvent>> = self
            .events
            .range(start..)
            .take(ANSWER_MAX)
            .take_while(|event| {
                let more = bytes < ANSWER_BYTES_MAX;
                bytes += event.bytes();
                more
            })
            .cloned()
            .collect();
        let all = start + events_after.len() == self.events.len();
        let through = events_after.last().filter(|_| !all).map_or(self.through, |event| event.position);
        Some(Next::Events(events_after, through))
    }
}

#[derive(Debug)]
pub enum Next {
    /// Events, and the position up to which they are complete.
    Events(Vec<Arc<RenderedEvent>>, i64),
    /// The buffer begins later: read the log.
    Behind,
    /// The log may have been rolled back since the listener began.
    Ended,
}

#[derive(Clone)]
pub struct Tail {
    shared: Arc<TailInner>,
}

struct TailInner {
    pool: PgPool,
    sequencer: Sequencer,
    notifiers: Notifiers,
    stop: CancellationToken,
    look_max: Duration,
    /// `None` without listeners. Only the task writes it.
    ring: Mutex<Option<Ring>>,
    /// Number of possible rollbacks of the log.
    breaks: AtomicU64,
    /// Notified whenever `ring` changes.
    changed: watch::Sender<()>,
    listener_slots: Arc<Semaphore>,
    subscriber_slots: Arc<Semaphore>,
    listener_added: Notify,
    catching_up: Semaphore,
}

/// Occupies a listener slot until it is dropped.
pub struct Listener {
    tail: Tail,
    /// `breaks` when the listener began.
    breaks: u64,
    changed: watch::Receiver<()>,
    _slot: OwnedSemaphorePermit,
}

impl Tail {
    /// Starts the reading task, which ends when it is stopped.
    #[must_use]
    pub fn start(
        pool: PgPool,
        sequencer: Sequencer,
        notifiers: Notifiers,
        tasks: &TaskTracker,
        stop: CancellationToken,
    ) -> Self {
        Self::start_with(pool, sequencer, notifiers, tasks, stop, LOOK_MAX)
    }

    pub(super) fn start_with(
        pool: PgPool,
        sequencer: Sequencer,
        notifiers: Notifiers,
        tasks: &TaskTracker,
        stop: CancellationToken,
        look_max: Duration,
    ) -> Self {
        let shared = TailInner {
            pool,
            sequencer,
            notifiers,
            stop,
            look_max,
            ring: Mutex::default(),
            breaks: AtomicU64::new(0),
            changed: watch::Sender::new(()),
            listener_slots: Arc::new(Semaphore::new(LISTENERS_MAX)),
            subscriber_slots: Arc::new(Semaphore::new(SUBSCRIBERS_MAX)),
            listener_added: Notify::new(),
            catching_up: Semaphore::new(CATCHING_UP_MAX),
        };
        let tail = Self { shared: Arc::new(shared) };
        essential::spawn(tasks, tail.clone().run());
        tail
    }

    /// Returns `None` if there are too many listeners.
    pub fn listen(&self) -> Option<Listener> {
        self.listen_with(&self.shared.listener_slots)
    }

    /// Listens for a subscription. The limit of clients does not apply.
    pub fn listen_for_subscription(&self) -> Option<Listener> {
        self.listen_with(&self.shared.subscriber_slots)
    }

    fn listen_with(&self, slots: &Arc<Semaphore>) -> Option<Listener> {
        let slot = Arc::clone(slots).try_acquire_owned().ok()?;
        self.shared.listener_added.notify_one();
        let (changed, breaks) = (self.shared.changed.subscribe(), self.breaks());
        Some(Listener { tail: self.clone(), breaks, changed, _slot: slot })
    }

    pub fn listeners(&self) -> usize {
        let TailInner { listener_slots, subscriber_slots, .. } = &*self.shared;
        LISTENERS_MAX + SUBSCRIBERS_MAX - listener_slots.available_permits() - subscriber_slots.available_permits()
    }

    /// Clears the buffer because the log may have been rolled back; it begins again at the end of
    /// the log. All listeners end: positions that they have seen may be assigned to other events.
    pub fn drop_all(&self) {
        // First: no listener may see a new ring before the break.
        self.shared.breaks.fetch_add(1, Ordering::SeqCst);
        *self.ring() = None;
        self.shared.changed.send_replace(());
    }

    fn breaks(&self) -> u64 {
        self.shared.breaks.load(Ordering::SeqCst)
    }

    async fn run(self) {
        let mut failing = false;
        while !self.shared.stop.is_cancelled() {
            if self.listeners() == 0 {
                *self.ring() = None;
                tokio::select! {
                    () = self.shared.stop.cancelled() => return,
                    () = self.shared.listener_added.notified() => {}
                }
                continue;
            }
            let started = Instant::now();
            let look = timeout(self.shared.look_max, self.read_on()).await;
            let (least, pause) = match look.unwrap_or(Err(sqlx::Error::PoolTimedOut)) {
                Ok(()) => {
                    failing = false;
                    (LOOK_PAUSE, LOOK_CYCLE.pause_after(Some(started.elapsed())))
                }
                Err(error) => {
                    // Log once, not at every retry.
                    if !failing && !outage::is_known(&error) {
                        tracing::warn!(error = %error, "new events could not be read; retried every second");
                        failing = true;
                    }
                    (AFTER_FAILURE, AFTER_FAILURE)
                }
            };
            self.wait(least, pause.saturating_sub(least)).await;
        }
    }

    /// Waits for `least`, then for a notification or `more`.
    async fn wait(&self, least: Duration, more: Duration) {
        let notified = async {
            tokio::time::sleep(least).await;
            tokio::select! {
                () = self.shared.notifiers.tail() => {}
                () = tokio::time::sleep(more) => {}
            }
        };
        tokio::select! {
            () = self.shared.stop.cancelled() => {}
            () = notified => {}
        }
    }

    /// Costs one query if nothing is new.
    async fn read_on(&self) -> Result<(), sqlx::Error> {
        metrics::counter!("tenure_event_reads_total", "who" => "all").increment(1);
        let mut conn = self.shared.pool.acquire().await?;
        let sequencer = &self.shared.sequencer;
        let mut ends = events::get_ends(&mut conn, sequencer.reached(), sequencer.begins()).await?;
        if ends.unsequenced {
            sequencer.run(&mut conn).await?;
            ends = events::get_ends(&mut conn, sequencer.reached(), sequencer.begins()).await?;
        }
        let reached = self.ring().as_ref().map(|ring| ring.through);
        if reached.is_some_and(|reached| reached > ends.newest) {
            self.drop_all();
            return Ok(());
        }
        let mut through = reached.unwrap_or_else(|| self.start_at(ends.newest));
        while through < ends.newest {
            through = match events::read_on(&mut conn, through, PAGE).await? {
                Stretch::Events(events, through) => {
                    let rendered = events.into_iter().map(|event| RenderedEvent::render(event).map(Arc::new));
                    self.publish(rendered.collect::<Result<_, _>>()?, through);
                    through
                }
                Stretch::Gone(oldest) => self.start_at(oldest),
                Stretch::Ahead(_) => {
                    self.drop_all();
                    return Ok(());
                }
            };
        }
        Ok(())
    }

    fn publish(&self, rendered: Vec<Arc<RenderedEvent>>, through: i64) {
        if let Some(ring) = &mut *self.ring() {
            ring.push(rendered, through);
        }
        self.shared.changed.send_replace(());
    }

    fn start_at(&self, position: i64) -> i64 {
        *self.ring() = Some(Ring::starting_at(position));
        self.shared.changed.send_replace(());
        position
    }

    fn ring(&self) -> std::sync::MutexGuard<'_, Option<Ring>> {
        self.shared.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Listener {
    /// True if the log may have been rolled back since the listener began.
    pub fn has_ended(&self) -> bool {
        self.tail.breaks() != self.breaks
    }

    pub async fn next(&mut self, after: i64) -> Next {
        loop {
            self.changed.mark_unchanged();
            if self.has_ended() {
                return Next::Ended;
            }
            if let Some(next) = self.tail.ring().as_ref().and_then(|ring| ring.after(after)) {
                return next;
            }
            // Cannot fail: the listener holds the sender.
            drop(self.changed.changed().await);
        }
    }

    /// Reads the log when few others do, with a timeout.
    ///
    /// # Errors
    /// If the log cannot be read in time.
    pub async fn catch_up<T>(&self, reading: impl Future<Output = Result<T, sqlx::Error>>) -> Result<T, sqlx::Error> {
        let shared = &self.tail.shared;
        let _turn = shared.catching_up.acquire().await.ok();
        timeout(shared.look_max, reading).await.unwrap_or(Err(sqlx::Error::PoolTimedOut))
    }
}

#[cfg(test)]
mod tests {
    use sqlx::Connection as _;
    use tenure_api::dates::Timestamp;
    use tenure_store::connector::Connector;
    use tenure_store::testing::{Proxy, TestDatabase, eventually, until_a_session_waits};

    use super::*;

    /// Long enough to connect and read.
    const SHORT: Duration = Duration::from_secs(1);

    fn rendered(position: i64, bytes: usize) -> Arc<RenderedEvent> {
        Arc::new(RenderedEvent {
            position,
            time: Timestamp::new(chrono::DateTime::UNIX_EPOCH),
            exchange: "task-defined",
            routing_key: String::new(),
            cc: Vec::new(),
            json: "x".repeat(bytes),
        })
    }

    fn push(ring: &mut Ring, positions: impl IntoIterator<Item = i64>, through: i64, bytes: usize) {
        ring.push(positions.into_iter().map(|position| rendered(position, bytes)).collect(), through);
    }

    #[track_caller]
    fn events_after(ring: &Ring, after: i64) -> (Vec<i64>, i64) {
        match ring.after(after) {
            Some(Next::Events(events, through)) => (events.iter().map(|event| event.position).collect(), through),
            other => panic!("events were expected, not {other:?}"),
        }
    }

    fn drained(ring: &Ring, mut after: i64) -> Vec<i64> {
        let mut all = Vec::new();
        while let Some(Next::Events(events, through)) = ring.after(after) {
            assert!(through > after, "each answer advances the cursor");
            all.extend(events.iter().map(|event| event.position));
            after = through;
        }
        all
    }

    #[test]
    fn listener_gets_only_events_after_its_position() {
        let mut ring = Ring::starting_at(10);
        assert!(ring.after(10).is_none());
        assert!(matches!(ring.after(9), Some(Next::Behind)));
        // Positions 12 and 15 belong to expired tasks.
        push(&mut ring, [11, 13, 14], 15, 1);
        assert_eq!(events_after(&ring, 10), (vec![11, 13, 14], 15));
        assert_eq!(events_after(&ring, 11), (vec![13, 14], 15));
        assert_eq!(events_after(&ring, 12), (vec![13, 14], 15));
        assert_eq!(events_after(&ring, 14), (vec![], 15));
        assert!(ring.after(15).is_none());
        assert!(ring.after(99).is_none(), "a listener can be ahead of the buffer");
    }

    #[tokio::test]
    async fn listener_wakes_when_buffer_begins_and_advances() {
        let stop = CancellationToken::new();
        stop.cancel();
        let pool = sqlx::postgres::PgPoolOptions::new().connect_lazy("postgres://nowhere.invalid").unwrap();
        let tail = Tail::start(pool, Sequencer::default(), Notifiers::default(), &TaskTracker::new(), stop);
        let mut listener = tail.listen().unwrap();
        let mut next = Box::pin(listener.next(3));
        assert!(futures_util::poll!(next.as_mut()).is_pending());
        tail.start_at(5);
        assert!(matches!(next.await, Next::Behind));
        let mut next = Box::pin(listener.next(5));
        assert!(futures_util::poll!(next.as_mut()).is_pending());
        tail.publish(vec![rendered(6, 1)], 7);
        assert!(matches!(next.await, Next::Events(events, 7) if events.len() == 1));
        assert_eq!(tail.listeners(), 1);
        drop(listener);
        assert_eq!(tail.listeners(), 0);
    }

    /// For any duration of the previous read.
    #[tokio::test]
    async fn pause_after_stall_is_short_and_notification_ends_it() {
        let pool = sqlx::postgres::PgPoolOptions::new().connect_lazy("postgres://nowhere.invalid").unwrap();
        let (notifiers, stop) = (Notifiers::default(), CancellationToken::new());
        let tail = Tail::start(pool, Sequencer::default(), notifiers.clone(), &TaskTracker::new(), stop);
        let pause = LOOK_CYCLE.pause_after(Some(Duration::from_secs(60)));
        assert_eq!(pause, Duration::from_secs(1));
        let began = Instant::now();
        notifiers.notify([1]);
        tail.wait(LOOK_PAUSE, pause).await;
        assert!((LOOK_PAUSE..pause / 2).contains(&began.elapsed()), "{:?}", began.elapsed());
    }

    #[tokio::test]
    async fn tail_retries_after_silent_connection() {
        let database = TestDatabase::create().await;
        let proxy = Proxy::start(database.options()).await;
        let connector = Connector::new(proxy.options().clone());
        let mut holder = database.connect().await;
        let mut lock = holder.begin().await.unwrap();
        sqlx::query("LOCK TABLE outbox_order IN ACCESS EXCLUSIVE MODE").execute(&mut *lock).await.unwrap();
        let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
        let (pool, sequencer, notifiers) = (connector.pool(), Sequencer::default(), Notifiers::default());
        let tail = Tail::start_with(pool, sequencer, notifiers, &tasks, stop.clone(), SHORT);
        let listener = tail.listen().unwrap();
        until_a_session_waits(database.pool()).await;
        proxy.fall_silent();
        lock.rollback().await.unwrap();
        eventually("memory begins", async || tail.ring().is_some()).await;
        stop.cancel();
        tasks.close();
        tasks.wait().await;
        drop((listener, holder));
        database.finish().await;
    }

    #[test]
    fn buffer_is_bounded_in_events() {
        let buffered = i64::try_from(BUFFERED_MAX).unwrap();
        let mut ring = Ring::starting_at(0);
        push(&mut ring, 1..=buffered + 100, buffered + 100, 1);
        assert_eq!(ring.events.len(), BUFFERED_MAX);
        assert!(matches!(ring.after(99), Some(Next::Behind)));
        assert_eq!(drained(&ring, 100), (101..=buffered + 100).collect::<Vec<_>>());
    }

    #[test]
    fn buffer_is_bounded_in_bytes() {
        let mut ring = Ring::starting_at(0);
        push(&mut ring, 1..=5, 5, BUFFERED_BYTES_MAX / 4);
        assert_eq!(ring.events.len(), 4);
        assert!(matches!(ring.after(0), Some(Next::Behind)));
        assert_eq!(drained(&ring, 1), [2, 3, 4, 5]);
        push(&mut ring, [6], 6, BUFFERED_BYTES_MAX + 1);
        assert_eq!((ring.events.len(), ring.bytes), (0, 0));
        assert!(matches!(ring.after(5), Some(Next::Behind)));
        assert!(ring.after(6).is_none());
    }

    #[test]
    fn answer_is_bounded_but_never_empty() {
        let mut ring = Ring::starting_at(0);
        push(&mut ring, 1..=200, 200, 1);
        assert_eq!(events_after(&ring, 0).1, i64::try_from(ANSWER_MAX).unwrap());
        let mut large = Ring::starting_at(0);
        push(&mut large, 1..=5, 5, ANSWER_BYTES_MAX);
        assert_eq!(events_after(&large, 0), (vec![1], 1));
        assert_eq!(drained(&large, 0), [1, 2, 3, 4, 5]);
    }
}
