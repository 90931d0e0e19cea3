//! Claiming by a source of the program's own. What has ended while the source is busy goes with its next call for work, in one
//! request; what ends while a call for work waits is reported by itself, at once ([`alone`](super::alone)).

use std::collections::VecDeque;
use std::sync::Arc;

use tenure_api::work::{RESULTS_MAX, RunResult};
use tokio::task::{JoinError, JoinSet};
use tokio::time::Instant;
use tracing::Instrument as _;

use super::balancer::Offer;
use super::by_name::{Lately, claim_given};
use super::claims::{ask_all_to_stop, begin, pause_for, span_of, stop_all};
use super::report::{REPORT_TIMEOUT, Waiting, Waitings};
use super::shared::{Membership, Shared};
use super::source::{AnySource, Found};
use crate::error::chain;
use crate::{Error, retry};

/// A source, and the reports that may go with its calls for work.
pub(super) struct BySource {
    pub source: Box<dyn AnySource>,
    pub reports: Waitings,
}

/// Jobs under way; each ends with an error if the worker turns out not to be allowed to claim.
type Jobs = JoinSet<Result<(), Error>>;

/// What was found, what the source answered to results included; or that it could not be asked.
type Answer = Result<Vec<Found>, Error>;

/// Claims and starts jobs until the shutdown, then waits for all of them.
pub(super) async fn run(shared: &Arc<Shared>, BySource { mut source, reports }: BySource) -> Result<(), Error> {
    let mut jobs = JoinSet::new();
    let worked = {
        // `Ended` goes with the calls for work: what ends afterwards is reported by itself.
        let mut claiming = std::pin::pin!(claim_all(shared, source.as_mut(), Ended::new(reports), &mut jobs));
        tokio::select! {
            worked = &mut claiming => worked,
            // A claim that is on its way is waited for, but no job waits for it.
            () = shared.shutdown.cancelled() => {
                ask_all_to_stop(shared);
                claiming.await
            }
        }
    };
    stop_all(shared, &worked, jobs.len());
    source.stop();
    while let Some(ended) = jobs.join_next().await {
        // Only the first refusal counts.
        let _refused = outcome(ended);
    }
    source.close().await;
    worked
}

async fn claim_all(
    shared: &Arc<Shared>,
    source: &mut dyn AnySource,
    mut reports: Ended,
    jobs: &mut Jobs,
) -> Result<(), Error> {
    let (mut frozen, mut membership) = (shared.frozen.subscribe(), shared.membership.subscribe());
    let (mut failures, mut lately) = (0, Lately::default());
    while !shared.shutdown.is_cancelled() {
        while let Some(ended) = jobs.try_join_next() {
            outcome(ended)?;
        }
        let terms = *membership.borrow_and_update();
        let may_claim = !*frozen.borrow_and_update() && terms != Membership::Waiting;
        let takes_results = source.takes_results() && may_claim;
        let ended = reports.take(if takes_results { RESULTS_MAX } else { 0 });
        // Whose result is on its way makes room.
        let free = shared.settings.capacity.saturating_add(ended.len()).saturating_sub(jobs.len());
        if free == 0 || !may_claim {
            drop(ended);
            tokio::select! {
                () = shared.shutdown.cancelled() => {}
                Ok(()) = frozen.changed() => {}
                Ok(()) = membership.changed() => {}
                Some(ended) = jobs.join_next() => outcome(ended)?,
                () = reports.arrival_for(takes_results) => {}
            }
            continue;
        }
        if let Some(until) = source.not_before() {
            drop(ended);
            rest(until, &mut reports, shared).await;
            continue;
        }
        // A run that is assigned to the session, in a queue that assigns its runs.
        if let Some(given) = shared.take_given() {
            drop(ended);
            tokio::select! {
                () = accept(shared, jobs, terms, given.offer, &mut lately) => {}
                () = reports.refuse() => unreachable!("it has no end"),
            }
            continue;
        }
        source.join(terms.session());
        let (begun, exchanges) = (Instant::now(), !ended.is_empty());
        let answer = if exchanges {
            exchange(source, ended, free, &mut reports, shared).await
        } else {
            search(source, terms, free, &mut reports, shared).await
        };
        let Some(answer) = answer else { break };
        let pause_until = match answer {
            Ok(found) => {
                failures = 0;
                let came_empty = found.is_empty();
                found.into_iter().for_each(|found| start(shared, jobs, terms, found));
                if came_empty && !exchanges { source.rest_until(begun) } else { begun }
            }
            Err(error) if source.is_refused(&error) => return Err(error),
            Err(error) => {
                failures += 1;
                tracing::warn!(failures, error = chain(&error), "no answer to the call for work; trying again");
                let policy = shared.settings.client.retry_policy();
                Instant::now() + policy.pause_of(failures, &error, retry::jitter())
            }
        };
        tokio::select! {
            () = rest(pause_until, &mut reports, shared) => {}
            () = shared.given.more() => {}
        }
    }
    Ok(())
}

