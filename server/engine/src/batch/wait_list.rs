//! The line of waiting claimWork requests: per queue, first come first served.
//!
//! One worker owns the line. A queue is tried when a request for it arrives, when its bell rings, and now and then in
//! case a bell was lost; each try is for everybody in that queue's line, and what is found is handed out from its head.
//! A worker that is quarantined waits aside, until its wait_timeout or its quarantine ends.

use std::collections::{HashMap, HashSet, VecDeque};
use std::ops::Range;
use std::time::{Duration, Instant};

use sqlx::postgres::{PgConnectOptions, PgPool};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use uuid::Uuid;

use super::claim_batch::{ClaimBatch, QueueClaims, WaitingRequest};
use super::delivery::{Delivery, Requeue};
use super::low_water_marks::LowWaterMarks;
use crate::notifiers::{Notifiers, SendAway, fallbacks_are_on};
use crate::ops::OpError;
use crate::workers::Workers;
use tenure_domain::task::Granted;
use tenure_domain::worker::{Recent, Sight, WorkerKey};
use tenure_store::queues::Queues;
use tenure_store::worker_removals::Gone;

/// Requests that may wait in line.
pub const WAITING_MAX: usize = 50_000;
/// Runs that one statement may claim.
pub const RUNS_MAX: usize = 400;
/// A queue with somebody in line is tried at least as often, in case a bell was lost.
const RETRY_EVERY: Duration = Duration::from_secs(1);

/// A claimWork request.
#[derive(Debug, Clone)]
pub struct ClaimWork {
    /// The worker, and the queue that it asks.
    pub worker: WorkerKey,
    /// How many runs at most.
    pub tasks: u16,
    /// How long it waits for the first one.
    pub wait_timeout: Duration,
}

/// What a request gets: claims, and the guard that gives them back unless they are delivered. Empty after a fruitless
/// wait.
#[derive(Debug)]
pub struct Answer {
    /// The claims.
    pub claims: Vec<Granted>,
    /// Who must be told that they were delivered.
    pub delivery: Delivery,
}

/// Somebody in line.
pub(super) struct Waiter {
    pub(super) request: ClaimWork,
    /// Who came earlier has a smaller one; 0 before it stands in line.
    turn: u64,
    reply: oneshot::Sender<Result<Answer, OpError>>,
    until: Instant,
}

impl Waiter {
    fn worker(&self) -> &WorkerKey {
        &self.request.worker
    }

    fn is_of(&self, gone: &Gone) -> bool {
        let WorkerKey { queue, group, id } = self.worker();
        *queue == gone.queue && *group == gone.worker_group && *id == gone.worker_id
    }
}

/// The front of the line: what requests talk to.
#[derive(Clone)]
pub struct WaitList {
    queue: mpsc::Sender<Waiter>,
    workers: Workers,
}

/// What the line works with.
pub struct WaitListParts {
    /// The database.
    pub database: PgConnectOptions,
    /// The pool, for names of queues and recovery.
    pub pool: PgPool,
    /// Names of queues.
    pub queues: Queues,
    /// Where to start scanning.
    pub low_water_marks: LowWaterMarks,
    /// Who rings.
    pub notifiers: Notifiers,
    /// Where undelivered claims go.
    pub requeue: Requeue,
    /// The lease of a claim.
    pub lease: Duration,
    /// Who is seen, and who is quarantined.
    pub workers: Workers,
}

impl WaitList {
    /// Starts the line. When it is stopped, everybody in it is sent away empty; it ends when its front is dropped.
    #[must_use]
    pub fn start(parts: WaitListParts, tasks: &TaskTracker, stop: CancellationToken) -> Self {
        let (queue, inbox) = mpsc::channel(WAITING_MAX);
        let workers = parts.workers.clone();
        let line = WaitListWorker {
            workers: workers.clone(),
            suspended: Vec::new(),
            admitted: Instant::now(),
            turns: 0,
            inbox,
            notifiers: parts.notifiers.clone(),
            requeue: parts.requeue.clone(),
            batch: ClaimBatch::new(parts, tasks.clone()),
            waiters: HashMap::new(),
            ready: HashSet::new(),
            first: HashSet::new(),
            next_timeout: Instant::now(),
            stop,
        };
        tasks.spawn(line.work());
        Self { queue, workers }
    }

    /// Gets in line and waits.
    pub async fn claim(&self, request: ClaimWork) -> Result<Answer, OpError> {
        let (reply, answer) = oneshot::channel();
        let until = Instant::now() + request.wait_timeout;
        let worker = request.worker.clone();
        self.workers.saw(worker.clone(), Sight::ClaimWork);
        let waiter = Waiter { request, turn: 0, reply, until };
        self.queue.try_send(waiter).map_err(|_| OpError::Overloaded("claimWork"))?;
        let answer = answer.await.unwrap_or(Err(OpError::Unavailable))?;
        self.workers.claimed(worker, Sight::ClaimWork, answer.claims.iter().map(claimed));
        Ok(answer)
    }
}

