//! The claim loop. Runs come from calls for work, of the consumer or of a source, or with a
//! balancer from the list of pending runs. In between, runs given to the session are claimed by
//! name.

use std::sync::Arc;
use std::time::Duration;

use tenure_api::work::CLAIM_MAX;
use tokio::time::Instant;

use super::balancer::{Balancer, CanClaim, Offer};
use super::by_name::{self, Lately, PAUSE};
use super::exchange::{Exchanged, exchange};
use super::given::{Given, Reason};
use super::held::begin;
use super::inner::Inner;
use super::jobs::SHORT;
use super::membership::Membership;
use super::offers::PendingRuns;
use super::outbox::Waiting;
use super::slots::Slots;
use super::source::{AnySource, Found, OwnCalls};
use crate::error::chain;
use crate::{Error, retry};

/// Short jobs that were claimed together end together. Their results are gathered for this long
/// after the claims, or until half of the jobs have ended. The call for work with the results of one
/// half then runs beside the jobs of the other.
const GATHER: Duration = SHORT;
/// Until the balancer is asked again about an assigned run, if it named no time.
const ASK_AGAIN_AFTER: Duration = Duration::from_secs(5);

enum Feed {
    Calls(Box<dyn AnySource>),
    Pending { runs: Box<PendingRuns>, balancer: Arc<dyn Balancer>, next: Option<Offer> },
}

struct Claimer<'a> {
    inner: &'a Arc<Inner>,
    feed: Feed,
    /// Second lane of exchanges. None with a source.
    second: Option<OwnCalls>,
    slots: Slots,
    /// Consecutive calls for work without an answer.
    failures: u32,
    lately: Lately,
    /// Set if the last call for work got all it asked for, or short jobs.
    gather_until: Option<Instant>,
}

/// Works until the shutdown, then waits for all jobs.
pub(super) async fn run(inner: &Arc<Inner>, source: Option<Box<dyn AnySource>>) -> Result<(), Error> {
    let second = source.is_none().then(|| OwnCalls::new(&inner.settings));
    let feed = match (source, &inner.settings.balancer) {
        (Some(source), _) => Feed::Calls(source),
        (None, None) => Feed::Calls(Box::new(OwnCalls::new(&inner.settings))),
        (None, Some(balancer)) => {
            let runs = Box::new(PendingRuns::follow(&inner.settings));
            Feed::Pending { runs, balancer: Arc::clone(balancer), next: None }
        }
    };
    let (slots, lately) = (Slots::default(), Lately::default());
    let mut claimer = Claimer { inner, feed, second, slots, failures: 0, lately, gather_until: None };
    let claimed = {
        let mut claiming = std::pin::pin!(claimer.claim_all());
        tokio::select! {
            claimed = &mut claiming => claimed,
            // A claim in progress is awaited, but must not delay the jobs' stop.
            () = inner.orders.shutdown.cancelled() => {
                inner.jobs.shut_down();
                claiming.await
            }
        }
    };
    // A refused worker, or one whose name was taken over, logs its error instead.
    if claimed.is_ok() && *inner.membership.borrow() != Membership::Waiting {
        let name = &inner.settings.name;
        tracing::info!(worker.group = %name.group, worker.id = %name.id, tasks = claimer.slots.taken(), "worker stops");
    }
    claimer.stop().await;
    claimed
}

