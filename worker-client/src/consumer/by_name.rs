//! Claiming by name, which is how assigned runs are accepted and how a consumer with a balancer claims.

use std::time::Duration;

use tokio::time::{Instant, timeout};

use super::balancer::Offer;
use super::given::{Given, Reason};
use super::inner::Inner;
use super::membership::Membership;
use super::settings::Settings;
use crate::error::chain;
use crate::{Claim, Error, RetryPolicy, retry};

/// A claim gets no answer after this; it is asked for again then, and is the same one.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);
/// After a claim, for others to have the next; after a refusal, because many runs of a list may be held.
pub(super) const PAUSE: Duration = Duration::from_millis(10);
/// So long after the pause that follows a failure a run whose claim got no answer is claimed again: others may be claimed before it.
const OTHERS_FIRST: Duration = Duration::from_millis(50);
/// Between two warnings that this worker may not claim by name.
const WARN_EVERY: Duration = Duration::from_secs(60);

/// The latest claims by name.
#[derive(Debug, Default)]
pub(super) struct Lately {
    /// Claims without an answer, in a row.
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
pub(super) async fn claim(
    inner: &Inner,
    terms: Membership,
    offer: Offer,
    lately: &mut Lately,
) -> Result<Claim, Duration> {
    let error = match request(inner, terms, offer).await {
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
        inner.settings.client.retry_policy().pause_of(failures, &error, retry::jitter())
    } else {
        tracing::warn!(failures, "no answer to a claim in time; trying again");
        PAUSE
    };
    // After the next claim if there is one, so that a run whose claim never gets an answer does not keep others from being claimed.
    inner.given.put_back(Given { offer, reason: Reason::Unanswered }, Instant::now() + pause + OTHERS_FIRST);
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
async fn request(inner: &Inner, terms: Membership, Offer { task_id, run_id }: Offer) -> Result<Claim, Option<Error>> {
    let Settings { client, name, .. } = &inner.settings;
    let client = terms.client(client).with_retry_policy(RetryPolicy::never());
    match timeout(ANSWER_WITHIN, client.claim_task(task_id, run_id, name)).await {
        Ok(claim) => claim.map_err(Some),
        Err(_elapsed) => Err(None),
    }
}

#[cfg(test)]
mod tests {
    use super::super::inner::tests::builder;
    use super::*;

    #[tokio::test]
    async fn unanswered_claim_is_repeated_after_others() {
        // Its server cannot be reached.
        let inner = builder().build().unwrap().inner;
        let offer = Offer { task_id: "9HrBC1jMQ3KlZw4CssPUeQ".parse().unwrap(), run_id: "0".parse().unwrap() };
        let pause = claim(&inner, Membership::Alone, offer, &mut Lately::default()).await.err().unwrap();
        assert_eq!(inner.take_given(), None, "the next claim is another run's");
        tokio::time::sleep(pause + OTHERS_FIRST + PAUSE).await;
        assert_eq!(inner.take_given(), Some(Given { offer, reason: Reason::Unanswered }));
    }

    #[test]
    fn refusal_is_final_only_if_server_says_so() {
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
