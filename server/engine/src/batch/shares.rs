//! ClaimWork requests for a share of a partition group: one statement for each, by two sessions of
//! their own that connect on first use.
//!
//! A request is tried when it arrives, on a notification of its queue, and every second, which also
//! finds that its map is no longer active.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use sqlx::PgConnection;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use uuid::Uuid;

use super::Waiting;
use super::claimer::Claimer;
use super::delivery::{Delivery, Requeue};
use super::low_water_marks::LowWaterMarks;
use super::wait_list::{Answer, ClaimWork, Share, WaitListParts, Waiter};
use crate::failure::{Failure, OpError};
use crate::notifiers::{Notifiers, SendAway, fallbacks_are_on};
use crate::workers::Workers;
use tenure_domain::task::Granted;
use tenure_store::partitions::{self, ShareCheck};
use tenure_store::transitions::claim::{self, ShareWant};

/// Concurrent claims, each with its own session.
const CLAIMS_MAX: usize = 2;
const RETRY_EVERY: Duration = Duration::from_secs(1);
/// How far a request may exceed its wait timeout.
const TIMEOUT_GRAIN: Duration = Duration::from_millis(20);

struct Entry {
    waiter: Waiter,
    /// True if a try may find something.
    ready: bool,
}

/// The result of a try.
struct Tried {
    claimer: Claimer,
    waiter: Waiter,
    /// Number of the queue's last notification before the try.
    generation: u64,
    found: Result<Option<(Vec<Granted>, Delivery)>, OpError>,
    began: Instant,
}

pub(super) struct ShareList {
    inbox: mpsc::Receiver<Waiter>,
    entries: VecDeque<Entry>,
    /// Sequence numbers of requests that are being tried.
    trying: Vec<u64>,
    /// Removed workers with requests being tried, and the numbers of the requests.
    leaving: Vec<(SendAway, Vec<u64>)>,
    turns: u64,
    idle: Vec<Claimer>,
    running: FuturesUnordered<BoxFuture<'static, Tried>>,
    next_timeout: Instant,
    low_water_marks: LowWaterMarks,
    notifiers: Notifiers,
    workers: Workers,
    requeue: Requeue,
    waiting: Waiting,
    stop: CancellationToken,
}

impl ShareList {
    pub(super) fn new(
        parts: &WaitListParts<'_>,
        inbox: mpsc::Receiver<Waiter>,
        waiting: Waiting,
        tasks: &TaskTracker,
        stop: &CancellationToken,
    ) -> Self {
        Self {
            inbox,
            entries: VecDeque::new(),
            trying: Vec::new(),
            leaving: Vec::new(),
            turns: 0,
            idle: (0..CLAIMS_MAX).map(|_| Claimer::new(parts, tasks.clone())).collect(),
            running: FuturesUnordered::new(),
            next_timeout: Instant::now(),
            low_water_marks: parts.low_water_marks.clone(),
            notifiers: parts.notifiers.clone(),
            workers: parts.workers.clone(),
            requeue: parts.requeue.clone(),
            waiting,
            stop: stop.clone(),
        }
    }

