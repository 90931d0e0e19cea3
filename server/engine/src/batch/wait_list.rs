//! Wait list of claimWork requests and its claim statement: first come first served per queue.
//!
//! Each tick loop that claims has one task with the queues routed to it. A queue is tried when a
//! request arrives, on a notification, and every second in case a notification was lost. Each try
//! is for all waiters of the queue. Requests of a quarantined worker are suspended until their wait
//! timeout or the end of the quarantine.

use std::collections::{HashMap, HashSet, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sqlx::postgres::PgPool;
use tokio::sync::oneshot::error::RecvError;
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use uuid::Uuid;

use super::Waiting;
use super::claim_list::ClaimList;
use super::claimer::{Claimer, Guarded, QueueClaims, recent_claim, shed};
use super::delivery::{Delivery, Requeue};
use super::figures::Figures;
use super::limited::LimitedQueues;
use super::low_water_marks::LowWaterMarks;
use super::order::Order;
use super::shares::ShareClaims;
use super::tick::{APART, Arrivals, ClaimSeats, Committed, Kind, NotDone, Permit, TickLoop, Ticks, Turn};
use crate::decision::marks::AdmissionMarks;
use crate::essential;
use crate::failure::{Failure, OpError};
use crate::notifiers::{Notifiers, SendAway, fallbacks_are_on};
use crate::route::Route;
use crate::sessions::EndSignals;
use crate::traces::{self, RequestSpan, TickTrace};
use crate::workers::Workers;
use tenure_api::ids::TaskQueueId;
use tenure_domain::task::Granted;
use tenure_domain::worker::{Sight, WorkerKey};
use tenure_store::connector::Connector;
use tenure_store::events::Sequenced;
use tenure_store::queues::Queues;
use tenure_store::transitions::claim::{self, Want, Worker};
use tenure_store::worker_removals::Gone;

/// Waiting requests.
pub const WAITING_MAX: usize = 50_000;
/// Runs per claim statement.
pub const RUNS_MAX: usize = 400;
/// Poll interval of queues with waiters, in case a notification was lost.
const RETRY_EVERY: Duration = Duration::from_secs(1);
/// How far a request may exceed its wait timeout. Bounds how often all waiters are scanned.
const TIMEOUT_GRAIN: Duration = Duration::from_millis(20);

#[derive(Debug, Clone)]
pub struct ClaimWork {
    /// The worker, including the key of its queue.
    pub worker: WorkerKey,
    pub queue: TaskQueueId,
    /// Epoch of the session that the claims belong to.
    pub session: Option<i64>,
    /// Maximum number of runs.
    pub tasks: u16,
    /// Only runs of this share.
    pub share: Option<Share>,
    /// Maximum wait for the first run.
    pub wait_timeout: Duration,
}

/// A share of a partition group, as its member knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Share {
    pub group: String,
    /// Number of the map.
    pub epoch: i64,
    pub index: u16,
}

impl ClaimWork {
    pub(super) fn claims_as(&self) -> Worker<'_> {
        let Self { worker: WorkerKey { group, id, .. }, session, .. } = self;
        Worker { group, id, session: *session }
    }
}

/// Answer to a request. Its guard requeues the claims unless they are delivered.
#[derive(Debug)]
pub struct Answer {
    /// Empty if no run became claimable in time.
    pub claims: Vec<Granted>,
    /// Mark as delivered once the response is flushed.
    pub delivery: Delivery,
    /// How long the request waited because there was nothing for it.
    pub waited: Duration,
}

pub(super) struct Waiter {
    pub(super) request: ClaimWork,
    /// Sequence number by arrival; 0 before the request is in the list.
    pub(super) turn: u64,
    pub(super) reply: oneshot::Sender<Result<Answer, OpError>>,
    pub(super) until: Instant,
    /// End of the first try that found nothing, or time of the suspension.
    pub(super) parked: Option<Instant>,
    /// The request, if its trace is recorded.
    pub(super) span: Option<Arc<RequestSpan>>,
}