impl Claimer<'_> {
    async fn claim_all(&mut self) -> Result<(), Error> {
        while let Some((terms, results)) = self.room().await? {
            if let Some((offer, given)) = self.next_by_name() {
                self.inner.outbox.put_back(results);
                self.inner.outbox.hold(false);
                self.claim_by_name(terms, offer, given).await;
            } else {
                self.find(terms, results).await?;
            }
        }
        Ok(())
    }

    /// Waits for capacity and permission to claim. Returns the results for the next call for work
    /// too. None at a shutdown.
    async fn room(&mut self) -> Result<Option<(Membership, Vec<Waiting>)>, Error> {
        let inner = self.inner;
        let (mut frozen, mut membership) = (inner.orders.frozen.subscribe(), inner.membership.subscribe());
        let mut patience = None;
        loop {
            self.slots.collect()?;
            if inner.orders.shutdown.is_cancelled() {
                return Ok(None);
            }
            let terms = *membership.borrow_and_update();
            let may_claim = !*frozen.borrow_and_update() && terms != Membership::Waiting;
            let takes_results = may_claim && matches!(&self.feed, Feed::Calls(source) if source.takes_results());
            inner.outbox.hold(takes_results);
            let mut wake = if takes_results { self.gathers() } else { None };
            if may_claim && wake.is_none() {
                let results = if takes_results { inner.outbox.take() } else { Vec::new() };
                // A job whose result is about to be sent frees its slot.
                if self.slots.taken() < inner.settings.capacity.saturating_add(results.len()) {
                    let Some(until) = self.not_before() else { return Ok(Some((terms, results))) };
                    inner.outbox.put_back(results);
                    inner.outbox.hold(false);
                    tokio::select! {
                        () = inner.orders.shutdown.cancelled() => {}
                        () = tokio::time::sleep_until(until) => {}
                    }
                    continue;
                }
                wake = wait_for_slots(inner, results, &mut patience);
            }
            tokio::select! {
                () = inner.orders.shutdown.cancelled() => {}
                Ok(()) = frozen.changed() => {}
                Ok(()) = membership.changed() => {}
                Some(ended) = self.slots.next_end() => ended?,
                () = inner.outbox.arrival(), if takes_results => {}
                () = tokio::time::sleep_until(wake.unwrap_or_else(Instant::now)), if wake.is_some() => {}
            }
        }
    }

    /// Returns until when results are gathered. None: the next call for work is due.
    fn gathers(&self) -> Option<Instant> {
        let (waiting, taken) = (self.inner.outbox.waiting(), self.slots.taken());
        let half = taken.div_ceil(2);
        let until = self.gather_until.filter(|until| waiting < half && *until > Instant::now())?;
        self.inner.outbox.wake_at(half);
        Some(until)
    }

    fn not_before(&mut self) -> Option<Instant> {
        match &mut self.feed {
            Feed::Calls(source) => source.not_before(),
            Feed::Pending { .. } => None,
        }
    }

    /// Returns the next run to claim by name, and the reason if it was given.
    fn next_by_name(&mut self) -> Option<(Offer, Option<Reason>)> {
        if let Some(Given { offer, reason }) = self.inner.take_given() {
            return Some((offer, Some(reason)));
        }
        let Feed::Pending { next, .. } = &mut self.feed else { return None };
        let offer = next.take()?;
        // After a repeated event: the claim would be the same one again.
        self.inner.jobs.find(offer.task_id, offer.run_id).is_none().then_some((offer, None))
    }

    /// Starts the job of the run, unless the balancer refuses it now.
    async fn claim_by_name(&mut self, terms: Membership, offer: Offer, given: Option<Reason>) {
        let inner = self.inner;
        let mut pause = Duration::ZERO;
        if let Feed::Pending { runs, balancer, .. } = &mut self.feed {
            let cluster = inner.cluster();
            // A run whose claim got no answer was accepted before, and may be held.
            if given != Some(Reason::Unanswered)
                && let CanClaim::No(until) = balancer.can_claim(&offer, &cluster)
            {
                return put_off(inner, runs, offer, given, until);
            }
            tokio::select! {
                () = inner.orders.shutdown.cancelled() => return,
                () = tokio::time::sleep(balancer.pause(&cluster)) => {}
            }
            pause = PAUSE;
        }
        match by_name::claim(inner, terms, offer, &mut self.lately).await {
            Ok(claim) => {
                let job = begin(Arc::clone(inner), terms, claim);
                self.slots.start(async move {
                    job.await;
                    Ok(())
                });
            }
            Err(after_failure) => pause = pause.max(after_failure),
        }
        tokio::select! {
            () = inner.orders.shutdown.cancelled() => {}
            () = tokio::time::sleep(pause) => {}
        }
    }

    async fn find(&mut self, terms: Membership, results: Vec<Waiting>) -> Result<(), Error> {
        let inner = self.inner;
        let room = inner.settings.capacity.saturating_add(results.len()).saturating_sub(self.slots.taken());
        let source = match &mut self.feed {
            Feed::Calls(source) => source,
            Feed::Pending { runs, next, .. } => {
                tokio::select! {
                    () = inner.orders.shutdown.cancelled() => {}
                    () = inner.given.more() => {}
                    offer = runs.next() => *next = Some(offer?),
                }
                return Ok(());
            }
        };
        source.join(terms.session());
        let (begun, exchanges) = (Instant::now(), !results.is_empty());
        let exchanged = if exchanges {
            let mut lanes: Vec<&mut dyn AnySource> = Vec::new();
            if let Some(second) = &mut self.second {
                second.join(terms.session());
                lanes.push(second);
            }
            lanes.push(&mut **source);
            exchange(inner, lanes, &mut self.slots, terms, (results, room)).await?
        } else {
            let answer = search(inner, &mut **source, terms, room).await;
            answer.map(|answer| Exchanged { answer, asked: room })
        };
        let Some(Exchanged { answer, asked }) = exchanged else { return Ok(()) };
        let pause_until = match answer {
            Ok(found) => {
                self.failures = 0;
                let came_empty = found.is_empty() && !exchanges;
                let is_full = found.len() >= asked.min(CLAIM_MAX.into());
                // Otherwise the results of short jobs would be sent apart, beside the next call.
                let ends_soon = !found.is_empty() && inner.jobs.are_short();
                self.gather_until = (is_full || ends_soon).then(|| Instant::now() + GATHER);
                // Before the first of these jobs ends.
                inner.outbox.hold(source.takes_results());
                found.into_iter().for_each(|found| self.slots.begin(inner, terms, found));
                if came_empty { source.rest_until(begun) } else { begun }
            }
            // An error of an exchange may be about its results.
            Err(error) if !exchanges && source.is_refused(&error) => return Err(error),
            Err(error) => {
                self.failures += 1;
                let failures = self.failures;
                warning!(failures = failures, error = chain(&error), "no answer to the call for work; trying again");
                Instant::now() + inner.settings.client.retry_policy().pause_of(failures, &error, retry::jitter())
            }
        };
        if pause_until > Instant::now() {
            inner.outbox.hold(false);
            tokio::select! {
                () = inner.orders.shutdown.cancelled() => {}
                () = inner.given.more() => {}
                () = tokio::time::sleep_until(pause_until) => {}
            }
        }
        Ok(())
    }

    async fn stop(mut self) {
        self.inner.outbox.hold(false);
        self.inner.orders.shutdown.cancel();
        self.inner.jobs.shut_down();
        match &mut self.feed {
            Feed::Calls(source) => source.stop(),
            Feed::Pending { runs, .. } => runs.stop(),
        }
        // Only the first refusal counts.
        while let Some(_refused) = self.slots.next_end().await {}
        if let Feed::Calls(mut source) = self.feed {
            source.close().await;
        }
    }
}

