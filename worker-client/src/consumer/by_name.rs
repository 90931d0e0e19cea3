//! Claims runs by name: assigned runs, and all runs of a consumer with a balancer.

use std::time::Duration;

use tokio::time::{Instant, timeout};

use super::balancer::Offer;
use super::given::{Given, Reason};
use super::inner::Inner;
use super::membership::Membership;
use super::settings::Settings;
use crate::error::chain;
use crate::{Claim, Error, RetryPolicy, retry};

/// A claim without an answer is repeated, which returns the same claim.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);
/// After a claim, so that others get the next run; after a refusal, because many listed runs may be
/// held.
pub(super) const PAUSE: Duration = Duration::from_millis(10);
/// Delays the repeat of an unanswered claim, so that other runs are claimed first.
const OTHERS_FIRST: Duration = Duration::from_millis(50);
/// Interval of warnings that this worker may not claim by name.
const WARN_EVERY: Duration = Duration::from_secs(60);

#[derive(Debug, Default)]
pub(super) struct Lately {
    /// Consecutive claims without an answer.
    failures: u32,
    warned: Option<Instant>,
}

impl Lately {
    fn warn(&mut self, error: &Error) {
        let now = Instant::now();
        if self.warned.is_none_or(|warned| warned + WARN_EVERY <= now) {
            self.warned = Some(now);
            warning!(error = chain(error), "this worker may not claim runs by name; it needs queue:claim-task");
        }
    }
}

/// Claims a run by name. Without an answer the run is given again, because it may be held.
///
/// # Errors
/// Returns the pause before the next claim.
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
        warning!(failures = failures, error = chain(&error), "a run could not be claimed; trying again");
        inner.settings.client.retry_policy().pause_of(failures, &error, retry::jitter())
    } else {
        warning!(failures = failures, "no answer to a claim in time; trying again");
        PAUSE
    };
    // Delayed, so that a run whose claims get no answer does not block others.
    inner.given.put_back(Given { offer, reason: Reason::Unanswered }, Instant::now() + pause + OTHERS_FIRST);
    Err(pause)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Refusal {
    /// Another worker was first, or the run is not claimable yet, which an event or inbox item will
    /// announce.
    NotNow,
    NotAllowed,
    Unanswered,
}

impl Refusal {
    fn of(error: &Error) -> Self {
        match error {
            // A proxy may answer like this.
            Error::Refused { status: 404, code, .. } if code != "ResourceNotFound" => Self::Unanswered,
            Error::Refused { status: 404 | 409 | 410, .. } => Self::NotNow,
            // The next session or later credentials may succeed.
            Error::SessionEnded(_) | Error::Refused { status: 401, .. } | Error::BadAnswer(_) => Self::Unanswered,
            error if error.is_transient() => Self::Unanswered,
            _ => Self::NotAllowed,
        }
    }
}

/// No error means a timeout.
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
        // The server cannot be reached.
        let inner = builder().build().unwrap().inner;
        let offer = Offer { task_id: "9HrBC1jMQ3KlZw4CssPUeQ".parse().unwrap(), run_id: "0".parse().unwrap() };
        let pause = claim(&inner, Membership::Alone, offer, &mut Lately::default()).await.err().unwrap();
        assert_eq!(inner.take_given(), None, "unanswered run was taken first");
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