impl Waiter {
    pub(super) fn park(&mut self) {
        self.parked.get_or_insert_with(Instant::now);
    }

    pub(super) fn waited(&self, until: Instant) -> Duration {
        self.parked.map_or(Duration::ZERO, |parked| until.saturating_duration_since(parked))
    }

    /// Ends the request with claims of a try that began at `began`. If the caller is gone, the guard
    /// requeues them.
    pub(super) fn answer(self, claims: Vec<Granted>, delivery: Delivery, began: Instant) {
        let waited = self.waited(began);
        drop(self.reply.send(Ok(Answer { claims, delivery, waited })));
    }

    /// Ends the request without claims. The caller may be gone.
    pub(super) fn end(self, requeue: &Requeue) {
        let waited = self.waited(Instant::now());
        drop(self.reply.send(Ok(Answer { claims: Vec::new(), delivery: requeue.guard(Vec::new()), waited })));
    }

    pub(super) fn worker(&self) -> &WorkerKey {
        &self.request.worker
    }

    pub(super) fn is_of(&self, gone: &Gone) -> bool {
        let WorkerKey { queue, group, id } = self.worker();
        *queue == gone.queue && *group == gone.worker_group && *id == gone.worker_id
    }
}

#[derive(Clone)]
struct Queue {
    waiters: mpsc::Sender<Waiter>,
    arrivals: Arrivals,
}

#[derive(Clone)]
pub struct WaitList {
    queues: Vec<Queue>,
    limited: mpsc::Sender<Waiter>,
    /// For requests of a share.
    shares: mpsc::Sender<Waiter>,
    notifiers: Notifiers,
    /// Bounds the waiting requests: the inboxes are emptied at once.
    places: Arc<Semaphore>,
    workers: Workers,
    end_signals: EndSignals,
}

/// Returns the position up to which events are in the log.
pub type ReadSequenced = Arc<dyn Fn() -> Sequenced + Send + Sync>;

pub struct WaitListParts<'a> {
    pub connector: Connector,
    pub pool: PgPool,
    pub queues: Queues,
    pub low_water_marks: LowWaterMarks,
    /// Announces claimable queues and removed workers.
    pub notifiers: Notifiers,
    pub requeue: Requeue,
    pub lease: Duration,
    /// Records when workers were seen and which are quarantined.
    pub workers: Workers,
    pub end_signals: EndSignals,
    pub ticks: &'a Ticks,
    pub sequenced: ReadSequenced,
    pub admission_marks: AdmissionMarks,
}

impl WaitList {
    /// Starts the list. Once stopped, it answers all waiters without claims. It ends when its
    /// sending side is dropped.
    #[must_use]
    pub fn start(parts: &WaitListParts<'_>, tasks: &TaskTracker, stop: &CancellationToken) -> Self {
        let loops = parts.ticks.loops(Kind::Claim);
        let waiting = Waiting::default();
        let start = |(place, tick_loop): (usize, &TickLoop)| {
            let (waiters, inbox) = mpsc::channel(WAITING_MAX.div_ceil(loops.len()));
            let worker = WaitListWorker {
                place,
                seats: parts.ticks.claim_seats(place),
                workers: parts.workers.clone(),
                suspended: Vec::new(),
                admitted: Instant::now(),
                turns: 0,
                inbox,
                notifiers: parts.notifiers.clone(),
                requeue: parts.requeue.clone(),
                batch: ClaimBatch::new(parts, tick_loop.permit(), tasks.clone()),
                waiters: HashMap::new(),
                waiting: waiting.clone(),
                ready: HashSet::new(),
                order: Order::default(),
                next_timeout: Instant::now(),
                stop: stop.clone(),
            };
            essential::spawn(tasks, worker.work());
            Queue { waiters, arrivals: tick_loop.arrivals() }
        };
        let queues = loops.iter().enumerate().map(start).collect();
        let (limited, inbox) = mpsc::channel(WAITING_MAX);
        let list = ClaimList::new(LimitedQueues::new(parts), parts, inbox, waiting.clone(), tasks, stop);
        essential::spawn(tasks, list.work());
        let (shares, inbox) = mpsc::channel(WAITING_MAX);
        let list = ClaimList::new(ShareClaims::new(parts), parts, inbox, waiting, tasks, stop);
        essential::spawn(tasks, list.work());
        Self {
            queues,
            limited,
            shares,
            notifiers: parts.notifiers.clone(),
            places: Arc::new(Semaphore::new(WAITING_MAX)),
            workers: parts.workers.clone(),
            end_signals: parts.end_signals.clone(),
        }
    }

