//! The frame of a list of claimWork requests with database sessions of its own: arrivals,
//! notifications, timeouts, removed workers and lost keys of queues. A [`Strategy`] decides which
//! requests are tried, and when.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::Waiting;
use super::claimer::Claimer;
use super::delivery::Requeue;
use super::wait_list::{WaitListParts, Waiter};
use crate::notifiers::{Notifiers, SendAway, WaitListNotifier, fallbacks_are_on};
use crate::workers::Workers;

/// Poll interval in case a notification was lost.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How far a request may exceed its wait timeout. Bounds how often all waiters are scanned.
const TIMEOUT_GRAIN: Duration = Duration::from_millis(20);

/// Keeps the requests of a list, and tries them.
pub(super) trait Strategy {
    /// The result of a try, or of a poll.
    type Done: Send + 'static;

    /// Database sessions, and so the most tries at the same time.
    const SESSIONS: usize;

    fn notifier(notifiers: &Notifiers) -> &WaitListNotifier;

    fn has_waiters(&self) -> bool;

    /// Number of waiting requests, for the metric.
    fn count(&self) -> usize;

    /// Adds a request at the end or at its former position.
    fn enter(&mut self, waiter: Waiter);

    /// Begins tries while sessions are idle.
    fn try_ready(&mut self, frame: &mut Frame<Self::Done>);

    fn finish(&mut self, frame: &mut Frame<Self::Done>, done: Self::Done);

    /// Marks what is worth a try after a notification of these queues.
    fn notify(&mut self, frame: &Frame<Self::Done>, queues: HashSet<i32>);

    /// Called once a second.
    fn look(&mut self, frame: &mut Frame<Self::Done>);

    /// Returns when a try is due without a notification.
    fn next_try(&self) -> Option<Instant> {
        None
    }

    /// Ends requests whose time is over without claims. Returns the first timeout of the others.
    fn end_timed_out(&mut self, frame: &Frame<Self::Done>, time: Time) -> Option<Instant>;

    /// Ends the requests of a removed worker without claims.
    fn send_away(&mut self, frame: &Frame<Self::Done>, away: SendAway);

    /// Ends all requests, so that they look up their keys again.
    fn drop_keys(&mut self);
}

/// The parts of a list that every strategy uses.
pub(super) struct Frame<D> {
    pub(super) idle: Vec<Claimer>,
    pub(super) running: FuturesUnordered<BoxFuture<'static, D>>,
    pub(super) notifiers: Notifiers,
    pub(super) workers: Workers,
    pub(super) requeue: Requeue,
    /// No later than the next wait timeout.
    next_timeout: Instant,
}

impl<D> Frame<D> {
    /// Notes the timeout of a request that waits again.
    pub(super) fn note_timeout(&mut self, waiter: &Waiter) {
        self.next_timeout = self.next_timeout.min(waiter.until);
    }
}

/// The time at which a list looks for timeouts.
#[derive(Clone, Copy)]
pub(super) struct Time {
    now: Instant,
    /// True once the list is stopped.
    stopping: bool,
}

impl Time {
    /// True if a request has waited long enough. Even a wait timeout of zero gets one try.
    pub(super) fn is_over(self, waiter: &Waiter, is_to_be_tried: bool) -> bool {
        let grace = if is_to_be_tried { LOOK_EVERY } else { Duration::ZERO };
        self.stopping || waiter.until + grace <= self.now
    }
}

pub(super) struct ClaimList<S: Strategy> {
    strategy: S,
    frame: Frame<S::Done>,
    inbox: mpsc::Receiver<Waiter>,
    turns: u64,
    waiting: Waiting,
    stop: CancellationToken,
}

impl<S: Strategy> ClaimList<S> {
    pub(super) fn new(
        strategy: S,
        parts: &WaitListParts<'_>,
        inbox: mpsc::Receiver<Waiter>,
        waiting: Waiting,
        tasks: &TaskTracker,
        stop: &CancellationToken,
    ) -> Self {
        let frame = Frame {
            idle: (0..S::SESSIONS).map(|_| Claimer::new(parts, tasks.clone())).collect(),
            running: FuturesUnordered::new(),
            notifiers: parts.notifiers.clone(),
            workers: parts.workers.clone(),
            requeue: parts.requeue.clone(),
            next_timeout: Instant::now(),
        };
        Self { strategy, frame, inbox, turns: 0, waiting, stop: stop.clone() }
    }

    /// Ends when the sending side of the list is dropped. Once stopped, it answers all requests
    /// without claims.
    pub(super) async fn work(mut self) {
        let mut look = tokio::time::interval(LOOK_EVERY);
        look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let notifiers = self.frame.notifiers.clone();
        let notifier = S::notifier(&notifiers);
        let mut open = true;
        while open || !self.frame.running.is_empty() {
            notifier.set_has_requests(self.strategy.has_waiters() || !self.frame.running.is_empty());
            self.strategy.try_ready(&mut self.frame);
            let has_waiters = self.strategy.has_waiters();
            let wakes_at =
                self.strategy.next_try().map_or(self.frame.next_timeout, |at| at.min(self.frame.next_timeout));
            tokio::select! {
                arrived = self.inbox.recv(), if open => match arrived {
                    Some(waiter) => {
                        self.enter(waiter);
                        self.enter_all();
                    }
                    None => open = false,
                },
                () = notifier.notified() => {}
                Some(done) = self.frame.running.next() => self.strategy.finish(&mut self.frame, done),
                _ = look.tick(), if fallbacks_are_on() && has_waiters => self.strategy.look(&mut self.frame),
                () = tokio::time::sleep_until(wakes_at.into()), if has_waiters => {}
                () = self.stop.cancelled(), if has_waiters => {}
            }
            self.strategy.notify(&self.frame, notifier.take_claimable());
            self.answer_gone(notifier);
            if notifier.take_stale_keys() {
                self.enter_all();
                self.strategy.drop_keys();
            }
            self.answer_timed_out();
            self.waiting.count(self.strategy.count(), "claim");
        }
        for claimer in self.frame.idle {
            claimer.session.close().await;
        }
    }

    fn enter_all(&mut self) {
        while let Ok(waiter) = self.inbox.try_recv() {
            self.enter(waiter);
        }
    }

    fn enter(&mut self, mut waiter: Waiter) {
        self.turns += 1;
        waiter.turn = self.turns;
        // Set before the try, which thus finds everything not notified earlier.
        S::notifier(&self.frame.notifiers).set_has_requests(true);
        self.frame.note_timeout(&waiter);
        self.strategy.enter(waiter);
    }

    /// Ends timed-out requests without claims; all requests once the list is stopped.
    fn answer_timed_out(&mut self) {
        let time = Time { now: Instant::now(), stopping: self.stop.is_cancelled() };
        if self.frame.next_timeout > time.now && !time.stopping {
            return;
        }
        let first = self.strategy.end_timed_out(&self.frame, time);
        let latest = time.now + LOOK_EVERY;
        self.frame.next_timeout = first.map_or(latest, |first| first.clamp(time.now + TIMEOUT_GRAIN, latest));
    }

    /// Ends requests of removed workers without claims.
    fn answer_gone(&mut self, notifier: &WaitListNotifier) {
        let leaving = notifier.take_gone();
        if !leaving.is_empty() {
            // Includes requests sent before the removal.
            self.enter_all();
        }
        for away in leaving {
            self.strategy.send_away(&self.frame, away);
        }
    }
}