/// Keeps results that free no slot until answered jobs have ended, which is soon unless they have
/// work to do afterwards. Returns until when they wait; results that have waited are sent apart.
fn wait_for_slots(inner: &Inner, results: Vec<Waiting>, patience: &mut Option<Instant>) -> Option<Instant> {
    if results.is_empty() {
        return None;
    }
    let until = *patience.get_or_insert_with(|| Instant::now() + GATHER);
    if until > Instant::now() {
        inner.outbox.put_back(results);
        return Some(until);
    }
    *patience = None;
    inner.outbox.report_apart(results);
    None
}

/// A run assigned to this worker goes to no other, so the balancer is asked again.
fn put_off(inner: &Inner, runs: &mut PendingRuns, offer: Offer, given: Option<Reason>, until: Option<Instant>) {
    match (given, until) {
        (Some(reason), until) => {
            let now = Instant::now();
            let not_before = until.unwrap_or(now + ASK_AGAIN_AFTER).max(now + PAUSE);
            inner.given.put_back(Given { offer, reason }, not_before);
        }
        (None, Some(until)) => runs.hide(offer, until),
        (None, None) => {}
    }
}

type Answer = Result<Vec<Found>, Error>;

/// Searches once. None at a shutdown, if a run was given to the session, or if a new session has
/// replaced the one of `terms`, whose claims are gone.
///
/// A freeze does not cancel the search, which could leave claims held until their leases end. The
/// server answers when the session reports the freeze; without a session the claims are given back.
async fn search(inner: &Inner, source: &mut dyn AnySource, terms: Membership, room: usize) -> Option<Answer> {
    inner.outbox.hold(false);
    let mut membership = inner.membership.subscribe();
    let replaced = membership.wait_for(|now| *now != terms && *now != Membership::Waiting);
    tokio::select! {
        // Claims that have arrived are given back. An answer still on its way is lost: the server
        // requeues its claims, or their leases end.
        biased;
        answer = source.find(room) => Some(answer),
        () = inner.orders.shutdown.cancelled() => None,
        // A queue that assigns runs grants none to calls for work.
        () = inner.given.more() => None,
        _session = replaced => None,
    }
}