    /// Adds a request and waits for its answer, at most until its session ends.
    pub async fn claim(&self, request: ClaimWork) -> Result<Answer, OpError> {
        let _place = self.places.try_acquire().map_err(|_| shed())?;
        let (reply, answer) = oneshot::channel();
        let until = Instant::now() + request.wait_timeout;
        let (worker, session, is_of_share) = (request.worker.clone(), request.session, request.share.is_some());
        self.workers.saw(worker.clone(), Sight::ClaimWork);
        let waiter = Waiter { request, turn: 0, reply, until, parked: None, span: traces::current() };
        if is_of_share {
            self.shares.try_send(waiter).map_err(|_| shed())?;
        } else if self.notifiers.is_limited(worker.queue) {
            self.limited.try_send(waiter).map_err(|_| shed())?;
        } else {
            let queue = &self.queues[Route::of_queue(worker.queue).among(self.queues.len())];
            queue.waiters.try_send(waiter).map_err(|_| shed())?;
            queue.arrivals.count();
        }
        let answer = match session {
            None => answer.await,
            Some(epoch) => self.while_live(epoch, answer).await,
        };
        let answer = answer.unwrap_or(Err(OpError::Unavailable))?;
        self.workers.claimed(worker, Sight::ClaimWork, answer.claims.iter().map(recent_claim));
        Ok(answer)
    }

    /// Waits for the answer or the end of the session. After the latter the wait list finds its
    /// caller gone, and requeues any claims just made.
    async fn while_live(&self, epoch: i64, answer: Reply) -> Result<Result<Answer, OpError>, RecvError> {
        let mut ended = self.end_signals.subscribe(epoch);
        tokio::select! {
            biased;
            answer = answer => answer,
            by = ended.ended() => Ok(Err(OpError::SessionEnded(by))),
        }
    }
}

type Reply = oneshot::Receiver<Result<Answer, OpError>>;

struct WaitListWorker {
    /// Index of its tick loop among the claiming loops.
    place: usize,
    seats: ClaimSeats,
    workers: Workers,
    /// Requests of quarantined workers; usually none.
    suspended: Vec<Waiter>,
    /// Time of the last check for ended quarantines.
    admitted: Instant,
    turns: u64,
    inbox: mpsc::Receiver<Waiter>,
    notifiers: Notifiers,
    requeue: Requeue,
    batch: ClaimBatch,
    waiters: HashMap<i32, VecDeque<Waiter>>,
    waiting: Waiting,
    /// Queues worth trying.
    ready: HashSet<i32>,
    order: Order,
    /// No later than the next wait timeout.
    next_timeout: Instant,
    stop: CancellationToken,
}

