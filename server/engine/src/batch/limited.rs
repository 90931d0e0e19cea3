//! Wait list of claimWork requests in limited queues: first come first served per queue.
//!
//! One task tries a queue when a request arrives, on a notification, and when a rate allows the
//! next start. Every second it also polls all queues for startable runs in one statement, in case a
//! notification was lost.
//!
//! Each try is one decision for the queue's first requests, on its own database session. Limited
//! queues are not part of ticks and do not wait for each other.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use sqlx::postgres::PgPool;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use uuid::Uuid;

use super::Waiting;
use super::claimer::{Claimer, QueueClaims};
use super::delivery::Requeue;
use super::wait_list::{Answer, RUNS_MAX, ReadSequenced, WaitListParts, Waiter};
use crate::decision::marks::AdmissionMarks;
use crate::decision::metrics::{Dispatch, count_started};
use crate::decision::{self, Claims, Outcome, Requests};
use crate::failure::{Failure, OpError};
use crate::notifiers::{Notifiers, SendAway, fallbacks_are_on};
use crate::workers::Workers;
use tenure_store::admission;
use tenure_store::events::Sequenced;
use tenure_store::transitions::claim::Worker;

const DECISIONS_MAX: usize = 4;
/// Poll interval for startable runs, in case a notification was lost.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How far a request may exceed its wait timeout. Bounds how often all waiters are scanned.
const TIMEOUT_GRAIN: Duration = Duration::from_millis(20);

enum Done {
    Decided(Box<Decided>),
    Listed(Result<Vec<i32>, sqlx::Error>),
}

struct Decided {
    queue: i32,
    claimer: Claimer,
    waiters: Vec<Waiter>,
    found: Result<DecisionResult, OpError>,
    began: Instant,
}

enum DecisionResult {
    Claims { claims: Option<QueueClaims>, more: bool, next_in: Option<Duration> },
    NotLimited,
}

#[derive(Default)]
struct Queue {
    waiters: VecDeque<Waiter>,
    /// True if a decision is worth trying.
    ready: bool,
    deciding: bool,
    /// Time of the next try without a notification.
    next: Option<Instant>,
    /// True if the last decision started nothing.
    blocked: bool,
    /// Changes to the list of limited queues when the decision began.
    changes: u64,
    /// Number of the last decision begun.
    tried: u64,
    leaving: Vec<SendAway>,
    /// True if queue keys were lost during the decision.
    stale: bool,
}

pub(super) struct LimitedList {
    inbox: mpsc::Receiver<Waiter>,
    queues: HashMap<i32, Queue>,
    decisions: u64,
    /// Requests of quarantined workers; usually none.
    suspended: Vec<Waiter>,
    turns: u64,
    idle: Vec<Claimer>,
    running: FuturesUnordered<BoxFuture<'static, Done>>,
    looking: bool,
    next_timeout: Instant,
    pool: PgPool,
    sequenced: ReadSequenced,
    marks: AdmissionMarks,
    notifiers: Notifiers,
    workers: Workers,
    requeue: Requeue,
    waiting: Waiting,
    stop: CancellationToken,
}

impl LimitedList {
    pub(super) fn new(
        parts: &WaitListParts<'_>,
        inbox: mpsc::Receiver<Waiter>,
        waiting: Waiting,
        tasks: &TaskTracker,
        stop: &CancellationToken,
    ) -> Self {
        Self {
            inbox,
            queues: HashMap::new(),
            decisions: 0,
            suspended: Vec::new(),
            turns: 0,
            idle: (0..DECISIONS_MAX).map(|_| Claimer::new(parts, tasks.clone())).collect(),
            running: FuturesUnordered::new(),
            looking: false,
            next_timeout: Instant::now(),
            pool: parts.pool.clone(),
            sequenced: parts.sequenced.clone(),
            marks: parts.admission_marks.clone(),
            notifiers: parts.notifiers.clone(),
            workers: parts.workers.clone(),
            requeue: parts.requeue.clone(),
            waiting,
            stop: stop.clone(),
        }
    }

