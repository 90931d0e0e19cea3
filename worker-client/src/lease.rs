//! The lease of a claim on the local monotonic clock.
//!
//! Only differences of server times enter, so a local clock that is wrong, or that is set while a task runs, changes
//! nothing. What remains after a claim is `takenUntil` minus the time of the claim, both by the server's clock. A
//! renewal moves the end by as much as `takenUntil` moved, but never further than a duration lease from now: that way a
//! server clock that jumps cannot make us believe in a longer lease than the server grants.

use std::time::Duration;

use tenure_api::dates::Timestamp;
use tokio::time::Instant;

/// Assumed when an answer dates neither the claim nor itself; short, because renewing too early costs nothing.
const UNDATED_LEASE: Duration = Duration::from_secs(30);

/// Until when a claim is ours, and when to renew it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lease {
    since: Instant,
    ends: Instant,
    duration: Duration,
    taken_until: Timestamp,
}

impl Lease {
    /// The lease of a claim that arrived at `received`; `claimed` is when it was made by the date of the server.
    pub(crate) fn of_claim(taken_until: Timestamp, claimed: Option<Timestamp>, received: Instant) -> Self {
        let duration = claimed.map_or(UNDATED_LEASE, |claimed| between(claimed, taken_until));
        Self { since: received, ends: received + duration, duration, taken_until }
    }

    /// The lease of a claim that may have been granted before this answer: to an earlier try of the same call, first
    /// sent at the earlier of the two times and answered at the later one, or to a call before it. `date` is when the
    /// server answered; it is left out of account if it does not fit the claim, as with a server whose claims are
    /// dated by another clock.
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

    /// The lease after a renewal that was sent at `sent` and moved the end to `taken_until`.
    pub(crate) fn renewed(self, taken_until: Timestamp, sent: Instant) -> Self {
        let moved = self.ends + between(self.taken_until, taken_until);
        Self { since: sent, ends: moved.min(sent + self.duration), duration: self.duration, taken_until }
    }

    /// When the claim ends if it is not renewed.
    #[must_use]
    pub fn ends(&self) -> Instant {
        self.ends
    }

    /// When to renew: after three quarters of what remained when the lease began.
    #[must_use]
    pub fn renew_at(&self) -> Instant {
        self.ends - self.length() / 4
    }
}

impl Lease {
    /// From its beginning to its end.
    pub(crate) fn length(&self) -> Duration {
        self.ends.saturating_duration_since(self.since)
    }
}

/// The time from one server date to a later one; zero if it is not later.
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
    fn a_claim_is_renewed_after_three_quarters() {
        let now = Instant::now();
        let lease = Lease::of_claim(at("2001-01-01T00:20:00Z"), Some(at("2001-01-01T00:00:00Z")), now);
        assert_eq!(lease.ends(), now + 1200 * SECOND);
        assert_eq!(lease.renew_at(), now + 900 * SECOND);
    }

    #[test]
    fn a_renewal_moves_the_end_by_what_the_server_moved_it() {
        let now = Instant::now();
        let claimed = Lease::of_claim(at("2001-01-01T00:20:00Z"), Some(at("2001-01-01T00:00:00Z")), now);
        let sent = now + 900 * SECOND;
        assert_eq!(claimed.renewed(at("2001-01-01T00:35:00Z"), sent).ends(), sent + 1200 * SECOND);
        // The server kept the old end: so do we, although the renewal was answered.
        assert_eq!(claimed.renewed(at("2001-01-01T00:20:00Z"), sent).ends(), claimed.ends());
        // The server's clock jumped by an hour: the lease is no longer than before.
        assert_eq!(claimed.renewed(at("2001-01-01T01:35:00Z"), sent).ends(), sent + 1200 * SECOND);
    }

    #[test]
    fn a_claim_that_may_be_older_than_its_answer_ends_early_rather_than_late() {
        let sent = Instant::now();
        let answered = sent + 10 * SECOND;
        let ends = |claimed: Option<&str>, date: Option<&str>| {
            let times = (sent, answered);
            Lease::of_repeated_claim(at("2001-01-01T00:20:00Z"), claimed.map(at), date.map(at), times).ends() - sent
        };
        let claimed = Some("2001-01-01T00:00:00Z");
        // Granted at the last try: it could as well have been the first one.
        assert_eq!(ends(claimed, Some("2001-01-01T00:00:00Z")), 1200 * SECOND);
        assert_eq!(ends(claimed, None), 1200 * SECOND);
        // Granted five minutes before the answer.
        assert_eq!(ends(claimed, Some("2001-01-01T00:05:00Z")), 910 * SECOND);
        // Dates that do not fit the claim are ignored.
        for elsewhere in ["2001-01-01T00:20:00Z", "2001-01-01T02:00:00Z", "2000-12-31T23:00:00Z"] {
            assert_eq!(ends(claimed, Some(elsewhere)), 1200 * SECOND, "{elsewhere}");
        }
        assert_eq!(ends(None, None), UNDATED_LEASE);
    }

    #[test]
    fn without_dates_the_term_is_short_and_never_negative() {
        let now = Instant::now();
        assert_eq!(Lease::of_claim(at("2001-01-01T00:20:00Z"), None, now).ends(), now + UNDATED_LEASE);
        let past = Lease::of_claim(at("2001-01-01T00:00:00Z"), Some(at("2001-01-01T00:20:00Z")), now);
        assert_eq!((past.ends(), past.renew_at()), (now, now));
    }
}
