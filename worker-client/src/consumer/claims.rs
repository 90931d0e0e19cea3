//! Claiming: one request for as many tasks as there is room for, which waits until there are some. With a balancer it is [`by_name`],
//! with a source of the program's own [`by_source`].

use std::sync::Arc;
use std::time::Duration;

use tokio::task::{JoinError, JoinSet};
use tokio::time::Instant;
use tracing::{Instrument as _, Span};

use super::by_name::Lately;
use super::by_source::BySource;
use super::handler::StopReason;
use super::report::give_back;
use super::shared::{Membership, Settings, Shared};
use super::{by_name, by_source, keep};
use crate::error::chain;
use crate::{Claim, Client, Error, RetryPolicy, Worked, retry};

/// The least time between two calls for work that find none, in case the server does not wait.
const CLAIM_INTERVAL: Duration = Duration::from_millis(500);
/// How much longer than it is to wait a call for work may take.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

/// Claims and starts jobs until the shutdown, then waits for all of them.
pub(super) async fn run(shared: &Arc<Shared>, source: Option<BySource>) -> Result<(), Error> {
    if let Some(source) = source {
        return by_source::run(shared, source).await;
    }
    let mut jobs = JoinSet::new();
    let worked = {
        let mut claiming = std::pin::pin!(async {
            match &shared.settings.balancer {
                Some(balancer) => by_name::claim_all(shared, balancer.as_ref(), &mut jobs).await,
                None => claim_all(shared, &mut jobs).await,
            }
        });
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
    while let Some(ended) = jobs.join_next().await {
        say_panic(ended);
    }
    worked
}

/// Asks all jobs to stop: no more are started.
pub(super) fn stop_all(shared: &Shared, worked: &Result<(), Error>, jobs: usize) {
    shared.shutdown.cancel();
    // Not of one that was refused, or whose name is another process's: that is said once, by its error.
    if worked.is_ok() && *shared.membership.borrow() != Membership::Waiting {
        tracing::info!(worker.group = %shared.settings.name.group, worker.id = %shared.settings.name.id, tasks = jobs, "worker stops");
    }
    ask_all_to_stop(shared);
}

pub(super) fn ask_all_to_stop(shared: &Shared) {
    for job in shared.under_way() {
        job.ask_to_stop(StopReason::Shutdown);
    }
}

async fn claim_all(shared: &Arc<Shared>, jobs: &mut JoinSet<()>) -> Result<(), Error> {
    let Settings { client, capacity, .. } = &shared.settings;
    let (mut failures, mut answered, mut lately) = (0, false, Lately::default());
    while let Some(terms) = may_claim(shared, jobs).await {
        // What is assigned to the session, in a queue that assigns its runs.
        if let Some(given) = shared.take_given() {
            match by_name::claim_given(shared, terms, given.offer, &mut lately).await {
                Ok(claim) => start(shared, jobs, terms, claim),
                Err(pause) => pause_for(shared, pause).await,
            }
            continue;
        }
        let begun = Instant::now();
        let Some(answer) = call_for_work(shared, terms, capacity - jobs.len()).await else { continue };
        let pause_until = match answer {
            Ok(worked) => {
                (failures, answered) = (0, true);
                let came_empty = worked.claims.is_empty();
                worked.claims.into_iter().for_each(|claim| start(shared, jobs, terms, claim));
                if came_empty { begun + CLAIM_INTERVAL } else { begun }
            }
            Err(error) if !answered && refuses(&error) => return Err(error),
            Err(error) => {
                failures += 1;
                tracing::warn!(failures, error = chain(&error), "no answer to the call for work; trying again");
                Instant::now() + client.retry_policy().pause_of(failures, &error, retry::jitter())
            }
        };
        tokio::select! {
            () = shared.shutdown.cancelled() => {}
            () = shared.given.more() => {}
            () = tokio::time::sleep_until(pause_until) => {}
        }
    }
    Ok(())
}

/// Waits so long, or until the shutdown.
pub(super) async fn pause_for(shared: &Shared, pause: Duration) {
    tokio::select! {
        () = shared.shutdown.cancelled() => {}
        () = tokio::time::sleep(pause) => {}
    }
}

/// Waits until there is room and leave to claim, and gives the terms; none at a shutdown.
pub(super) async fn may_claim(shared: &Shared, jobs: &mut JoinSet<()>) -> Option<Membership> {
    let (mut frozen, mut membership) = (shared.frozen.subscribe(), shared.membership.subscribe());
    loop {
        while let Some(ended) = jobs.try_join_next() {
            say_panic(ended);
        }
        if shared.shutdown.is_cancelled() {
            return None;
        }
        let (is_frozen, terms) = (*frozen.borrow_and_update(), *membership.borrow_and_update());
        if !is_frozen && terms != Membership::Waiting && jobs.len() < shared.settings.capacity {
            return Some(terms);
        }
        tokio::select! {
            () = shared.shutdown.cancelled() => {}
            Ok(()) = frozen.changed() => {}
            Ok(()) = membership.changed() => {}
            Some(ended) = jobs.join_next() => say_panic(ended),
        }
    }
}

/// Asks once; none at a shutdown, if a run was given to the session, or if the session has been followed by another, with which its claims went.
/// It is not given up at a freeze: claims that are on their way would be held until their leases end. The server answers it when the
/// session says that the consumer is frozen; without a session its claims are given back.
async fn call_for_work(shared: &Shared, terms: Membership, room: usize) -> Option<Result<Worked, Error>> {
    let Settings { client, queue, name, wait, .. } = &shared.settings;
    let client = on_terms(client, terms).with_retry_policy(RetryPolicy::never());
    let mut membership = shared.membership.subscribe();
    let replaced = membership.wait_for(|now| *now != terms && *now != Membership::Waiting);
    tokio::select! {
        // Claims that have arrived are given back. An answer that is on its way now would be lost: then the server requeues
        // them, or their leases end.
        biased;
        answer = tokio::time::timeout(*wait + ANSWER_WITHIN, client.work(queue, name, &[], room, *wait)) => {
            if answer.is_err() {
                tracing::warn!("no answer to the call for work in time; trying again");
            }
            answer.ok()
        }
        () = shared.shutdown.cancelled() => None,
        // Where runs are given to sessions, a call for work finds none.
        () = shared.given.more() => None,
        _session = replaced => None,
    }
}

pub(super) fn on_terms(client: &Client, terms: Membership) -> Client {
    terms.session().map_or_else(|| client.clone(), |session| client.with_session(session))
}

pub(super) fn start(shared: &Arc<Shared>, jobs: &mut JoinSet<()>, terms: Membership, claim: Claim) {
    let span = span_of(&claim);
    // At once, for a claim that comes twice to be known.
    jobs.spawn(begin(Arc::clone(shared), terms, claim).instrument(span));
}

/// In what the lines of a job stand.
pub(super) fn span_of(claim: &Claim) -> Span {
    tracing::info_span!("task", task.id = %claim.task_id(), run.id = claim.run_id().number())
}

/// Does what was claimed on these terms, or gives it back if it may not be started any more.
pub(super) fn begin(shared: Arc<Shared>, terms: Membership, claim: Claim) -> impl Future<Output = ()> + Send + 'static {
    let control = shared.may_start(terms).then(|| shared.enter(&claim));
    async move {
        let Some(control) = control else { return give_back(&shared, claim).await };
        // The shutdown may have come in between: then all that were under way have been asked already.
        if shared.shutdown.is_cancelled() {
            control.ask_to_stop(StopReason::Shutdown);
        }
        keep::run(shared, claim, control).await;
    }
}

/// Whether an error means that these credentials are not good for this queue, or that it is not one of Tenure's.
pub(super) fn refuses(error: &Error) -> bool {
    matches!(error.status(), Some(400 | 401 | 403 | 404 | 405))
}

fn say_panic(ended: Result<(), JoinError>) {
    if let Err(error) = ended {
        tracing::error!(%error, "a job was not brought to its end; its claim ends with its lease");
    }
}