    pub(super) async fn work(mut self) {
        let mut retry = tokio::time::interval(RETRY_EVERY);
        retry.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let notifiers = self.notifiers.clone();
        let mut open = true;
        while open || !self.running.is_empty() {
            notifiers.share_list().set_has_requests(!self.entries.is_empty() || !self.running.is_empty());
            self.try_ready();
            let has_waiters = !self.entries.is_empty();
            tokio::select! {
                arrived = self.inbox.recv(), if open => match arrived {
                    Some(waiter) => {
                        self.enter(waiter);
                        self.enter_all();
                    }
                    None => open = false,
                },
                () = notifiers.share_list().notified() => {}
                Some(tried) = self.running.next() => self.finish(tried),
                _ = retry.tick(), if fallbacks_are_on() && has_waiters => {
                    self.entries.iter_mut().for_each(|entry| entry.ready = true);
                }
                () = tokio::time::sleep_until(self.next_timeout.into()), if has_waiters => {}
                () = self.stop.cancelled(), if has_waiters => {}
            }
            let notified = notifiers.share_list().take_claimable();
            for entry in self.entries.iter_mut().filter(|entry| notified.contains(&entry.waiter.worker().queue)) {
                entry.ready = true;
            }
            self.answer_gone();
            self.answer_stale();
            self.answer_timed_out();
            self.waiting.count(self.entries.len(), "claim");
        }
        for claimer in self.idle {
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
        self.notifiers.share_list().set_has_requests(true);
        self.next_timeout = self.next_timeout.min(waiter.until);
        self.entries.push_back(Entry { waiter, ready: true });
    }

    /// Begins a try of each ready request while sessions are idle.
    fn try_ready(&mut self) {
        // Claim nothing for disconnected clients.
        self.entries.retain(|entry| !entry.waiter.reply.is_closed());
        while let Some(at) = self.entries.iter().position(|entry| entry.ready) {
            let Some(claimer) = self.idle.pop() else { return };
            let Some(Entry { mut waiter, .. }) = self.entries.remove(at) else { return };
            if self.workers.is_quarantined(waiter.worker()) {
                // Tried again every second.
                waiter.park();
                self.entries.push_back(Entry { waiter, ready: false });
                self.idle.push(claimer);
                continue;
            }
            let queue = waiter.worker().queue;
            let generation = self.notifiers.generation(queue);
            self.trying.push(waiter.turn);
            let marks = self.low_water_marks.clone();
            self.running.push(Box::pin(attempt(claimer, waiter, marks, generation)));
        }
    }

    fn finish(&mut self, tried: Tried) {
        let Tried { claimer, mut waiter, generation, found, began } = tried;
        self.idle.push(claimer);
        self.trying.retain(|turn| *turn != waiter.turn);
        let is_gone = self.leaving.iter().any(|(away, _)| waiter.is_of(&away.worker));
        for (_, turns) in &mut self.leaving {
            turns.retain(|turn| *turn != waiter.turn);
        }
        let (done, rest): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.leaving).into_iter().partition(|(_, turns)| turns.is_empty());
        self.leaving = rest;
        match found {
            // Removed or quarantined meanwhile: dropping the guard requeues the claims.
            Ok(Some(claims)) if is_gone || self.workers.is_quarantined(waiter.worker()) => {
                drop(claims);
                waiter.end(&self.requeue);
            }
            Ok(Some((claims, delivery))) => {
                let waited = waiter.waited(began);
                // If the receiver is gone, the guard requeues the claims.
                drop(waiter.reply.send(Ok(Answer { claims, delivery, waited })));
            }
            Ok(None) if is_gone => waiter.end(&self.requeue),
            Ok(None) => {
                waiter.park();
                self.next_timeout = self.next_timeout.min(waiter.until);
                let ready = self.notifiers.generation(waiter.worker().queue) != generation;
                self.entries.push_back(Entry { waiter, ready });
            }
            Err(error) => drop(waiter.reply.send(Err(error))),
        }
        for (SendAway { done, .. }, _) in done {
            // The remover may have stopped waiting.
            let _gone = done.send(());
        }
    }

    fn take_if(&mut self, wanted: impl Fn(&Entry) -> bool) -> Vec<Waiter> {
        let (taken, rest): (VecDeque<Entry>, _) = std::mem::take(&mut self.entries).into_iter().partition(wanted);
        self.entries = rest;
        taken.into_iter().map(|entry| entry.waiter).collect()
    }

    /// Ends timed-out requests without claims; all requests once the list is stopped.
    fn answer_timed_out(&mut self) {
        let (now, stopping) = (Instant::now(), self.stop.is_cancelled());
        if self.next_timeout > now && !stopping {
            return;
        }
        // Even a wait timeout of zero gets one try.
        let grace = |entry: &Entry| if entry.ready { RETRY_EVERY } else { Duration::ZERO };
        for waiter in self.take_if(|entry| stopping || entry.waiter.until + grace(entry) <= now) {
            waiter.end(&self.requeue);
        }
        let next = self.entries.iter().map(|entry| entry.waiter.until).min();
        self.next_timeout = next.unwrap_or(now + RETRY_EVERY).max(now + TIMEOUT_GRAIN);
    }