    pub(super) async fn work(mut self) {
        let mut look = tokio::time::interval(LOOK_EVERY);
        look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let notifiers = self.notifiers.clone();
        let mut open = true;
        while open || !self.running.is_empty() {
            notifiers.limited_list().set_has_requests(self.has_waiters() || !self.running.is_empty());
            self.decide_ready();
            let wakes_at = self.wakes_at();
            tokio::select! {
                arrived = self.inbox.recv(), if open => match arrived {
                    Some(waiter) => {
                        self.enter(waiter);
                        self.enter_all();
                    }
                    None => open = false,
                },
                () = notifiers.limited_list().notified() => {}
                Some(done) = self.running.next() => match done {
                    Done::Decided(decided) => self.finish(*decided),
                    Done::Listed(queues) => self.listed(queues),
                },
                _ = look.tick(), if fallbacks_are_on() && self.has_waiters() => self.look(),
                () = tokio::time::sleep_until(wakes_at.into()), if self.has_waiters() => {}
                () = self.stop.cancelled(), if self.has_waiters() => {}
            }
            self.take_notified();
            self.answer_gone();
            self.answer_stale();
            self.answer_timed_out();
            // Queues without requests are not notified: drop their state.
            self.queues.retain(|_, queue| queue.deciding || !queue.waiters.is_empty());
            self.waiting.count(self.queues.values().map(|queue| queue.waiters.len()).sum(), "claim");
        }
        for claimer in self.idle {
            claimer.session.close().await;
        }
    }

    fn has_waiters(&self) -> bool {
        !self.suspended.is_empty() || self.queues.values().any(|queue| !queue.waiters.is_empty())
    }

    /// Returns when the first request times out or a queue is worth trying.
    fn wakes_at(&self) -> Instant {
        let waiting = self.queues.values().filter(|queue| !queue.ready && !queue.deciding && !queue.waiters.is_empty());
        waiting.filter_map(|queue| queue.next).fold(self.next_timeout, Instant::min)
    }

    fn enter_all(&mut self) {
        while let Ok(waiter) = self.inbox.try_recv() {
            self.enter(waiter);
        }
    }

    /// Adds a request at the end or at its former position.
    fn enter(&mut self, mut waiter: Waiter) {
        if waiter.turn == 0 {
            self.turns += 1;
            waiter.turn = self.turns;
        }
        // Set before the try, which thus finds everything not notified earlier.
        self.notifiers.limited_list().set_has_requests(true);
        self.next_timeout = self.next_timeout.min(waiter.until);
        let queue = self.queues.entry(waiter.worker().queue).or_default();
        queue.ready |= !queue.blocked || (queue.waiters.is_empty() && !queue.deciding);
        queue.insert(waiter);
    }

    /// Marks queues that were notified or whose next try is due.
    fn take_notified(&mut self) {
        for queue in self.notifiers.limited_list().take_claimable() {
            if let Some(queue) = self.queues.get_mut(&queue) {
                (queue.ready, queue.blocked) = (true, false);
            }
        }
        let now = Instant::now();
        for queue in self.queues.values_mut().filter(|queue| queue.next.is_some_and(|next| next <= now)) {
            (queue.ready, queue.blocked, queue.next) = (true, false, None);
        }
        self.resume();
    }

    /// Polls the blocked queues.
    fn look(&mut self) {
        for queue in self.queues.values_mut() {
            queue.waiters.retain(|waiter| !waiter.reply.is_closed());
        }
        let blocked = self.queues.iter().filter(|(_, queue)| !queue.ready && !queue.deciding);
        let queues: Vec<i32> = blocked.map(|(queue, _)| *queue).collect();
        if self.looking || queues.is_empty() {
            return;
        }
        self.looking = true;
        let (pool, sequenced, marks) = (self.pool.clone(), (self.sequenced)(), self.marks.of_all_queues());
        self.running.push(Box::pin(async move {
            let listed = async {
                let mut conn = pool.acquire().await?;
                admission::list_startable(&mut conn, sequenced, &queues, &marks).await
            };
            Done::Listed(listed.await)
        }));
    }