impl WaitListWorker {
    async fn work(mut self) {
        let mut retry = tokio::time::interval(RETRY_EVERY);
        retry.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            self.ready.retain(|queue| self.waiters.contains_key(queue));
            self.notifiers.wait_list(self.place).set_has_requests(!self.waiters.is_empty());
            let mut turn = None;
            if self.ready.is_empty() {
                if !self.waiters.is_empty() && !self.batch.is_apart() {
                    // Lets a tick claim the runs that it makes claimable.
                    self.seats.open_for_new_runs();
                }
                tokio::select! {
                    invited = self.seats.invited() => turn = invited,
                    arrived = self.inbox.recv() => match arrived {
                        Some(waiter) => self.enter(waiter),
                        None => break,
                    },
                    () = self.notifiers.wait_list(self.place).notified() => {}
                    _ = retry.tick(), if fallbacks_are_on() => self.ready.extend(self.waiters.keys()),
                    () = tokio::time::sleep_until(self.next_timeout.into()), if self.has_waiters() => {}
                    () = self.stop.cancelled(), if self.has_waiters() => {}
                }
                let granted = self.seats.close();
                turn = turn.or(granted);
            }
            self.enter_all();
            if turn.is_none() && !self.ready.is_empty() && !self.batch.is_apart() {
                turn = self.seats.enter().await;
                self.enter_all();
            }
            if let Some(turn) = &turn {
                let queues = turn.claimable().into_iter().filter(|queue| self.waiters.contains_key(queue));
                self.ready.extend(queues.collect::<Vec<_>>());
            }
            self.answer_gone();
            self.answer_stale();
            self.admit();
            if self.stop.is_cancelled() {
                self.answer_timed_out();
            }
            // Attempt first: even a request without a wait timeout gets one try.
            self.attempt(turn).await;
            self.answer_timed_out();
        }
        self.batch.close().await;
    }

    fn enter_all(&mut self) {
        while let Ok(waiter) = self.inbox.try_recv() {
            self.enter(waiter);
        }
        let notified = self.notifiers.wait_list(self.place).take_claimable();
        self.ready.extend(notified.into_iter().filter(|queue| self.waiters.contains_key(queue)));
    }

    fn has_waiters(&self) -> bool {
        !self.waiters.is_empty() || !self.suspended.is_empty()
    }

    fn enter(&mut self, mut waiter: Waiter) {
        if waiter.turn == 0 {
            self.turns += 1;
            waiter.turn = self.turns;
        }
        self.notifiers.wait_list(self.place).set_has_requests(true);
        self.next_timeout = self.next_timeout.min(waiter.until);
        self.ready.insert(waiter.worker().queue);
        let queue_waiters = self.waiters.entry(waiter.worker().queue).or_default();
        // At the end, or at its former position.
        let position = queue_waiters.iter().rposition(|other| other.turn < waiter.turn).map_or(0, |before| before + 1);
        queue_waiters.insert(position, waiter);
    }

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

    /// Ends timed-out requests without claims; all requests once the list is stopped.
    fn answer_timed_out(&mut self) {
        let (now, stopping, requeue) = (Instant::now(), self.stop.is_cancelled(), &self.requeue);
        if self.next_timeout > now && !stopping {
            return;
        }
        self.waiting.count(self.waiters.values().map(VecDeque::len).sum(), "claim");
        let mut next = now + RETRY_EVERY;
        for (queue, queue_waiters) in &mut self.waiters {
            // Requests left out of the last statement get a try first.
            let grace = if self.ready.contains(queue) { RETRY_EVERY } else { Duration::ZERO };
            let over = |waiter: &Waiter| stopping || waiter.until + grace <= now;
            if queue_waiters.iter().any(over) {
                let (leaving, rest): (VecDeque<Waiter>, _) = std::mem::take(queue_waiters).into_iter().partition(over);
                *queue_waiters = rest;
                leaving.into_iter().for_each(|waiter| waiter.end(requeue));
            }
            next = queue_waiters.iter().fold(next, |next, waiter| next.min(waiter.until));
        }
        self.waiters.retain(|_, queue_waiters| !queue_waiters.is_empty());
        for waiter in self.suspended.extract_if(.., |waiter| stopping || waiter.until <= now) {
            waiter.end(requeue);
        }
        let first = self.suspended.iter().map(|waiter| waiter.until).min();
        self.next_timeout = first.map_or(next, |first| next.min(first)).max(now + TIMEOUT_GRAIN);
    }

    /// Ends requests of removed workers without claims.
    fn answer_gone(&mut self) {
        let leaving = self.notifiers.wait_list(self.place).take_gone();
        if !leaving.is_empty() {
            // Includes requests sent before the removal.
            self.enter_all();
        }
        for SendAway { worker, done } in leaving {
            let mut gone: Vec<Waiter> = self.suspended.extract_if(.., |waiter| waiter.is_of(&worker)).collect();
            if let Some(queue_waiters) = self.waiters.get_mut(&worker.queue) {
                let (leaving, rest): (VecDeque<Waiter>, _) =
                    std::mem::take(queue_waiters).into_iter().partition(|waiter| waiter.is_of(&worker));
                *queue_waiters = rest;
                gone.extend(leaving);
            }
            gone.into_iter().for_each(|waiter| waiter.end(&self.requeue));
            // The remover may have stopped waiting.
            let _ = done.send(());
        }
        self.waiters.retain(|_, queue_waiters| !queue_waiters.is_empty());
    }

    /// If queue keys may be lost, ends all requests so that they look up their keys again.
    fn answer_stale(&mut self) {
        if !self.notifiers.wait_list(self.place).take_stale_keys() {
            return;
        }
        self.enter_all();
        let waiting = self.waiters.drain().flat_map(|(_, queue_waiters)| queue_waiters);
        for waiter in waiting.chain(self.suspended.drain(..)) {
            drop(waiter.reply.send(Err(OpError::StaleQueue)));
        }
        self.ready.clear();
    }

    /// Runs one statement for all ready queues, in this tick if there is one.
    async fn attempt(&mut self, turn: Option<Turn>) {
        let mut requests = Vec::new();
        let mut room = RUNS_MAX;
        for &queue in &self.ready {
            let Some(queue_waiters) = self.waiters.get_mut(&queue) else { continue };
            if self.notifiers.is_limited(queue) {
                // Its requests belong in the other list.
                queue_waiters.drain(..).for_each(|waiter| drop(waiter.reply.send(Err(OpError::StaleQueue))));
                continue;
            }
            // Claim nothing for disconnected clients.
            queue_waiters.retain(|waiter| !waiter.reply.is_closed());
            if self.workers.any_quarantined(queue) {
                let quarantined = |waiter: &Waiter| self.workers.is_quarantined(waiter.worker());
                let (mut suspended, free): (VecDeque<Waiter>, _) = queue_waiters.drain(..).partition(quarantined);
                *queue_waiters = free;
                suspended.iter_mut().for_each(Waiter::park);
                self.suspended.extend(suspended);
            }
        }
        for queue in self.order.begin(&self.ready) {
            let Some(queue_waiters) = self.waiters.get(&queue) else { continue };
            let before = requests.len();
            for waiter in queue_waiters {
                let tasks = usize::from(waiter.request.tasks);
                if tasks > room || requests.len() == super::BATCH_MEMBERS_MAX {
                    break;
                }
                room -= tasks;
                requests.push(&waiter.request);
            }
            if requests.len() == before && !queue_waiters.is_empty() {
                self.order.pass_over(queue);
            }
        }
        if requests.is_empty() {
            self.waiters.retain(|_, queue_waiters| !queue_waiters.is_empty());
            return;
        }
        // Positions of each queue's waiters in the statement, from 1.
        let mut positions: HashMap<i32, Range<usize>> = HashMap::new();
        for (position, request) in (1..).zip(&requests) {
            positions.entry(request.worker.queue).or_insert(position..position).end = position + 1;
        }
        let began = Instant::now();
        let found = self.batch.run(&requests, turn).await;
        let tick = self.batch.tick.take();
        match found {
            Ok(mut claims_found) => {
                for (queue, positions) in positions {
                    self.deliver(queue, positions, claims_found.remove(&queue), (began, &tick));
                }
            }
            Err(error) => {
                for (queue, positions) in positions {
                    self.fail(queue, positions.len(), &error);
                }
            }
        }
    }

    /// Delivers the claims of a try that began at `began`, perhaps in a tick, to the first waiters,
    /// in the order assigned by the statement. Waiters without a claim stay.
    fn deliver(
        &mut self,
        queue: i32,
        positions: Range<usize>,
        claims_found: Option<QueueClaims>,
        (began, tick): (Instant, &TickTrace),
    ) {
        let Some(queue_waiters) = self.waiters.get_mut(&queue) else { return };
        let Some(mut claims_found) = claims_found else {
            queue_waiters.iter_mut().take(positions.len()).for_each(Waiter::park);
            self.ready.remove(&queue);
            self.order.serve(queue, false);
            return;
        };
        let (mut waiting, asked): (VecDeque<Waiter>, _) = (VecDeque::new(), positions.len());
        for position in positions {
            let Some(mut waiter) = queue_waiters.pop_front() else { break };
            let (claims, delivery) = match claims_found.take(position) {
                Ok((claims, _)) if claims.is_empty() => {
                    waiter.park();
                    waiting.push_back(waiter);
                    continue;
                }
                Ok(assigned) => assigned,
                Err(error) => {
                    drop(waiter.reply.send(Err(error)));
                    continue;
                }
            };
            #[cfg(feature = "test-util")]
            let claims = tenure_store::breakage::perhaps_twice(claims);
            // Quarantined meanwhile: dropping the guard requeues the claims.
            if self.workers.is_quarantined(waiter.worker()) {
                waiter.park();
                self.suspended.push(waiter);
                continue;
            }
            if let (Some(tick), Some(span)) = (tick, &waiter.span) {
                tick.link(span);
            }
            waiter.answer(claims, delivery, began);
        }
        if claims_found.more && waiting.len() == asked {
            self.order.pass_over(queue);
        } else {
            self.order.serve(queue, claims_found.more);
        }
        if !claims_found.more && !waiting.is_empty() {
            // No run is left for these waiters or later ones.
            self.ready.remove(&queue);
        }
        for waiter in waiting.into_iter().rev() {
            queue_waiters.push_front(waiter);
        }
        if queue_waiters.is_empty() {
            self.waiters.remove(&queue);
            self.ready.remove(&queue);
        }
    }

    fn fail(&mut self, queue: i32, count: usize, error: &OpError) {
        let Some(queue_waiters) = self.waiters.get_mut(&queue) else { return };
        for waiter in queue_waiters.drain(..count.min(queue_waiters.len())) {
            drop(waiter.reply.send(Err(error.clone())));
        }
        if queue_waiters.is_empty() {
            self.waiters.remove(&queue);
        }
        self.ready.remove(&queue);
    }
}

