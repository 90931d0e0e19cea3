//! ClaimWork requests for a share of a partition group: one statement for each, by two sessions of
//! their own that connect on first use.
//!
//! A request is tried when it arrives, on a notification of its queue, and every second, which also
//! finds that its map is no longer active.

use std::collections::{HashSet, VecDeque};
use std::time::Instant;

use sqlx::PgConnection;
use uuid::Uuid;

use super::claim_list::{self, Strategy, Time};
use super::claimer::Claimer;
use super::delivery::Delivery;
use super::low_water_marks::LowWaterMarks;
use super::wait_list::{ClaimWork, Share, WaitListParts, Waiter};
use crate::failure::{Failure, OpError};
use crate::notifiers::{Notifiers, SendAway, WaitListNotifier};
use tenure_domain::task::Granted;
use tenure_store::partitions::{self, ShareCheck};
use tenure_store::transitions::claim::{self, ShareWant};

type Frame = claim_list::Frame<Tried>;

struct Entry {
    waiter: Waiter,
    /// True if a try may find something.
    ready: bool,
}

/// The result of a try.
pub(super) struct Tried {
    claimer: Claimer,
    waiter: Waiter,
    /// Number of the queue's last notification before the try.
    generation: u64,
    found: Result<Option<(Vec<Granted>, Delivery)>, OpError>,
    began: Instant,
}

pub(super) struct ShareClaims {
    entries: VecDeque<Entry>,
    /// Sequence numbers of requests that are being tried.
    trying: Vec<u64>,
    /// Removed workers with requests being tried, and the numbers of the requests.
    leaving: Vec<(SendAway, Vec<u64>)>,
    low_water_marks: LowWaterMarks,
}

impl ShareClaims {
    pub(super) fn new(parts: &WaitListParts<'_>) -> Self {
        Self {
            entries: VecDeque::new(),
            trying: Vec::new(),
            leaving: Vec::new(),
            low_water_marks: parts.low_water_marks.clone(),
        }
    }

    fn take_if(&mut self, wanted: impl Fn(&Entry) -> bool) -> Vec<Waiter> {
        let (taken, rest): (VecDeque<Entry>, _) = std::mem::take(&mut self.entries).into_iter().partition(wanted);
        self.entries = rest;
        taken.into_iter().map(|entry| entry.waiter).collect()
    }
}

impl Strategy for ShareClaims {
    type Done = Tried;

    const SESSIONS: usize = 2;

    fn notifier(notifiers: &Notifiers) -> &WaitListNotifier {
        notifiers.share_list()
    }

    fn has_waiters(&self) -> bool {
        !self.entries.is_empty()
    }

    fn count(&self) -> usize {
        self.entries.len()
    }

    fn enter(&mut self, waiter: Waiter) {
        self.entries.push_back(Entry { waiter, ready: true });
    }

    fn notify(&mut self, _: &Frame, queues: HashSet<i32>) {
        for entry in self.entries.iter_mut().filter(|entry| queues.contains(&entry.waiter.worker().queue)) {
            entry.ready = true;
        }
    }

    fn look(&mut self, _: &mut Frame) {
        self.entries.iter_mut().for_each(|entry| entry.ready = true);
    }

    fn try_ready(&mut self, frame: &mut Frame) {
        // Claim nothing for disconnected clients.
        self.entries.retain(|entry| !entry.waiter.reply.is_closed());
        while let Some(at) = self.entries.iter().position(|entry| entry.ready) {
            let Some(claimer) = frame.idle.pop() else { return };
            let Some(Entry { mut waiter, .. }) = self.entries.remove(at) else { return };
            if frame.workers.is_quarantined(waiter.worker()) {
                // Tried again every second.
                waiter.park();
                self.entries.push_back(Entry { waiter, ready: false });
                frame.idle.push(claimer);
                continue;
            }
            let queue = waiter.worker().queue;
            let generation = frame.notifiers.generation(queue);
            self.trying.push(waiter.turn);
            let marks = self.low_water_marks.clone();
            frame.running.push(Box::pin(attempt(claimer, waiter, marks, generation)));
        }
    }

    fn finish(&mut self, frame: &mut Frame, tried: Tried) {
        let Tried { claimer, mut waiter, generation, found, began } = tried;
        frame.idle.push(claimer);
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
            Ok(Some(claims)) if is_gone || frame.workers.is_quarantined(waiter.worker()) => {
                drop(claims);
                waiter.end(&frame.requeue);
            }
            Ok(Some((claims, delivery))) => waiter.answer(claims, delivery, began),
            Ok(None) if is_gone => waiter.end(&frame.requeue),
            Ok(None) => {
                waiter.park();
                frame.note_timeout(&waiter);
                let ready = frame.notifiers.generation(waiter.worker().queue) != generation;
                self.entries.push_back(Entry { waiter, ready });
            }
            Err(error) => drop(waiter.reply.send(Err(error))),
        }
        for (SendAway { done, .. }, _) in done {
            // The remover may have stopped waiting.
            let _gone = done.send(());
        }
    }

    fn end_timed_out(&mut self, frame: &Frame, time: Time) -> Option<Instant> {
        for waiter in self.take_if(|entry| time.is_over(&entry.waiter, entry.ready)) {
            waiter.end(&frame.requeue);
        }
        self.entries.iter().map(|entry| entry.waiter.until).min()
    }

    fn send_away(&mut self, frame: &Frame, away: SendAway) {
        for waiter in self.take_if(|entry| entry.waiter.is_of(&away.worker)) {
            waiter.end(&frame.requeue);
        }
        if self.trying.is_empty() {
            // The remover may have stopped waiting.
            let _gone = away.done.send(());
        } else {
            self.leaving.push((away, self.trying.clone()));
        }
    }

    fn drop_keys(&mut self) {
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