    fn listed(&mut self, queues: Result<Vec<i32>, sqlx::Error>) {
        self.looking = false;
        for queue in queues.unwrap_or_default() {
            if let Some(queue) = self.queues.get_mut(&queue) {
                (queue.ready, queue.blocked) = (true, false);
            }
        }
        // A change by a server of another release shows only in `is_limited`.
        for queue in self.queues.keys().copied().filter(|queue| !self.notifiers.is_limited(*queue)).collect::<Vec<_>>()
        {
            self.hand_over(queue);
        }
    }

    /// Sends the requests of a queue without limits to the other list.
    fn hand_over(&mut self, queue: i32) {
        let Some(queue) = self.queues.get_mut(&queue) else { return };
        for waiter in queue.waiters.drain(..) {
            drop(waiter.reply.send(Err(OpError::StaleQueue)));
        }
    }

    fn resume(&mut self) {
        if self.suspended.is_empty() {
            return;
        }
        self.suspended.retain(|waiter| !waiter.reply.is_closed());
        let free = self.suspended.extract_if(.., |waiter| !self.workers.is_quarantined(waiter.worker()));
        for waiter in free.collect::<Vec<_>>() {
            self.enter(waiter);
        }
    }

    /// Begins a decision for each ready queue while database sessions are idle.
    fn decide_ready(&mut self) {
        let ready = self.queues.iter().filter(|(_, queue)| queue.ready && !queue.deciding);
        let mut ready: Vec<(u64, i32)> = ready.map(|(key, queue)| (queue.tried, *key)).collect();
        ready.sort_unstable();
        for (_, key) in ready {
            let Some(queue) = self.queues.get_mut(&key) else { continue };
            // Claim nothing for disconnected clients.
            queue.waiters.retain(|waiter| !waiter.reply.is_closed());
            if self.workers.any_quarantined(key) {
                let mut suspended = queue.take_if(|waiter| self.workers.is_quarantined(waiter.worker()));
                suspended.iter_mut().for_each(Waiter::park);
                self.suspended.extend(suspended);
            }
            if queue.waiters.is_empty() {
                queue.ready = false;
                continue;
            }
            let Some(claimer) = self.idle.pop() else { return };
            let waiters = queue.take_first();
            (queue.ready, queue.deciding, queue.next) = (false, true, None);
            queue.changes = self.notifiers.limited_changes();
            self.decisions += 1;
            queue.tried = self.decisions;
            let (sequenced, marks) = (self.sequenced.clone(), self.marks.clone());
            self.running.push(Box::pin(decide(key, claimer, waiters, sequenced, marks)));
        }
    }

