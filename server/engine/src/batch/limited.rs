//! ClaimWork requests in limited queues: first come first served per queue.
//!
//! A queue is tried when a request arrives, on a notification, and when a rate allows the next
//! start. Every second all queues are polled for startable runs in one statement, in case a
//! notification was lost.
//!
//! Each try is one decision for the queue's first requests, on its own database session. Limited
//! queues are not part of ticks and do not wait for each other.

use std::collections::{HashMap, HashSet, VecDeque};
use std::time::{Duration, Instant};

use sqlx::postgres::PgPool;
use uuid::Uuid;

use super::claim_list::{self, Strategy, Time};
use super::claimer::{Claimer, QueueClaims};
use super::wait_list::{RUNS_MAX, ReadSequenced, WaitListParts, Waiter};
use crate::decision::marks::AdmissionMarks;
use crate::decision::metrics::{Dispatch, count_started};
use crate::decision::{self, Claims, Outcome, Requests};
use crate::failure::{Failure, OpError};
use crate::notifiers::{Notifiers, SendAway, WaitListNotifier};
use tenure_store::admission;
use tenure_store::events::Sequenced;
use tenure_store::transitions::claim::Worker;

type Frame = claim_list::Frame<Done>;

pub(super) enum Done {
    Decided(Box<Decided>),
    Listed(Result<Vec<i32>, sqlx::Error>),
}

pub(super) struct Decided {
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

pub(super) struct LimitedQueues {
    queues: HashMap<i32, Queue>,
    decisions: u64,
    /// Requests of quarantined workers; usually none.
    suspended: Vec<Waiter>,
    looking: bool,
    pool: PgPool,
    sequenced: ReadSequenced,
    marks: AdmissionMarks,
}

impl Strategy for LimitedQueues {
    type Done = Done;

    const SESSIONS: usize = 4;

    fn notifier(notifiers: &Notifiers) -> &WaitListNotifier {
        notifiers.limited_list()
    }

    fn has_waiters(&self) -> bool {
        !self.suspended.is_empty() || self.queues.values().any(|queue| !queue.waiters.is_empty())
    }

    fn count(&self) -> usize {
        self.queues.values().map(|queue| queue.waiters.len()).sum()
    }

    fn next_try(&self) -> Option<Instant> {
        let waiting = self.queues.values().filter(|queue| !queue.ready && !queue.deciding && !queue.waiters.is_empty());
        waiting.filter_map(|queue| queue.next).min()
    }

    fn enter(&mut self, waiter: Waiter) {
        let queue = self.queues.entry(waiter.worker().queue).or_default();
        queue.ready |= !queue.blocked || (queue.waiters.is_empty() && !queue.deciding);
        queue.insert(waiter);
    }

    /// Also marks queues whose next try is due.
    fn notify(&mut self, frame: &Frame, queues: HashSet<i32>) {
        for queue in queues {
            if let Some(queue) = self.queues.get_mut(&queue) {
                (queue.ready, queue.blocked) = (true, false);
            }
        }
        let now = Instant::now();
        for queue in self.queues.values_mut().filter(|queue| queue.next.is_some_and(|next| next <= now)) {
            (queue.ready, queue.blocked, queue.next) = (true, false, None);
        }
        self.resume(frame);
    }

    /// Polls the blocked queues.
    fn look(&mut self, frame: &mut Frame) {
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
        frame.running.push(Box::pin(async move {
            let listed = async {
                let mut conn = pool.acquire().await?;
                admission::list_startable(&mut conn, sequenced, &queues, &marks).await
            };
            Done::Listed(listed.await)
        }));
    }

    /// Begins a decision for each ready queue while database sessions are idle.
    fn try_ready(&mut self, frame: &mut Frame) {
        // Queues without requests are not notified: drop their state.
        self.queues.retain(|_, queue| queue.deciding || !queue.waiters.is_empty());
        let ready = self.queues.iter().filter(|(_, queue)| queue.ready && !queue.deciding);
        let mut ready: Vec<(u64, i32)> = ready.map(|(key, queue)| (queue.tried, *key)).collect();
        ready.sort_unstable();
        for (_, key) in ready {
            let Some(queue) = self.queues.get_mut(&key) else { continue };
            // Claim nothing for disconnected clients.
            queue.waiters.retain(|waiter| !waiter.reply.is_closed());
            if frame.workers.any_quarantined(key) {
                let mut suspended = queue.take_if(|waiter| frame.workers.is_quarantined(waiter.worker()));
                suspended.iter_mut().for_each(Waiter::park);
                self.suspended.extend(suspended);
            }
            if queue.waiters.is_empty() {
                queue.ready = false;
                continue;
            }
            let Some(claimer) = frame.idle.pop() else { return };
            let waiters = queue.take_first();
            (queue.ready, queue.deciding, queue.next) = (false, true, None);
            queue.changes = frame.notifiers.limited_changes();
            self.decisions += 1;
            queue.tried = self.decisions;
            let (sequenced, marks) = (self.sequenced.clone(), self.marks.clone());
            frame.running.push(Box::pin(decide(key, claimer, waiters, sequenced, marks)));
        }
    }