/// Runs claim statements. A statement is repeated only if it did nothing. Its claims are guarded
/// before anything else, such as describing, can fail.
struct ClaimBatch {
    claimer: Claimer,
    low_water_marks: LowWaterMarks,
    permit: Permit,
    /// Until then statements do not join ticks.
    apart_until: Option<Instant>,
    /// The tick of the last statement.
    tick: TickTrace,
    figures: Option<Figures>,
}

impl ClaimBatch {
    fn new(parts: &WaitListParts<'_>, permit: Permit, tracker: TaskTracker) -> Self {
        let (low_water_marks, claimer) = (parts.low_water_marks.clone(), Claimer::new(parts, tracker));
        Self { claimer, low_water_marks, permit, apart_until: None, tick: None, figures: None }
    }

    async fn close(self) {
        self.claimer.session.close().await;
    }

    /// True while statements stay out of ticks because one has undone a tick.
    fn is_apart(&self) -> bool {
        self.apart_until.is_some_and(|until| Instant::now() < until)
    }

    /// Claims for all requests, in this tick if there is one. Returns claims by queue. A failure
    /// after claiming requeues them.
    async fn run(&mut self, requests: &[&ClaimWork], turn: Option<Turn>) -> Result<HashMap<i32, QueueClaims>, OpError> {
        self.figures().members.record(requests.len() as f64);
        let started = Instant::now();
        let (wants, workers) = self.wants(requests);
        let claimed = match turn {
            Some(turn) => self.claim_in_tick(turn, &wants, &workers).await,
            None => self.claim_alone(&wants, &workers).await,
        };
        let result = match claimed {
            Ok(claimed) => Ok(self.claimer.describe(claimed, &workers).await),
            Err(failure) => Err(failure.report("claim")),
        };
        self.figures().seconds.record(started.elapsed());
        result
    }