    /// Delivers the claims of a decision. Requests without claims keep waiting.
    fn finish(&mut self, decided: Decided) {
        let Decided { queue: key, claimer, waiters, found, began } = decided;
        self.idle.push(claimer);
        let queue = self.queues.entry(key).or_default();
        queue.deciding = false;
        // Dropped at the end, when no request of these workers waits.
        let leaving = std::mem::take(&mut queue.leaving);
        let is_stale = std::mem::take(&mut queue.stale);
        let (mut claims, more, next_in) = match found {
            Ok(DecisionResult::Claims { claims, more, next_in }) => (claims, more, next_in),
            Ok(DecisionResult::NotLimited) => {
                queue.waiters.extend(waiters);
                self.notifiers.set_unlimited(key, queue.changes);
                self.hand_over(key);
                return;
            }
            Err(error) => {
                for waiter in waiters {
                    drop(waiter.reply.send(Err(error.clone())));
                }
                queue.ready = !queue.waiters.is_empty();
                return;
            }
        };
        let mut all_served = true;
        for (position, mut waiter) in (1..).zip(waiters) {
            let taken = claims.as_mut().map(|claims| claims.take(position));
            if is_stale || leaving.iter().any(|leaving| waiter.is_of(&leaving.worker)) {
                // Requeues its claims.
                drop(taken);
                if is_stale {
                    drop(waiter.reply.send(Err(OpError::StaleQueue)));
                } else {
                    waiter.end(&self.requeue);
                }
                continue;
            }
            let (granted, delivery) = match taken {
                Some(Ok(taken)) if !taken.0.is_empty() => taken,
                Some(Err(error)) => {
                    drop(waiter.reply.send(Err(error)));
                    continue;
                }
                _ => {
                    self.next_timeout = self.next_timeout.min(waiter.until);
                    waiter.park();
                    queue.insert(waiter);
                    all_served = false;
                    continue;
                }
            };
            #[cfg(feature = "test-util")]
            let granted = tenure_store::breakage::perhaps_twice(granted);
            // Quarantined meanwhile: dropping the guard requeues the claims.
            if self.workers.is_quarantined(waiter.worker()) {
                waiter.park();
                self.suspended.push(waiter);
                continue;
            }
            let waited = waiter.waited(began);
            // If the receiver is gone, the guard requeues the claims.
            drop(waiter.reply.send(Ok(Answer { claims: granted, delivery, waited })));
        }
        // Later requests were not decided. If an earlier one got nothing, nothing may start for
        // them either.
        queue.ready |= more || (all_served && !queue.waiters.is_empty());
        queue.blocked = !queue.ready;
        queue.next = next_in.map(|next| Instant::now() + next);
        if !self.notifiers.is_limited(key) {
            self.hand_over(key);
        }
    }

    /// Ends timed-out requests without claims; all requests once the list is stopped.
    fn answer_timed_out(&mut self) {
        let (now, stopping, requeue) = (Instant::now(), self.stop.is_cancelled(), &self.requeue);
        if self.next_timeout > now && !stopping {
            return;
        }
        let mut next = now + LOOK_EVERY;
        for queue in self.queues.values_mut() {
            // Even a wait timeout of zero gets one try.
            let grace = if queue.ready || queue.deciding { LOOK_EVERY } else { Duration::ZERO };
            for waiter in queue.take_if(|waiter| stopping || waiter.until + grace <= now) {
                waiter.end(requeue);
            }
            next = queue.waiters.iter().fold(next, |next, waiter| next.min(waiter.until));
        }
        for waiter in self.suspended.extract_if(.., |waiter| stopping || waiter.until <= now) {
            waiter.end(requeue);
        }
        let first = self.suspended.iter().map(|waiter| waiter.until).min();
        self.next_timeout = first.map_or(next, |first| next.min(first)).max(now + TIMEOUT_GRAIN);
    }

    /// Ends requests of removed workers without claims.
    fn answer_gone(&mut self) {
        let leaving = self.notifiers.limited_list().take_gone();
        if !leaving.is_empty() {
            // Includes requests sent before the removal.
            self.enter_all();
        }
        for SendAway { worker, done } in leaving {
            let mut gone: Vec<Waiter> = self.suspended.extract_if(.., |waiter| waiter.is_of(&worker)).collect();
            if let Some(queue) = self.queues.get_mut(&worker.queue) {
                gone.extend(queue.take_if(|waiter| waiter.is_of(&worker)));
            }
            let deciding = self.queues.get_mut(&worker.queue).filter(|queue| queue.deciding);
            gone.into_iter().for_each(|waiter| waiter.end(&self.requeue));
            match deciding {
                // The decision may include a request of the worker.
                Some(queue) => queue.leaving.push(SendAway { worker, done }),
                // The remover may have stopped waiting.
                None => drop(done.send(())),
            }
        }
    }