/// Looks for work once; none at a shutdown. Finds nothing if a run was given to the session, or if the session has been followed by another,
/// with which its claims went.
async fn search(
    source: &mut dyn AnySource,
    terms: Membership,
    room: usize,
    reports: &mut Ended,
    shared: &Shared,
) -> Option<Answer> {
    let mut membership = shared.membership.subscribe();
    let replaced = membership.wait_for(|now| *now != terms && *now != Membership::Waiting);
    tokio::select! {
        // Claims that have arrived are given back. An answer that is on its way now would be lost: then the server requeues
        // the claims, or their leases end.
        biased;
        answer = source.find(room) => Some(answer),
        () = shared.shutdown.cancelled() => None,
        // Where runs are given to sessions, a call for work finds none.
        () = shared.given.more() => Some(Ok(Vec::new())),
        _session = replaced => Some(Ok(Vec::new())),
        () = reports.refuse() => unreachable!("it has no end"),
    }
}

/// Reports what has ended and looks for work, in one request; none at a shutdown. If that takes long, it is only still for the claims that it may
/// bring: what has ended is reported by itself then, as leases go on.
async fn exchange(
    source: &mut dyn AnySource,
    mut ended: Vec<Waiting>,
    room: usize,
    reports: &mut Ended,
    shared: &Shared,
) -> Option<Answer> {
    let results: Vec<RunResult> = ended.iter().map(|ended| ended.result.clone()).collect();
    let mut asking = source.exchange(&results, room);
    let answer = tokio::select! {
        biased;
        answer = &mut asking => answer,
        () = shared.shutdown.cancelled() => return None,
        () = tokio::time::sleep(REPORT_TIMEOUT) => {
            ended.clear();
            tokio::select! {
                biased;
                answer = &mut asking => answer,
                () = shared.shutdown.cancelled() => return None,
                () = reports.refuse() => unreachable!("it has no end"),
            }
        }
    };
    // Those without an answer are reported by themselves.
    Some(answer.map(|worked| {
        for (ended, verdict) in ended.into_iter().zip(worked.results) {
            ended.answer(verdict);
        }
        worked.claims.into_iter().map(Found::claimed).collect()
    }))
}

/// Waits until then, or until the shutdown.
async fn rest(until: Instant, reports: &mut Ended, shared: &Shared) {
    if until <= Instant::now() {
        return;
    }
    tokio::select! {
        () = shared.shutdown.cancelled() => {}
        () = tokio::time::sleep_until(until) => {}
        () = reports.refuse() => {}
    }
}

fn start(shared: &Arc<Shared>, jobs: &mut Jobs, terms: Membership, found: Found) {
    let shared = Arc::clone(shared);
    jobs.spawn(async move {
        let Some((claim, _kept)) = found.claim().await? else { return Ok(()) };
        let span = span_of(&claim);
        begin(shared, terms, claim).instrument(span).await;
        Ok(())
    });
}

/// Claims a run that was given to the session, and starts it; after a refusal there is a pause.
async fn accept(shared: &Arc<Shared>, jobs: &mut Jobs, terms: Membership, offer: Offer, lately: &mut Lately) {
    match claim_given(shared, terms, offer, lately).await {
        Ok(claim) => {
            let span = span_of(&claim);
            // At once, for a claim that comes twice to be known.
            let job = begin(Arc::clone(shared), terms, claim).instrument(span);
            jobs.spawn(async move {
                job.await;
                Ok(())
            });
        }
        Err(pause) => pause_for(shared, pause).await,
    }
}

/// What became of a job.
fn outcome(ended: Result<Result<(), Error>, JoinError>) -> Result<(), Error> {
    ended.unwrap_or_else(|error| {
        tracing::error!(%error, "a job was not brought to its end; its claim ends with its lease");
        Ok(())
    })
}

/// What has ended and is not on its way yet. Dropped, it is reported by itself.
struct Ended {
    arriving: Waitings,
    arrived: VecDeque<Waiting>,
}

impl Ended {
    fn new(arriving: Waitings) -> Self {
        Self { arriving, arrived: VecDeque::new() }
    }

    async fn arrival(&mut self) {
        if let Some(ended) = self.arriving.recv().await {
            self.arrived.push_back(ended);
        } else {
            // The consumer itself holds a sender.
            std::future::pending::<()>().await;
        }
    }

    /// Waits for one that the next call for work may take, if it takes any.
    async fn arrival_for(&mut self, takes_results: bool) {
        if takes_results {
            self.arrival().await;
        } else {
            self.refuse().await;
        }
    }

    /// What is there, up to so many.
    fn take(&mut self, most: usize) -> Vec<Waiting> {
        while let Ok(ended) = self.arriving.try_recv() {
            self.arrived.push_back(ended);
        }
        // A report that is given up must not be sent: its run may be another worker's.
        self.arrived.retain(Waiting::is_awaited);
        let most = most.min(self.arrived.len());
        self.arrived.drain(..most).collect()
    }

    /// From now on each is reported by itself as it comes. Never returns.
    async fn refuse(&mut self) {
        loop {
            self.arrived.clear();
            self.arrival().await;
        }
    }
}
