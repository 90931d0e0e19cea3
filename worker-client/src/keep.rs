//! Renews a claim while its work runs, with retries while time is left. Used by consumers and
//! `tenure-worker`.
//!
//! Times are server dates on the monotonic clock (see [`Lease`]).

use std::time::Duration;

use tokio::time::Instant;

use crate::error::chain;
use crate::{Claim, Lease, Lost, Renewal, retry};

/// Default share of a lease after which it is renewed.
pub(crate) const HEARTBEAT: f64 = 0.75;
const RENEWAL_INTERVAL: Duration = Duration::from_millis(100);
/// Between two attempts.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// The grace is at most a third of the lease.
const GRACE_SHARE: u32 = 3;
/// At least an eighth of the lease is left for retries.
const REPEAT_SHARE: u32 = 8;

/// When to renew a claim and when to give it up.
///
/// ```
/// use std::time::Duration;
/// use tenure_client::keep::Terms;
///
/// let terms = Terms { grace: Duration::from_secs(30), ..Terms::default() };
/// assert_eq!(terms.heartbeat, 0.75);
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Terms {
    /// Share of the lease after which it is renewed, or earlier to leave time for retries. From 0
    /// to 1; other values count as ¾.
    pub heartbeat: f64,
    /// An unrenewed claim is given up this long before the end of its lease; at most a third of the
    /// lease.
    pub grace: Duration,
}

impl Default for Terms {
    /// Renews after ¾ of a lease and gives up at its end.
    fn default() -> Self {
        Self { heartbeat: HEARTBEAT, grace: Duration::ZERO }
    }
}

/// Why [`Claim::keep`] stopped.
///
/// ```no_run
/// use tenure_client::keep::{Terms, Unkept};
///
/// # async fn example(claim: &mut tenure_client::Claim) {
/// match claim.keep(Terms::default()).await {
///     Unkept::Lost(lost) => println!("stop at once: {}", lost.because),
///     Unkept::Unanswered => println!("stop within the grace"),
/// }
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unkept {
    Lost(Lost),
    /// No renewal was answered in time. The claim is held for the rest of its lease, the grace.
    Unanswered,
}

impl Claim {
    /// Renews the claim until it is lost or no renewal is answered in time. Dropping the future
    /// leaves the claim usable.
    ///
    /// ```no_run
    /// # use tenure_client::keep::{Terms, Unkept};
    /// # async fn work() {}
    /// # async fn example(mut claim: tenure_client::Claim) -> Result<(), tenure_client::NotReported> {
    /// let unkept = tokio::select! {
    ///     () = work() => None,
    ///     unkept = claim.keep(Terms::default()) => Some(unkept),
    /// };
    /// if unkept.is_none() {
    ///     claim.complete().await?;
    /// }
    /// # Ok(()) }
    /// ```
    pub async fn keep(&mut self, terms: Terms) -> Unkept {
        loop {
            let Times { renew_at, stop_at } = Times::of(self.lease(), terms);
            tokio::time::sleep_until(renew_at.max(Instant::now() + RENEWAL_INTERVAL)).await;
            match tokio::time::timeout_at(stop_at, renew(self)).await {
                Ok(None) => {
                    let left = self.lease().ends().saturating_duration_since(Instant::now());
                    tracing::info!(seconds = left.as_secs(), "claim renewed");
                }
                Ok(Some(lost)) => return Unkept::Lost(lost),
                Err(_elapsed) => return Unkept::Unanswered,
            }
        }
    }
}

/// Retries without limit; returns only a loss.
async fn renew(claim: &mut Claim) -> Option<Lost> {
    let mut failures = 0;
    loop {
        match claim.reclaim_once().await {
            Ok(Renewal::Renewed) => return None,
            Ok(Renewal::Lost(lost)) => return Some(lost),
            Err(error) => {
                failures += 1;
                warning!(failures = failures, error = chain(&error), "the claim could not be renewed; trying again");
                let pause = claim.client().retry_policy().backoff(failures, retry::jitter());
                tokio::time::sleep(pause.min(LONGEST_PAUSE)).await;
            }
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
struct Times {
    renew_at: Instant,
    stop_at: Instant,
}

impl Times {
    fn of(lease: Lease, Terms { heartbeat, grace }: Terms) -> Self {
        let length = lease.length();
        let stop_after = length - grace.min(length / GRACE_SHARE);
        let heartbeat = if (0.0..=1.0).contains(&heartbeat) { heartbeat } else { HEARTBEAT };
        let renew_after = length.mul_f64(heartbeat).min(stop_after.saturating_sub(length / REPEAT_SHARE));
        let begins = lease.ends() - length;
        Self { renew_at: begins + renew_after, stop_at: begins + stop_after }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lease(seconds: u64, now: Instant) -> Lease {
        let date = |text: &str| serde_json::from_value(text.into()).unwrap();
        let until = format!("2001-01-01T00:{:02}:{:02}Z", seconds / 60, seconds % 60);
        Lease::of_claim(date(&until), Some(date("2001-01-01T00:00:00Z")), now)
    }

    fn of(seconds: u64, heartbeat: f64, grace: u64) -> (Duration, Duration) {
        let now = Instant::now();
        let terms = Terms { heartbeat, grace: Duration::from_secs(grace) };
        let Times { renew_at, stop_at } = Times::of(lease(seconds, now), terms);
        (renew_at - now, stop_at - now)
    }

    #[test]
    fn m1_renewal_leaves_time_for_retries_and_grace() {
        let ms = Duration::from_millis;
        assert_eq!(of(1200, 0.75, 30), (ms(900_000), ms(1_170_000)));
        assert_eq!(of(1200, 0.5, 30), (ms(600_000), ms(1_170_000)));
        for no_part in [-0.5, 1.5, f64::NAN, f64::INFINITY] {
            assert_eq!(of(1200, no_part, 30), of(1200, 0.75, 30), "{no_part}");
        }
        // 30 s less than the lease would leave no time for a retry.
        assert_eq!(of(80, 0.9, 20), (ms(50_000), ms(60_000)));
        assert_eq!(of(12, 0.75, 1), (ms(9_000), ms(11_000)));
        // At most a third.
        assert_eq!(of(24, 0.75, 30), (ms(13_000), ms(16_000)));
    }

    #[test]
    fn claim_without_grace_is_kept_until_lease_ends() {
        let now = Instant::now();
        for seconds in [1, 20, 1200] {
            let lease = lease(seconds, now);
            let expected = Times { renew_at: lease.renew_at(), stop_at: lease.ends() };
            assert_eq!(Times::of(lease, Terms::default()), expected, "{seconds}");
        }
    }
}