/// What is remembered of a claim.
fn claimed(claim: &Granted) -> Recent {
    let held = super::claim_batch::undelivered(claim);
    Recent { task: held.id, run: held.run, claimed: claim.tenancy.started }
}

struct WaitListWorker {
    workers: Workers,
    /// Workers that are quarantined; few, as a rule nobody.
    suspended: Vec<Waiter>,
    /// When it was last looked whether some of them are not any more.
    admitted: Instant,
    /// How many have come so far.
    turns: u64,
    inbox: mpsc::Receiver<Waiter>,
    notifiers: Notifiers,
    requeue: Requeue,
    batch: ClaimBatch,
    waiters: HashMap<i32, VecDeque<Waiter>>,
    /// Queues worth trying.
    ready: HashSet<i32>,
    /// Those of them that are tried first, because the last statement had no room for their runs.
    first: HashSet<i32>,
    /// When the next one loses wait_timeout, or earlier.
    next_timeout: Instant,
    stop: CancellationToken,
}

impl WaitListWorker {
    async fn work(mut self) {
        let mut retry = tokio::time::interval(RETRY_EVERY);
        retry.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            self.ready.retain(|queue| self.waiters.contains_key(queue));
            if self.ready.is_empty() {
                tokio::select! {
                    arrived = self.inbox.recv() => match arrived {
                        Some(waiter) => self.enter(waiter),
                        None => break,
                    },
                    () = self.notifiers.claimable() => {}
                    _ = retry.tick(), if fallbacks_are_on() => self.ready.extend(self.waiters.keys()),
                    () = tokio::time::sleep_until(self.next_timeout.into()), if self.is_anybody_there() => {}
                    () = self.stop.cancelled(), if self.is_anybody_there() => {}
                }
            }
            while let Ok(waiter) = self.inbox.try_recv() {
                self.enter(waiter);
            }
            self.send_away_gone();
            self.ready.extend(self.notifiers.take_claimable());
            self.admit();
            if self.stop.is_cancelled() {
                self.send_away();
            }
            // First the attempt: somebody without wait_timeout is tried once too.
            self.attempt().await;
            self.send_away();
        }
        self.batch.close().await;
    }

    fn is_anybody_there(&self) -> bool {
        !self.waiters.is_empty() || !self.suspended.is_empty()
    }

    fn enter(&mut self, mut waiter: Waiter) {
        if waiter.turn == 0 {
            self.turns += 1;
            waiter.turn = self.turns;
        }
        self.next_timeout = self.next_timeout.min(waiter.until);
        self.ready.insert(waiter.worker().queue);
        let line = self.waiters.entry(waiter.worker().queue).or_default();
        // At the end, unless it stood in line before.
        let place = line.iter().rposition(|other| other.turn < waiter.turn).map_or(0, |before| before + 1);
        line.insert(place, waiter);
    }

    /// Lets those back into the line who are not quarantined any more.
    fn admit(&mut self) {
        if self.suspended.is_empty() || self.admitted.elapsed() < RETRY_EVERY / 2 {
            return;
        }
        self.admitted = Instant::now();
        self.suspended.retain(|waiter| !waiter.reply.is_closed());
        let free = self.suspended.extract_if(.., |waiter| !self.workers.is_quarantined(waiter.worker()));
        for waiter in free.collect::<Vec<_>>() {
            self.enter(waiter);
        }
    }

    /// Lets go of those whose wait_timeout has ended, with an empty answer; of everybody when the line is stopped.
    fn send_away(&mut self) {
        let (now, stopping, back) = (Instant::now(), self.stop.is_cancelled(), &self.requeue);
        if self.next_timeout > now && !stopping {
            return;
        }
        self.next_timeout = now + RETRY_EVERY;
        let waiting: usize = self.waiters.values().map(VecDeque::len).sum();
        metrics::gauge!("tenure_batch_waiting", "operation" => "claim").set(waiting as f64);
        for line in self.waiters.values_mut() {
            // Everybody is equally patient, so that the head of a line is the first to go.
            while let Some(waiter) = line.pop_front_if(|waiter| stopping || waiter.until <= now) {
                let empty = Answer { claims: Vec::new(), delivery: back.guard(Vec::new()) };
                drop(waiter.reply.send(Ok(empty)));
            }
            if let Some(waiter) = line.front() {
                self.next_timeout = self.next_timeout.min(waiter.until);
            }
        }
        self.waiters.retain(|_, line| !line.is_empty());
        for waiter in self.suspended.extract_if(.., |waiter| stopping || waiter.until <= now) {
            let empty = Answer { claims: Vec::new(), delivery: back.guard(Vec::new()) };
            drop(waiter.reply.send(Ok(empty)));
        }
        let first = self.suspended.iter().map(|waiter| waiter.until).min();
        self.next_timeout = first.map_or(self.next_timeout, |first| self.next_timeout.min(first));
    }

    /// Lets go of those whose worker was removed, with an empty answer.
    fn send_away_gone(&mut self) {
        for SendAway { worker, done } in self.notifiers.take_gone() {
            let mut gone: Vec<Waiter> = self.suspended.extract_if(.., |waiter| waiter.is_of(&worker)).collect();
            if let Some(line) = self.waiters.get_mut(&worker.queue) {
                let (leaving, rest): (VecDeque<Waiter>, _) =
                    std::mem::take(line).into_iter().partition(|waiter| waiter.is_of(&worker));
                *line = rest;
                gone.extend(leaving);
            }
            for waiter in gone {
                let empty = Answer { claims: Vec::new(), delivery: self.requeue.guard(Vec::new()) };
                drop(waiter.reply.send(Ok(empty)));
            }
            // Whoever removes the worker may have stopped listening.
            let _ = done.send(());
        }
        self.waiters.retain(|_, line| !line.is_empty());
    }

    /// One statement for everybody in the queues that are ready.
    async fn attempt(&mut self) {
        let mut asked = Vec::new();
        let mut room = RUNS_MAX;
        for &queue in &self.ready {
            let Some(line) = self.waiters.get_mut(&queue) else { continue };
            // Nothing must be claimed for somebody who hung up.
            line.retain(|waiter| !waiter.reply.is_closed());
            if self.workers.any_quarantined(queue) {
                let quarantined = |waiter: &Waiter| self.workers.is_quarantined(waiter.worker());
                let (aside, free) = line.drain(..).partition(quarantined);
                *line = free;
                self.suspended.extend::<VecDeque<_>>(aside);
            }
        }
        let mut ready: Vec<i32> = self.ready.iter().copied().collect();
        // Queues for which there was no room last time come first, so that they cannot be held up for long.
        ready.sort_by_key(|queue| !self.first.contains(queue));
        for queue in ready {
            let Some(line) = self.waiters.get(&queue) else { continue };
            for waiter in line {
                let tasks = usize::from(waiter.request.tasks);
                if tasks > room || asked.len() == super::BATCH_MEMBERS_MAX {
                    break;
                }
                room -= tasks;
                asked.push(WaitingRequest { queue, request: &waiter.request });
            }
        }
        if asked.is_empty() {
            self.waiters.retain(|_, line| !line.is_empty());
            return;
        }
        // The places of each queue's waiters among all who ask, from 1.
        let mut places: HashMap<i32, Range<usize>> = HashMap::new();
        for (place, asked) in (1..).zip(&asked) {
            places.entry(asked.queue).or_insert(place..place).end = place + 1;
        }
        self.first.clear();
        match self.batch.run(&asked).await {
            Ok(mut found) => {
                for (queue, places) in places {
                    self.hand_out(queue, places, found.remove(&queue));
                }
            }
            Err(error) => {
                for (queue, places) in places {
                    self.fail(queue, places.len(), &error);
                }
            }
        }
    }

    /// Hands the claims of a queue to those at the head of its line: the statement has assigned them in that order. Who gets
    /// nothing stays there.
    fn hand_out(&mut self, queue: i32, places: Range<usize>, found: Option<QueueClaims>) {
        let Some(line) = self.waiters.get_mut(&queue) else { return };
        let Some(mut found) = found else {
            self.ready.remove(&queue);
            return;
        };
        let mut waiting: VecDeque<Waiter> = VecDeque::new();
        for place in places {
            let Some(waiter) = line.pop_front() else { break };
            let (claims, delivery) = match found.take(place) {
                Ok((claims, _)) if claims.is_empty() => {
                    waiting.push_back(waiter);
                    continue;
                }
                Ok(taken) => taken,
                Err(error) => {
                    drop(waiter.reply.send(Err(error)));
                    continue;
                }
            };
            #[cfg(feature = "test-util")]
            let claims = tenure_store::breakage::perhaps_twice(claims);
            // The worker may have been quarantined while the statement ran: dropping the guard requeues the claims.
            if self.workers.is_quarantined(waiter.worker()) {
                self.suspended.push(waiter);
                continue;
            }
            // If the worker hung up meanwhile, the answer comes back here and its guard requeues the claims.
            drop(waiter.reply.send(Ok(Answer { claims, delivery })));
        }
        if found.more {
            self.first.insert(queue);
        } else if !waiting.is_empty() {
            // Nothing was left for these, and so for those behind them.
            self.ready.remove(&queue);
        }
        for waiter in waiting.into_iter().rev() {
            line.push_front(waiter);
        }
        if line.is_empty() {
            self.waiters.remove(&queue);
            self.ready.remove(&queue);
        }
    }

    fn fail(&mut self, queue: i32, asked: usize, error: &OpError) {
        let Some(line) = self.waiters.get_mut(&queue) else { return };
        for waiter in line.drain(..asked.min(line.len())) {
            drop(waiter.reply.send(Err(error.clone())));
        }
        if line.is_empty() {
            self.waiters.remove(&queue);
        }
        self.ready.remove(&queue);
    }
}

/// The batch that a statement is known by when its answer is lost.
pub(super) fn new_batch() -> Uuid {
    Uuid::new_v4()
}
