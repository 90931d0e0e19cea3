//! The claim loop. Runs come from one of two places: calls for work, of the consumer's own or of the program's source, and with a
//! balancer the list of pending runs. Runs that were given to the session are claimed by name between two of them.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::{JoinError, JoinSet};
use tokio::time::Instant;

use super::balancer::{Balancer, CanClaim, Offer};
use super::by_name::{self, Lately, PAUSE};
use super::given::{Given, Reason};
use super::held::begin;
use super::inner::Inner;
use super::membership::Membership;
use super::offers::PendingRuns;
use super::outbox::{REPORT_TIMEOUT, Waiting};
use super::source::{AnySource, Found, OwnCalls};
use crate::error::chain;
use crate::{Error, RunResult, retry};

/// When the balancer is asked again about a run that is assigned to this worker, if it did not say when.
const ASK_AGAIN_AFTER: Duration = Duration::from_secs(5);

/// Where runs come from.
enum Feed {
    Calls(Box<dyn AnySource>),
    Pending {
        runs: Box<PendingRuns>,
        balancer: Arc<dyn Balancer>,
        /// The next run to be claimed.
        next: Option<Offer>,
    },
}

struct Claimer<'a> {
    inner: &'a Arc<Inner>,
    feed: Feed,
    /// Each job ends with an error if the worker turns out not to be allowed to claim.
    jobs: JoinSet<Result<(), Error>>,
    /// Calls for work without an answer, in a row.
    failures: u32,
    lately: Lately,
}

/// Claims and starts jobs until the shutdown, then waits for all of them.
pub(super) async fn run(inner: &Arc<Inner>, source: Option<Box<dyn AnySource>>) -> Result<(), Error> {
    let feed = match (source, &inner.settings.balancer) {
        (Some(source), _) => Feed::Calls(source),
        (None, None) => Feed::Calls(Box::new(OwnCalls::new(&inner.settings))),
        (None, Some(balancer)) => {
            let runs = Box::new(PendingRuns::follow(&inner.settings));
            Feed::Pending { runs, balancer: Arc::clone(balancer), next: None }
        }
    };
    let mut claimer = Claimer { inner, feed, jobs: JoinSet::new(), failures: 0, lately: Lately::default() };
    let claimed = {
        let mut claiming = std::pin::pin!(claimer.claim_all());
        tokio::select! {
            claimed = &mut claiming => claimed,
            // A claim that is on its way is waited for, but no job waits for it.
            () = inner.orders.shutdown.cancelled() => {
                inner.jobs.shut_down();
                claiming.await
            }
        }
    };
    // Not of one that was refused, or whose name is another process's: that is said once, by its error.
    if claimed.is_ok() && *inner.membership.borrow() != Membership::Waiting {
        let name = &inner.settings.name;
        tracing::info!(worker.group = %name.group, worker.id = %name.id, tasks = claimer.jobs.len(), "worker stops");
    }
    claimer.stop().await;
    claimed
}

