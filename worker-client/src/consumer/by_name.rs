//! Claiming with a balancer: one run after another by its name, and only what the balancer wants. To claim first and to give back what it
//! does not want would use up the releases that a task has.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, mpsc};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};
use tokio_util::task::AbortOnDropHandle;

use super::balancer::{Balancer, CanClaim, Offer};
use super::claims::{may_claim, on_terms, pause_for, start};
use super::offers::Offers;
use super::shared::{Membership, Settings, Shared};
use super::watch::{self, News};
use crate::error::chain;
use crate::{Claim, Error, RetryPolicy, retry};

/// A claim gets no answer after this; it is asked for again then, and is the same one.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);
/// After a claim, for others to have the next.
const PAUSE: Duration = Duration::from_millis(10);
/// A list that is not the whole queue is not repeated sooner.
const LIST_INTERVAL: Duration = Duration::from_secs(5);
/// News that the consumer has no room for yet; after that the server keeps them.
const NEWS_MAX: usize = 16;
/// Not offered again before the queue is listed.
const UNLISTED_MAX: usize = 100_000;

/// What a consumer knows of its queue.
struct Queue {
    offers: Offers,
    news: mpsc::Receiver<News>,
    list_again: Arc<Notify>,
    /// The list was not the whole queue; when it was made.
    partly_listed: Option<Instant>,
}

/// Claims and starts jobs until the shutdown.
pub(super) async fn claim_all(
    shared: &Arc<Shared>,
    balancer: &dyn Balancer,
    jobs: &mut JoinSet<()>,
) -> Result<(), Error> {
    let Settings { client, queue, .. } = &shared.settings;
    let (sender, news) = mpsc::channel(NEWS_MAX);
    let list_again = Arc::new(Notify::new());
    let (client, queue, notify) = (client.clone(), queue.clone(), Arc::clone(&list_again));
    let _following =
        AbortOnDropHandle::new(tokio::spawn(async move { watch::follow(&client, queue, sender, &notify).await }));
    let mut queue = Queue { offers: Offers::default(), news, list_again, partly_listed: None };
    let mut failures = 0;
    loop {
        // What was given to the session is in no list, and is claimed as anything else.
        let offer = match shared.take_given() {
            Some(offer) => offer,
            None => tokio::select! {
                () = shared.shutdown.cancelled() => return Ok(()),
                () = shared.given_more.notified() => continue,
                offer = queue.next() => offer?,
            },
        };
        let Some(terms) = may_claim(shared, jobs).await else { return Ok(()) };
        // By a repeated event: the claim of a run that is ours already would be the same one again.
        if shared.find(offer.task_id, offer.run_id).is_some() {
            continue;
        }
        let cluster = shared.cluster();
        match balancer.can_claim(&offer, &cluster) {
            CanClaim::Yes => {}
            CanClaim::No(Some(until)) => {
                queue.offers.hide(offer, until);
                continue;
            }
            CanClaim::No(None) => continue,
        }
        tokio::select! {
            () = shared.shutdown.cancelled() => return Ok(()),
            () = tokio::time::sleep(balancer.pause(&cluster)) => {}
        }
        let claimed = claim(shared, terms, offer).await;
        let was_claimed = claimed.is_ok();
        match settle(shared, jobs, terms, claimed, &mut failures) {
            Some(pause) => {
                // Perhaps it is ours, and only the answer was lost.
                queue.offers.hide(offer, Instant::now());
                pause_for(shared, pause).await;
            }
            None if was_claimed => pause_for(shared, PAUSE).await,
            None => {}
        }
    }
}

/// Starts what was claimed. After this pause it is to be tried again, if it was not answered whether it is ours.
pub(super) fn settle(
    shared: &Arc<Shared>,
    jobs: &mut JoinSet<()>,
    terms: Membership,
    claimed: Result<Claim, Option<Error>>,
    failures: &mut u32,
) -> Option<Duration> {
    match claimed {
        Ok(claim) => {
            *failures = 0;
            start(shared, jobs, terms, claim);
            None
        }
        // Another worker was first, or it is not claimable yet: then an event, or an item of the inbox, will say when.
        Err(Some(Error::Refused { status: 404 | 409 | 410, .. })) => None,
        Err(Some(error)) => {
            *failures += 1;
            tracing::warn!(failures, error = chain(&error), "a run could not be claimed; trying again");
            Some(shared.settings.client.retry_policy().pause_of(*failures, &error, retry::jitter()))
        }
        Err(None) => {
            *failures += 1;
            tracing::warn!(failures, "no answer to a claim in time; trying again");
            Some(PAUSE)
        }
    }
}

/// No error if there was no answer in time.
pub(super) async fn claim(
    shared: &Shared,
    terms: Membership,
    Offer { task_id, run_id }: Offer,
) -> Result<Claim, Option<Error>> {
    let Settings { client, name, .. } = &shared.settings;
    let client = on_terms(client, terms).with_retry_policy(RetryPolicy::never());
    match timeout(ANSWER_WITHIN, client.claim_task(task_id, run_id, name)).await {
        Ok(claim) => claim.map_err(Some),
        Err(_elapsed) => Err(None),
    }
}

impl Queue {
    /// Waits for what may be claimed next.
    async fn next(&mut self) -> Result<Offer, Error> {
        loop {
            while let Ok(news) = self.news.try_recv() {
                self.learn(news)?;
            }
            if let Some(offer) = self.offers.next(Instant::now()) {
                return Ok(offer);
            }
            let due = self.offers.next_due();
            let list_at = self.partly_listed.map(|listed| listed + LIST_INTERVAL);
            tokio::select! {
                news = self.news.recv() => match news {
                    Some(news) => self.learn(news)?,
                    None => std::future::pending().await,
                },
                () = tokio::time::sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {}
                () = tokio::time::sleep_until(list_at.unwrap_or_else(Instant::now)), if list_at.is_some() => {
                    self.partly_listed = None;
                    self.list_again.notify_one();
                }
            }
        }
    }

    fn learn(&mut self, news: News) -> Result<(), Error> {
        match news {
            News::Listed { offers, more } => {
                self.offers.list(&offers);
                self.partly_listed = more.then(Instant::now);
            }
            News::Came(_) if self.offers.len() >= UNLISTED_MAX => self.partly_listed = Some(Instant::now()),
            News::Came(offers) => self.offers.add(offers),
            News::Refused(error) => return Err(error),
        }
        Ok(())
    }
}
