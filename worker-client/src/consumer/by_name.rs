//! Claiming by name, which is how assigned runs are accepted. With a balancer all runs are claimed so, one after another, and only what the
//! balancer wants: to claim first and to give back what it does not want would use up the releases that a task has.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, mpsc};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};
use tokio_util::task::AbortOnDropHandle;

use super::balancer::{Balancer, CanClaim, Offer};
use super::claims::{may_claim, on_terms, pause_for, start};
use super::given::{Given, Reason};
use super::offers::Offers;
use super::shared::{Membership, Settings, Shared};
use super::watch::{self, News};
use crate::error::chain;
use crate::{Claim, Error, RetryPolicy, retry};

/// A claim gets no answer after this; it is asked for again then, and is the same one.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);
/// After a claim, for others to have the next; after a refusal, because many runs of a list may be held.
const PAUSE: Duration = Duration::from_millis(10);
/// So long after the pause that follows a failure a run whose claim got no answer is claimed again: others may be claimed before it.
const OTHERS_FIRST: Duration = Duration::from_millis(50);
/// When the balancer is asked again about a run that is assigned to this worker, if it did not say when.
const ASK_AGAIN_AFTER: Duration = Duration::from_secs(5);
/// Between two warnings that this worker may not claim by name.
const WARN_EVERY: Duration = Duration::from_secs(60);
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
    let mut lately = Lately::default();
    loop {
        let (offer, given) = match shared.take_given() {
            Some(Given { offer, reason }) => (offer, Some(reason)),
            None => tokio::select! {
                () = shared.shutdown.cancelled() => return Ok(()),
                () = shared.given.more() => continue,
                offer = queue.next() => (offer?, None),
            },
        };
        let Some(terms) = may_claim(shared, jobs).await else { return Ok(()) };
        // By a repeated event: the claim of a run that is ours already would be the same one again.
        if shared.find(offer.task_id, offer.run_id).is_some() {
            continue;
        }
        let cluster = shared.cluster();
        // One whose claim got no answer was wanted, and may be ours.
        if given != Some(Reason::Unanswered)
            && let CanClaim::No(until) = balancer.can_claim(&offer, &cluster)
        {
            put_off(shared, &mut queue.offers, offer, given, until);
            continue;
        }
        tokio::select! {
            () = shared.shutdown.cancelled() => return Ok(()),
            () = tokio::time::sleep(balancer.pause(&cluster)) => {}
        }
        let pause = match claim_given(shared, terms, offer, &mut lately).await {
            Ok(claim) => {
                start(shared, jobs, terms, claim);
                PAUSE
            }
            Err(pause) => pause.max(PAUSE),
        };
        pause_for(shared, pause).await;
    }
}

/// Puts off a run that the balancer does not want now. One that is assigned to this worker goes to no other: the balancer is asked again.
fn put_off(shared: &Shared, offers: &mut Offers, offer: Offer, given: Option<Reason>, until: Option<Instant>) {
    match (given, until) {
        (Some(reason), until) => {
            let now = Instant::now();
            let not_before = until.unwrap_or(now + ASK_AGAIN_AFTER).max(now + PAUSE);
            shared.given.put_back(Given { offer, reason }, not_before);
        }
        (None, Some(until)) => offers.hide(offer, until),
        (None, None) => {}
    }
}

/// How claims by name went lately.
#[derive(Debug, Default)]
pub(super) struct Lately {
    /// How many got no answer, in a row.
    failures: u32,
    /// When it was last logged that this worker may not claim.
    warned: Option<Instant>,
}

impl Lately {
    fn warn(&mut self, error: &Error) {
        let now = Instant::now();
        if self.warned.is_none_or(|warned| warned + WARN_EVERY <= now) {
            self.warned = Some(now);
            tracing::warn!(error = chain(error), "this worker may not claim runs by name; it needs queue:claim-task");
        }
    }
}

/// Claims a run by its name. One whose claim gets no answer is given again, because it may be ours: then the next claim is the same one.
///
/// # Errors
/// It is not ours now: how long to wait before the next run is claimed.
pub(super) async fn claim_given(
    shared: &Shared,
    terms: Membership,
    offer: Offer,
    lately: &mut Lately,
) -> Result<Claim, Duration> {
    let error = match claim(shared, terms, offer).await {
        Ok(claim) => {
            lately.failures = 0;
            return Ok(claim);
        }
        Err(error) => error,
    };
    let refusal = error.as_ref().map_or(Refusal::Unanswered, Refusal::of);
    if refusal != Refusal::Unanswered {
        lately.failures = 0;
        if let (Refusal::NotAllowed, Some(error)) = (refusal, &error) {
            lately.warn(error);
        }
        return Err(PAUSE);
    }
    lately.failures += 1;
    let failures = lately.failures;
    let pause = if let Some(error) = error {
        tracing::warn!(failures, error = chain(&error), "a run could not be claimed; trying again");
        shared.settings.client.retry_policy().pause_of(failures, &error, retry::jitter())
    } else {
        tracing::warn!(failures, "no answer to a claim in time; trying again");
        PAUSE
    };
    // After the next claim if there is one, so that a run whose claim never gets an answer does not keep others from being claimed.
    shared.given.put_back(Given { offer, reason: Reason::Unanswered }, Instant::now() + pause + OTHERS_FIRST);
    Err(pause)
}