impl Claimer<'_> {
    async fn claim_all(&mut self) -> Result<(), Error> {
        while let Some((terms, results)) = self.room().await? {
            if let Some((offer, given)) = self.next_by_name() {
                drop(results);
                hold_results(self.inner, false);
                self.claim_by_name(terms, offer, given).await;
            } else {
                self.find(terms, results).await?;
            }
        }
        Ok(())
    }

    /// Waits until there is room and leave to claim. Returns the terms, and the results that go with the next call for work; none at a
    /// shutdown.
    async fn room(&mut self) -> Result<Option<(Membership, Vec<Waiting>)>, Error> {
        let inner = self.inner;
        let (mut frozen, mut membership) = (inner.orders.frozen.subscribe(), inner.membership.subscribe());
        loop {
            while let Some(ended) = self.jobs.try_join_next() {
                outcome(ended)?;
            }
            if inner.orders.shutdown.is_cancelled() {
                return Ok(None);
            }
            let terms = *membership.borrow_and_update();
            let may_claim = !*frozen.borrow_and_update() && terms != Membership::Waiting;
            let takes_results = may_claim && matches!(&self.feed, Feed::Calls(source) if source.takes_results());
            hold_results(inner, takes_results);
            let results = if takes_results { inner.outbox.take() } else { Vec::new() };
            // A job whose result is on its way makes room.
            if may_claim && self.jobs.len() < inner.settings.capacity.saturating_add(results.len()) {
                let Some(until) = self.not_before() else { return Ok(Some((terms, results))) };
                drop(results);
                hold_results(inner, false);
                tokio::select! {
                    () = inner.orders.shutdown.cancelled() => {}
                    () = tokio::time::sleep_until(until) => {}
                }
                continue;
            }
            tokio::select! {
                () = inner.orders.shutdown.cancelled() => {}
                Ok(()) = frozen.changed() => {}
                Ok(()) = membership.changed() => {}
                Some(ended) = self.jobs.join_next() => outcome(ended)?,
                () = inner.outbox.arrival(), if takes_results => {}
            }
        }
    }

    fn not_before(&mut self) -> Option<Instant> {
        match &mut self.feed {
            Feed::Calls(source) => source.not_before(),
            Feed::Pending { .. } => None,
        }
    }

    /// The next run to be claimed by name, and why if it was given.
    fn next_by_name(&mut self) -> Option<(Offer, Option<Reason>)> {
        if let Some(Given { offer, reason }) = self.inner.take_given() {
            return Some((offer, Some(reason)));
        }
        let Feed::Pending { next, .. } = &mut self.feed else { return None };
        let offer = next.take()?;
        // After a repeated event: the claim of a run that is ours already would be the same one again.
        self.inner.jobs.find(offer.task_id, offer.run_id).is_none().then_some((offer, None))
    }

    /// Claims a run by its name and starts its job, unless the balancer does not want it now.
    async fn claim_by_name(&mut self, terms: Membership, offer: Offer, given: Option<Reason>) {
        let inner = self.inner;
        let mut pause = Duration::ZERO;
        if let Feed::Pending { runs, balancer, .. } = &mut self.feed {
            let cluster = inner.cluster();
            // One whose claim got no answer was wanted, and may be ours.
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
                self.jobs.spawn(async move {
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

    /// Looks for runs once, and starts the jobs of those that were claimed.
    async fn find(&mut self, terms: Membership, results: Vec<Waiting>) -> Result<(), Error> {
        let inner = self.inner;
        let room = inner.settings.capacity.saturating_add(results.len()).saturating_sub(self.jobs.len());
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
        let answer = if exchanges {
            exchange(inner, &mut **source, results, room).await
        } else {
            search(inner, &mut **source, terms, room).await
        };
        let pause_until = match answer {
            None => return Ok(()),
            Some(Ok(found)) => {
                self.failures = 0;
                let came_empty = found.is_empty() && !exchanges;
                found.into_iter().for_each(|found| start(inner, &mut self.jobs, terms, found));
                if came_empty { source.rest_until(begun) } else { begun }
            }
            Some(Err(error)) if source.is_refused(&error) => return Err(error),
            Some(Err(error)) => {
                self.failures += 1;
                let failures = self.failures;
                tracing::warn!(failures, error = chain(&error), "no answer to the call for work; trying again");
                Instant::now() + inner.settings.client.retry_policy().pause_of(failures, &error, retry::jitter())
            }
        };
        if pause_until > Instant::now() {
            hold_results(inner, false);
            tokio::select! {
                () = inner.orders.shutdown.cancelled() => {}
                () = inner.given.more() => {}
                () = tokio::time::sleep_until(pause_until) => {}
            }
        }
        Ok(())
    }

    /// Asks all jobs to stop and waits for them: no more are started.
    async fn stop(mut self) {
        hold_results(self.inner, false);
        self.inner.orders.shutdown.cancel();
        self.inner.jobs.shut_down();
        match &mut self.feed {
            Feed::Calls(source) => source.stop(),
            Feed::Pending { runs, .. } => runs.stop(),
        }
        while let Some(ended) = self.jobs.join_next().await {
            // Only the first refusal counts.
            let _refused = outcome(ended);
        }
        if let Feed::Calls(mut source) = self.feed {
            source.close().await;
        }
    }
}

/// Has results wait for the next call for work of a source, or be reported by themselves.
fn hold_results(inner: &Inner, hold: bool) {
    if inner.settings.has_source {
        inner.outbox.set_open(hold);
    }
}

/// Puts off a run that the balancer does not want now. One that is assigned to this worker goes to no other: the balancer is asked again.
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

/// What was found, or why the source could not be asked.
type Answer = Result<Vec<Found>, Error>;

/// Looks for work once. Nothing at a shutdown, if a run was given to the session, or if the session has been followed by another, with which
/// its claims went. It is not given up at a freeze: claims that are on their way would be held until their leases end. The server answers
/// it when the session says that the consumer is frozen; without a session its claims are given back.
async fn search(inner: &Inner, source: &mut dyn AnySource, terms: Membership, room: usize) -> Option<Answer> {
    hold_results(inner, false);
    let mut membership = inner.membership.subscribe();
    let replaced = membership.wait_for(|now| *now != terms && *now != Membership::Waiting);
    tokio::select! {
        // Claims that have arrived are given back. An answer that is on its way now would be lost: then the server requeues
        // the claims, or their leases end.
        biased;
        answer = source.find(room) => Some(answer),
        () = inner.orders.shutdown.cancelled() => None,
        // Where runs are given to sessions, a call for work finds none.
        () = inner.given.more() => None,
        _session = replaced => None,
    }
}

/// Reports what has ended and looks for work, in one request; nothing at a shutdown. If that takes long, it is only still for the claims
/// that it may bring: what has ended is reported by itself then, as leases go on.
async fn exchange(inner: &Inner, source: &mut dyn AnySource, mut waiting: Vec<Waiting>, room: usize) -> Option<Answer> {
    let results: Vec<RunResult> = waiting.iter().map(|waiting| waiting.result.clone()).collect();
    let mut asking = source.exchange(&results, room);
    let late = tokio::time::sleep(REPORT_TIMEOUT);
    tokio::pin!(late);
    let answer = loop {
        tokio::select! {
            biased;
            answer = &mut asking => break answer,
            () = inner.orders.shutdown.cancelled() => return None,
            () = &mut late, if !waiting.is_empty() => {
                waiting.clear();
                hold_results(inner, false);
            }
        }
    };
    // Those without an answer are reported by themselves.
    Some(answer.map(|worked| {
        for (waiting, verdict) in waiting.into_iter().zip(worked.results) {
            waiting.answer(verdict);
        }
        worked.claims.into_iter().map(Found::claimed).collect()
    }))
}

fn start(inner: &Arc<Inner>, jobs: &mut JoinSet<Result<(), Error>>, terms: Membership, found: Found) {
    let inner = Arc::clone(inner);
    jobs.spawn(async move {
        if let Some((claim, _kept)) = found.claim().await? {
            begin(inner, terms, claim).await;
        }
        Ok(())
    });
}

fn outcome(ended: Result<Result<(), Error>, JoinError>) -> Result<(), Error> {
    ended.unwrap_or_else(|error| {
        tracing::error!(%error, "a job was not brought to its end; its claim ends with its lease");
        Ok(())
    })
}