    fn figures(&mut self) -> &Figures {
        self.figures.get_or_insert_with(|| Figures::of("claim"))
    }

    fn wants<'a>(&self, requests: &[&'a ClaimWork]) -> (Vec<Want<'a>>, Vec<Worker<'a>>) {
        let mut wants: Vec<Want<'a>> = Vec::new();
        let mut workers = Vec::with_capacity(requests.len());
        for &request in requests {
            let queue = request.worker.queue;
            workers.push(request.claims_as());
            let position = i32::try_from(workers.len()).unwrap_or(i32::MAX);
            // The wait list keeps members of one queue adjacent.
            if wants.last().is_none_or(|want| want.queue != queue) {
                let low_water_marks = self.low_water_marks.get(queue);
                wants.push(Want {
                    queue,
                    name: request.queue.as_str(),
                    epoch: low_water_marks.epoch,
                    marks: low_water_marks.marks,
                    slots: Vec::new(),
                });
            }
            if let Some(want) = wants.last_mut() {
                want.slots.extend(std::iter::repeat_n(position, usize::from(request.tasks)));
            }
        }
        (wants, workers)
    }

    async fn claim_in_tick(
        &mut self,
        turn: Turn,
        wants: &[Want<'_>],
        workers: &[Worker<'_>],
    ) -> Result<Guarded, Failure> {
        let batch = Uuid::new_v4();
        let is_for_new_runs = turn.is_for_new_runs();
        match turn.run(claim::statement(wants, workers, self.claimer.lease, batch)).await {
            Ok(Committed { rows, trace }) => {
                self.tick = trace;
                match rows.decode() {
                    Ok(rows) => Ok(self.claimer.guard(rows)),
                    Err(error) => {
                        self.claimer.recover(batch, None);
                        Err(Failure::new(error))
                    }
                }
            }
            // The creates' session is unusable and nothing ran. The own session tries the waiters
            // every second.
            Err(NotDone::Unknown(Failure::NotRun(_), _)) if is_for_new_runs => Ok(self.claimer.guard(Vec::new())),
            Err(NotDone::Unknown(failure, backend)) => {
                if !matches!(failure, Failure::NotRun(_)) {
                    self.claimer.recover(batch, backend);
                }
                Err(failure)
            }
            Err(why @ (NotDone::Undone | NotDone::Spoiled)) => {
                if matches!(why, NotDone::Spoiled) {
                    self.apart_until = Some(Instant::now() + APART);
                }
                self.claim_alone(wants, workers).await
            }
        }
    }

    async fn claim_alone(&mut self, wants: &[Want<'_>], workers: &[Worker<'_>]) -> Result<Guarded, Failure> {
        let permit = self.permit.clone();
        let held = permit.take().await;
        let mut claimed = self.claim(wants, workers).await;
        if let Err(Failure::Again(_)) = claimed {
            claimed = self.claim(wants, workers).await;
        }
        drop(held);
        claimed
    }

    async fn claim(&mut self, wants: &[Want<'_>], workers: &[Worker<'_>]) -> Result<Guarded, Failure> {
        let batch = Uuid::new_v4();
        let lease = self.claimer.lease;
        let result =
            self.claimer.session.run(async |conn| claim::claim(conn, wants, workers, lease, batch).await).await;
        if let Err(Failure::Lost(_) | Failure::Fault(_)) = &result {
            self.claimer.recover(batch, self.claimer.session.backend());
        }
        Ok(self.claimer.guard(result?))
    }
}