    /// If queue keys may be lost, ends all requests with [`OpError::StaleQueue`]: they look up
    /// their keys again.
    fn answer_stale(&mut self) {
        if !self.notifiers.limited_list().take_stale_keys() {
            return;
        }
        self.enter_all();
        for queue in self.queues.keys().copied().collect::<Vec<_>>() {
            self.hand_over(queue);
        }
        for queue in self.queues.values_mut().filter(|queue| queue.deciding) {
            queue.stale = true;
        }
        for waiter in self.suspended.drain(..) {
            drop(waiter.reply.send(Err(OpError::StaleQueue)));
        }
    }
}

impl Queue {
    fn insert(&mut self, waiter: Waiter) {
        let before = self.waiters.iter().rposition(|other| other.turn < waiter.turn);
        self.waiters.insert(before.map_or(0, |before| before + 1), waiter);
    }

    fn take_if(&mut self, wanted: impl Fn(&Waiter) -> bool) -> Vec<Waiter> {
        if !self.waiters.iter().any(&wanted) {
            return Vec::new();
        }
        let (taken, rest): (VecDeque<Waiter>, _) = std::mem::take(&mut self.waiters).into_iter().partition(wanted);
        self.waiters = rest;
        taken.into()
    }

    /// Takes the first requests, up to [`RUNS_MAX`] runs.
    fn take_first(&mut self) -> Vec<Waiter> {
        let (mut room, mut first) = (RUNS_MAX, Vec::new());
        while let Some(waiter) = self.waiters.front() {
            let tasks = usize::from(waiter.request.tasks);
            if !first.is_empty() && tasks > room {
                break;
            }
            room = room.saturating_sub(tasks);
            first.extend(self.waiters.pop_front());
        }
        first
    }
}

async fn decide(
    queue: i32,
    mut claimer: Claimer,
    waiters: Vec<Waiter>,
    sequenced: ReadSequenced,
    marks: AdmissionMarks,
) -> Done {
    let began = Instant::now();
    let workers: Vec<Worker<'_>> = waiters.iter().map(|waiter| waiter.request.claims_as()).collect();
    let name = waiters.first().map(|waiter| waiter.request.queue.as_str()).unwrap_or_default();
    let found = decide_once(queue, &mut claimer, name, &waiters, &workers, (sequenced(), &marks)).await;
    let found = match found {
        Ok(Outcome::NotLimited) => Ok(DecisionResult::NotLimited),
        Ok(Outcome::Claimed(Claims { rows, more, next_in })) => {
            let (made, left): (Vec<_>, Vec<_>) = rows.into_iter().partition(|row| row.made);
            count_started(Dispatch::Pull, made.len());
            let guarded = claimer.guard_in_order(made, left);
            let claims = claimer.describe(guarded, &workers).await.remove(&queue);
            Ok(DecisionResult::Claims { claims, more, next_in })
        }
        // Another transaction holds the queue for long. The requests keep waiting.
        Err(Failure::Again(error)) => {
            tracing::debug!(error = %error, "a queue is locked; retrying");
            Ok(DecisionResult::Claims { claims: None, more: false, next_in: Some(decision::LOCKED_AGAIN) })
        }
        Err(failure) => Err(failure.report("claim")),
    };
    drop(workers);
    Done::Decided(Box::new(Decided { queue, claimer, waiters, found, began }))
}

async fn decide_once(
    queue: i32,
    claimer: &mut Claimer,
    name: &str,
    waiters: &[Waiter],
    workers: &[Worker<'_>],
    (sequenced, marks): (Sequenced, &AdmissionMarks),
) -> Result<Outcome, Failure> {
    let (batch, started) = (Uuid::new_v4(), Instant::now());
    let requests = Requests {
        queue,
        name,
        places: waiters.iter().map(|waiter| u32::from(waiter.request.tasks)).collect(),
        workers,
        lease: claimer.lease,
        batch,
    };
    let result = claimer.session.run(async |conn| decision::claim(conn, requests, sequenced, marks).await).await;
    if let Err(Failure::Lost(_) | Failure::Fault(_)) = &result {
        claimer.recover(batch, claimer.session.backend());
    }
    metrics::histogram!("tenure_admission_seconds").record(started.elapsed());
    result
}