    fn finish(&mut self, frame: &mut Frame, done: Done) {
        match done {
            Done::Decided(decided) => self.finish_decision(frame, *decided),
            Done::Listed(queues) => self.finish_look(frame, queues),
        }
    }

    fn end_timed_out(&mut self, frame: &Frame, time: Time) -> Option<Instant> {
        for queue in self.queues.values_mut() {
            let is_to_be_tried = queue.ready || queue.deciding;
            for waiter in queue.take_if(|waiter| time.is_over(waiter, is_to_be_tried)) {
                waiter.end(&frame.requeue);
            }
        }
        for waiter in self.suspended.extract_if(.., |waiter| time.is_over(waiter, false)) {
            waiter.end(&frame.requeue);
        }
        let waiting = self.queues.values().flat_map(|queue| &queue.waiters).chain(&self.suspended);
        waiting.map(|waiter| waiter.until).min()
    }

    fn send_away(&mut self, frame: &Frame, SendAway { worker, done }: SendAway) {
        let mut gone: Vec<Waiter> = self.suspended.extract_if(.., |waiter| waiter.is_of(&worker)).collect();
        if let Some(queue) = self.queues.get_mut(&worker.queue) {
            gone.extend(queue.take_if(|waiter| waiter.is_of(&worker)));
        }
        let deciding = self.queues.get_mut(&worker.queue).filter(|queue| queue.deciding);
        gone.into_iter().for_each(|waiter| waiter.end(&frame.requeue));
        match deciding {
            // The decision may include a request of the worker.
            Some(queue) => queue.leaving.push(SendAway { worker, done }),
            // The remover may have stopped waiting.
            None => drop(done.send(())),
        }
    }

    fn drop_keys(&mut self) {
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

impl LimitedQueues {
    pub(super) fn new(parts: &WaitListParts<'_>) -> Self {
        Self {
            queues: HashMap::new(),
            decisions: 0,
            suspended: Vec::new(),
            looking: false,
            pool: parts.pool.clone(),
            sequenced: parts.sequenced.clone(),
            marks: parts.admission_marks.clone(),
        }
    }

    fn finish_look(&mut self, frame: &Frame, queues: Result<Vec<i32>, sqlx::Error>) {
        self.looking = false;
        for queue in queues.unwrap_or_default() {
            if let Some(queue) = self.queues.get_mut(&queue) {
                (queue.ready, queue.blocked) = (true, false);
            }
        }
        // A change by a server of another release shows only in `is_limited`.
        for queue in self.queues.keys().copied().filter(|queue| !frame.notifiers.is_limited(*queue)).collect::<Vec<_>>()
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

    fn resume(&mut self, frame: &Frame) {
        if self.suspended.is_empty() {
            return;
        }
        self.suspended.retain(|waiter| !waiter.reply.is_closed());
        let free = self.suspended.extract_if(.., |waiter| !frame.workers.is_quarantined(waiter.worker()));
        for waiter in free.collect::<Vec<_>>() {
            self.enter(waiter);
        }
    }

    /// Delivers the claims of a decision. Requests without claims keep waiting.
    fn finish_decision(&mut self, frame: &mut Frame, decided: Decided) {
        let Decided { queue: key, claimer, waiters, found, began } = decided;
        frame.idle.push(claimer);
        let queue = self.queues.entry(key).or_default();
        queue.deciding = false;
        // Dropped at the end, when no request of these workers waits.
        let leaving = std::mem::take(&mut queue.leaving);
        let is_stale = std::mem::take(&mut queue.stale);
        let (mut claims, more, next_in) = match found {
            Ok(DecisionResult::Claims { claims, more, next_in }) => (claims, more, next_in),
            Ok(DecisionResult::NotLimited) => {
                queue.waiters.extend(waiters);
                frame.notifiers.set_unlimited(key, queue.changes);
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
                    waiter.end(&frame.requeue);
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
                    frame.note_timeout(&waiter);
                    waiter.park();
                    queue.insert(waiter);
                    all_served = false;
                    continue;
                }
            };
            #[cfg(feature = "test-util")]
            let granted = tenure_store::breakage::perhaps_twice(granted);
            // Quarantined meanwhile: dropping the guard requeues the claims.
            if frame.workers.is_quarantined(waiter.worker()) {
                waiter.park();
                self.suspended.push(waiter);
                continue;
            }
            waiter.answer(granted, delivery, began);
        }
        // Later requests were not decided. If an earlier one got nothing, nothing may start for
        // them either.
        queue.ready |= more || (all_served && !queue.waiters.is_empty());
        queue.blocked = !queue.ready;
        queue.next = next_in.map(|next| Instant::now() + next);
        if !frame.notifiers.is_limited(key) {
            self.hand_over(key);
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
