//! The lease of a claim on the local monotonic clock.
//!
//! Only differences of server times are used, so a wrong local clock changes nothing. After a claim
//! the remaining time is `takenUntil` minus the time of the claim, both by the server's clock. A
//! renewal moves the end as far as `takenUntil` moved, at most to one full lease from now. So a
//! jump of the server's clock never makes the lease longer than granted.

use std::time::Duration;

use tenure_api::dates::Timestamp;
use tokio::time::Instant;

/// Used if an answer has no date. Short, because early renewal costs nothing.
const UNDATED_LEASE: Duration = Duration::from_secs(30);

/// When a claim ends, and when to renew it.
///
/// ```no_run
/// # async fn example(claim: &mut tenure_client::Claim) -> Result<(), tenure_client::Error> {
/// let lease = claim.lease();
/// tokio::time::sleep_until(lease.renew_at()).await;
/// if let tenure_client::Renewal::Lost(lost) = claim.reclaim().await? {
///     println!("stop working: {}", lost.because);
/// }
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lease {
    since: Instant,
    ends: Instant,
    duration: Duration,
    taken_until: Timestamp,
}

impl Lease {
    /// `claimed` is the time of the grant by the server's clock.
    pub(crate) fn of_claim(taken_until: Timestamp, claimed: Option<Timestamp>, received: Instant) -> Self {
        let duration = claimed.map_or(UNDATED_LEASE, |claimed| between(claimed, taken_until));
        Self { since: received, ends: received + duration, duration, taken_until }
    }

    /// Lease of a claim perhaps granted to an earlier attempt or call. The pair has the times when
    /// the first attempt was sent and the last one answered. `date` is the server's, and ignored if
    /// it does not fit the claim, as if another clock dates claims.
    pub(crate) fn of_repeated_claim(
        taken_until: Timestamp,
        claimed: Option<Timestamp>,
        date: Option<Timestamp>,
        (first_sent, received): (Instant, Instant),
    ) -> Self {
        let lease = Self::of_claim(taken_until, claimed.or(date), first_sent);
        let fitting = date.filter(|date| claimed.is_none_or(|claimed| claimed <= *date) && *date < taken_until);
        let left = fitting.map_or(lease.duration, |date| between(date, taken_until));
        Self { ends: lease.ends.min(received + left), ..lease }
    }

    /// Lease after a renewal sent at `sent`.
    pub(crate) fn renewed(self, taken_until: Timestamp, sent: Instant) -> Self {
        let moved = self.ends + between(self.taken_until, taken_until);
        Self { since: sent, ends: moved.min(sent + self.duration), duration: self.duration, taken_until }
    }

    /// Returns when the claim ends without renewal.
    ///
    /// ```no_run
    /// # async fn work() {}
    /// # async fn example(claim: &tenure_client::Claim) {
    /// let in_time = tokio::time::timeout_at(claim.lease().ends(), work()).await.is_ok();
    /// # let _ = in_time;
    /// # }
    /// ```
    #[must_use]
    pub fn ends(&self) -> Instant {
        self.ends
    }

    /// Returns when to renew: after three quarters of the lease.
    ///
    /// ```no_run
    /// # async fn example(claim: &tenure_client::Claim) {
    /// tokio::time::sleep_until(claim.lease().renew_at()).await;
    /// # }
    /// ```
    #[must_use]
    pub fn renew_at(&self) -> Instant {
        self.ends - self.length() / 4
    }
}

impl Lease {
    pub(crate) fn length(&self) -> Duration {
        self.ends.saturating_duration_since(self.since)
    }
}

/// Zero if `to` is not later.
fn between(from: Timestamp, to: Timestamp) -> Duration {
    (to.time() - from.time()).to_std().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Timestamp {
        serde_json::from_value(text.into()).unwrap()
    }

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn claim_is_renewed_after_three_quarters() {
        let now = Instant::now();
        let lease = Lease::of_claim(at("2001-01-01T00:20:00Z"), Some(at("2001-01-01T00:00:00Z")), now);
        assert_eq!(lease.ends(), now + 1200 * SECOND);
        assert_eq!(lease.renew_at(), now + 900 * SECOND);
    }

    #[test]
    fn renewal_moves_end_like_server() {
        let now = Instant::now();
        let claimed = Lease::of_claim(at("2001-01-01T00:20:00Z"), Some(at("2001-01-01T00:00:00Z")), now);
        let sent = now + 900 * SECOND;
        assert_eq!(claimed.renewed(at("2001-01-01T00:35:00Z"), sent).ends(), sent + 1200 * SECOND);
        // The server kept the old end.
        assert_eq!(claimed.renewed(at("2001-01-01T00:20:00Z"), sent).ends(), claimed.ends());
        // The server's clock jumped by an hour.
        assert_eq!(claimed.renewed(at("2001-01-01T01:35:00Z"), sent).ends(), sent + 1200 * SECOND);
    }

    #[test]
    fn repeated_claim_ends_early() {
        let sent = Instant::now();
        let answered = sent + 10 * SECOND;
        let ends = |claimed: Option<&str>, date: Option<&str>| {
            let times = (sent, answered);
            Lease::of_repeated_claim(at("2001-01-01T00:20:00Z"), claimed.map(at), date.map(at), times).ends() - sent
        };
        let claimed = Some("2001-01-01T00:00:00Z");
        // Granted at the last attempt, or at the first.
        assert_eq!(ends(claimed, Some("2001-01-01T00:00:00Z")), 1200 * SECOND);
        assert_eq!(ends(claimed, None), 1200 * SECOND);
        assert_eq!(ends(claimed, Some("2001-01-01T00:05:00Z")), 910 * SECOND);
        for elsewhere in ["2001-01-01T00:20:00Z", "2001-01-01T02:00:00Z", "2000-12-31T23:00:00Z"] {
            assert_eq!(ends(claimed, Some(elsewhere)), 1200 * SECOND, "{elsewhere}");
        }
        assert_eq!(ends(None, None), UNDATED_LEASE);
    }

    #[test]
    fn undated_lease_is_short_and_not_negative() {
        let now = Instant::now();
        assert_eq!(Lease::of_claim(at("2001-01-01T00:20:00Z"), None, now).ends(), now + UNDATED_LEASE);
        let past = Lease::of_claim(at("2001-01-01T00:00:00Z"), Some(at("2001-01-01T00:20:00Z")), now);
        assert_eq!((past.ends(), past.renew_at()), (now, now));
    }
}