/// What it means that a claim was not granted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Refusal {
    /// Another worker was first, or the run is not claimable yet: an event, or an item of the inbox, will say when it is.
    NotNow,
    /// This worker may not claim it.
    NotAllowed,
    /// It is not known whether the run is ours.
    Unanswered,
}

impl Refusal {
    fn of(error: &Error) -> Self {
        match error {
            // A proxy may answer so for a server that is away.
            Error::Refused { status: 404, code, .. } if code != "ResourceNotFound" => Self::Unanswered,
            Error::Refused { status: 404 | 409 | 410, .. } => Self::NotNow,
            // The claim may succeed with the next session, or with the credentials that the server knows then.
            Error::SessionEnded(_) | Error::Refused { status: 401, .. } | Error::BadAnswer(_) => Self::Unanswered,
            error if error.is_transient() => Self::Unanswered,
            _ => Self::NotAllowed,
        }
    }
}

/// No error if there was no answer in time.
async fn claim(shared: &Shared, terms: Membership, Offer { task_id, run_id }: Offer) -> Result<Claim, Option<Error>> {
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
            News::Listed { offers, is_whole, more } => {
                // What a page does not have may be on another one. Of too many it is dropped all the same, until that one comes.
                let is_too_much = !is_whole && self.offers.len() >= UNLISTED_MAX;
                if is_whole || is_too_much {
                    self.offers.list(&offers);
                } else {
                    self.offers.add(offers);
                }
                self.partly_listed = (more || is_too_much).then(Instant::now);
            }
            News::Came(_) if self.offers.len() >= UNLISTED_MAX => self.partly_listed = Some(Instant::now()),
            News::Came(offers) => self.offers.add(offers),
            News::Refused(error) => return Err(error),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::shared::tests::shared;
    use super::*;

    #[tokio::test]
    async fn a_run_whose_claim_gets_no_answer_is_claimed_again_but_lets_another_one_go_first() {
        // Its server cannot be reached.
        let shared = shared();
        let offer = Offer { task_id: "9HrBC1jMQ3KlZw4CssPUeQ".parse().unwrap(), run_id: "0".parse().unwrap() };
        let pause = claim_given(&shared, Membership::Alone, offer, &mut Lately::default()).await.err().unwrap();
        assert_eq!(shared.take_given(), None, "the next claim is another run's");
        tokio::time::sleep(pause + OTHERS_FIRST + PAUSE).await;
        assert_eq!(shared.take_given(), Some(Given { offer, reason: Reason::Unanswered }));
    }

    #[test]
    fn what_is_hidden_or_waits_is_dropped_by_a_list_of_the_whole_queue_and_not_by_a_page_of_it() {
        let (_sender, news) = mpsc::channel(1);
        let list_again = Arc::new(Notify::new());
        let mut queue = Queue { offers: Offers::default(), news, list_again, partly_listed: None };
        let task_id = "9HrBC1jMQ3KlZw4CssPUeQ".parse().unwrap();
        let offer = |run: &str| Offer { task_id, run_id: run.parse().unwrap() };
        queue.offers.hide(offer("0"), Instant::now() + LIST_INTERVAL);
        queue.offers.add([offer("1")]);
        for (is_whole, left) in [(false, 3), (true, 1)] {
            queue.learn(News::Listed { offers: vec![offer("2")], is_whole, more: !is_whole }).unwrap();
            assert_eq!((queue.offers.len(), queue.partly_listed.is_some()), (left, !is_whole));
        }
    }

    #[test]
    fn a_refusal_is_final_only_if_the_server_says_so() {
        let refused = |status, code: &str| {
            let (code, message) = (code.to_owned(), String::new());
            Refusal::of(&Error::Refused { status, code, message, retry_after: None })
        };
        for (status, code, expected) in [
            (404, "ResourceNotFound", Refusal::NotNow),
            (404, "", Refusal::Unanswered),
            (409, "RequestConflict", Refusal::NotNow),
            (410, "", Refusal::NotNow),
            (400, "InputError", Refusal::NotAllowed),
            (403, "InsufficientScopes", Refusal::NotAllowed),
            (401, "AuthenticationFailed", Refusal::Unanswered),
            (429, "", Refusal::Unanswered),
            (503, "ServiceUnavailable", Refusal::Unanswered),
        ] {
            assert_eq!(refused(status, code), expected, "{status} {code}");
        }
        assert_eq!(Refusal::of(&Error::SessionEnded(String::new())), Refusal::Unanswered);
        assert_eq!(Refusal::of(&Error::Stalled(PAUSE)), Refusal::Unanswered);
    }
}