    /// Ends requests of removed workers without claims.
    fn answer_gone(&mut self) {
        let leaving = self.notifiers.share_list().take_gone();
        if !leaving.is_empty() {
            // Includes requests sent before the removal.
            self.enter_all();
        }
        for away in leaving {
            for waiter in self.take_if(|entry| entry.waiter.is_of(&away.worker)) {
                waiter.end(&self.requeue);
            }
            if self.trying.is_empty() {
                let _gone = away.done.send(());
            } else {
                self.leaving.push((away, self.trying.clone()));
            }
        }
    }

    /// If queue keys may be lost, ends all requests so that they look up their keys again.
    fn answer_stale(&mut self) {
        if !self.notifiers.share_list().take_stale_keys() {
            return;
        }
        self.enter_all();
        for entry in self.entries.drain(..) {
            drop(entry.waiter.reply.send(Err(OpError::StaleQueue)));
        }
    }
}

async fn attempt(mut claimer: Claimer, waiter: Waiter, marks: LowWaterMarks, generation: u64) -> Tried {
    let began = Instant::now();
    let found = match &waiter.request.share {
        Some(share) => claim(&mut claimer, &waiter.request, share, &marks).await,
        // Only such requests are sent to this list.
        None => Ok(None),
    };
    Tried { claimer, waiter, generation, found, began }
}

async fn claim(
    claimer: &mut Claimer,
    request: &ClaimWork,
    share: &Share,
    marks: &LowWaterMarks,
) -> Result<Option<(Vec<Granted>, Delivery)>, OpError> {
    let queue = request.worker.queue;
    let marks = marks.get(queue);
    let want = ShareWant {
        queue,
        name: request.queue.as_str(),
        epoch: marks.epoch,
        marks: marks.marks,
        amount: request.tasks,
        worker: request.claims_as(),
        map: share.epoch,
        share: share.index,
    };
    let mut claimed = claim_once(claimer, &want).await;
    if let Err(Failure::Again(_)) = claimed {
        claimed = claim_once(claimer, &want).await;
    }
    let guarded = claimer.guard(claimed.map_err(|failure| failure.report("claim"))?);
    let mut found = claimer.describe(guarded, &[request.claims_as()]).await;
    if let Some(mut claims) = found.remove(&queue) {
        let (claims, delivery) = claims.take(1)?;
        if !claims.is_empty() {
            return Ok(Some((claims, delivery)));
        }
    }
    let (name, index) = (request.queue.as_str(), share.index.cast_signed());
    let check = async |conn: &mut PgConnection| partitions::check_share(conn, queue, name, index).await;
    let checked = claimer.session.run(check).await.map_err(|failure| failure.report("claim"))?;
    diagnose(request, share, checked).map(|()| None)
}

async fn claim_once(claimer: &mut Claimer, want: &ShareWant<'_>) -> Result<Vec<claim::Claimed>, Failure> {
    let (batch, lease) = (Uuid::new_v4(), claimer.lease);
    let claimed = claimer.session.run(async |conn| claim::claim_of_share(conn, want, lease, batch).await).await;
    if let Err(Failure::Lost(_) | Failure::Fault(_)) = &claimed {
        claimer.recover(batch, claimer.session.backend());
    }
    claimed
}

/// Returns why a claim can never find anything, if that is so.
fn diagnose(request: &ClaimWork, share: &Share, check: Option<ShareCheck>) -> Result<(), OpError> {
    let Some(ShareCheck { group, is_owned }) = check else { return Err(OpError::StaleQueue) };
    let Some((group, epoch)) = group.filter(|(group, _)| *group == share.group) else {
        return Err(OpError::Input(format!(
            "the policy of queue {} does not name the partition group {:?}",
            request.queue, share.group
        )));
    };
    if epoch != share.epoch {
        let message = format!("the map {} of partition group {group:?} is not active: it is {epoch}", share.epoch);
        return Err(OpError::StalePartition { message, epoch });
    }
    if !is_owned {
        let message = format!("no member of partition group {group:?} has the index {}", share.index);
        return Err(OpError::StalePartition { message, epoch });
    }
    Ok(())
}
