//! Where a worker's work comes from: claims from claimWork, or messages that it turns into claims itself.
//!
//! Either way the worker gets offers. An offer takes up room from its arrival on, so that no more is requested
//! for than can run even while a message is being claimed.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::message::{Hold, Received};
use super::poll::Poller;
use super::results::Ended;
use super::{Plane, Settings};
use tenure_client::{Claim, Error, RetryPolicy, RunResult};

/// The least time between two calls for work, in case the server does not wait for work to appear.
const CLAIM_INTERVAL: Duration = Duration::from_millis(500);
/// The pause after a round over all queues of messages that found none.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Where work comes from.
pub(super) enum Source {
    /// claimWork, which waits for work and gives claims.
    ClaimWork(ClaimWork),
    /// Polls, which answer at once and give messages.
    Messages(Box<Poller>),
}

/// Calls for work that give claims.
pub(super) struct ClaimWork {
    settings: Arc<Settings>,
    /// Whether one was ever answered.
    answered: bool,
    /// Whether results may go with them: only Tenure takes them.
    takes_results: bool,
}

impl ClaimWork {
    async fn find(&mut self, room: usize) -> Result<Vec<Offer>, Error> {
        let Settings { client, queue, name, .. } = &*self.settings;
        let claims = client.claim_work(queue, name, room).await?;
        self.answered = true;
        Ok(claims.into_iter().map(Offer::of_claim).collect())
    }

    async fn exchange(&mut self, ended: Vec<Ended>, room: usize) -> Result<Vec<Offer>, Error> {
        let Settings { client, queue, name, .. } = &*self.settings;
        let results: Vec<RunResult> = ended.iter().map(|ended| ended.result.clone()).collect();
        // Sent once: what gets no answer is reported by itself, for as long as it takes.
        let client = client.with_retry_policy(RetryPolicy::never());
        match client.work(queue, name, &results, room, Duration::ZERO).await {
            Ok(worked) => {
                for (ended, answer) in ended.into_iter().zip(worked.results) {
                    ended.answer(answer);
                }
                Ok(worked.claims.into_iter().map(Offer::of_claim).collect())
            }
            Err(Error::Refused { status: 404 | 405, .. }) => {
                tracing::info!("the queue takes no results with a call for work: each is reported by itself");
                self.takes_results = false;
                Ok(Vec::new())
            }
            Err(error) => Err(error),
        }
    }
}

/// Something to do.
pub(super) enum Offer {
    /// A run that is ours.
    Claim(Box<Claim>),
    /// A run that can probably be claimed.
    Message(Received),
}

impl Source {
    pub(super) fn new(settings: &Arc<Settings>, shutdown: &CancellationToken) -> Self {
        match settings.plane {
            Plane::Claim => {
                let settings = Arc::clone(settings);
                Self::ClaimWork(ClaimWork { settings, answered: false, takes_results: true })
            }
            Plane::Poll => Self::Messages(Box::new(Poller::new(settings, shutdown))),
        }
    }

    /// Looks for work once, for so many tasks.
    pub(super) async fn find(&mut self, room: usize) -> Result<Vec<Offer>, Error> {
        match self {
            Self::ClaimWork(calls) => calls.find(room).await,
            Self::Messages(poller) => Ok(poller.find(room).await?.into_iter().map(Offer::Message).collect()),
        }
    }

    /// Whether results may go with a call for work.
    pub(super) fn takes_results(&self) -> bool {
        matches!(self, Self::ClaimWork(ClaimWork { takes_results: true, .. }))
    }

    /// Reports what has ended, and looks for work once, without waiting. What gets no answer is to be reported by itself.
    pub(super) async fn exchange(&mut self, ended: Vec<Ended>, room: usize) -> Result<Vec<Offer>, Error> {
        match self {
            Self::ClaimWork(calls) => calls.exchange(ended, room).await,
            Self::Messages(_) => Ok(Vec::new()),
        }
    }

    /// Whether an error means that this worker's credentials are not good for this queue. What has worked once is only
    /// in trouble.
    pub(super) fn is_refused(&self, error: &Error) -> bool {
        let has_worked = match self {
            Self::ClaimWork(calls) => calls.answered,
            Self::Messages(poller) => poller.has_worked(),
        };
        !has_worked && refuses(error)
    }

    /// When to look again after a search that began at `begun` and has just found nothing.
    pub(super) fn rest_until(&self, begun: Instant) -> Instant {
        match self {
            Self::ClaimWork(..) => begun + CLAIM_INTERVAL,
            Self::Messages(_) => Instant::now() + POLL_INTERVAL,
        }
    }

    /// Ends what still goes on in the background.
    pub(super) async fn close(self) {
        match self {
            Self::ClaimWork(..) => {}
            Self::Messages(poller) => poller.close().await,
        }
    }
}

/// Whether an error is about the credentials, and not about the request.
pub(super) fn refuses(error: &Error) -> bool {
    matches!(error, Error::Refused { status: 401 | 403, .. })
}

impl Offer {
    fn of_claim(claim: Claim) -> Self {
        Self::Claim(Box::new(claim))
    }

    /// The claim, if it is to be had; the hold is to be kept for as long as the worker is at it.
    ///
    /// # Errors
    /// The worker may not claim at all: its first claim was refused.
    pub(super) async fn claim(self) -> Result<Option<(Claim, Option<Hold>)>, Error> {
        match self {
            Self::Claim(claim) => Ok(Some((*claim, None))),
            Self::Message(received) => Ok(received.claim().await?.map(|(claim, hold)| (claim, Some(hold)))),
        }
    }
}
