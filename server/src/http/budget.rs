//! Memory budgets for all request bodies and for all responses. A reservation that does not fit
//! fails at once: waiting could take forever.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Fraction of a budget for callers without credentials, so that they cannot starve others.
const ANONYMOUS_PART: usize = 4;

/// Caller class charged for a reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Share {
    Anonymous,
    Authenticated,
}

#[derive(Debug)]
pub struct Budget {
    /// Label in metrics.
    name: &'static str,
    max: usize,
    taken: AtomicUsize,
    taken_by_anonymous: AtomicUsize,
}

#[derive(Debug, PartialEq, Eq)]
pub struct Full;

impl Budget {
    #[must_use]
    pub fn new(name: &'static str, max: usize) -> Arc<Self> {
        Arc::new(Self { name, max, taken: AtomicUsize::new(0), taken_by_anonymous: AtomicUsize::new(0) })
    }

    /// Returns an empty reservation.
    #[must_use]
    pub fn begin(self: &Arc<Self>, share: Share) -> Reservation {
        Reservation { budget: Arc::clone(self), share, bytes: 0 }
    }

    fn counters(&self, share: Share) -> impl Iterator<Item = (&AtomicUsize, usize)> {
        let anonymous = (&self.taken_by_anonymous, self.max / ANONYMOUS_PART);
        [(&self.taken, self.max)].into_iter().chain((share == Share::Anonymous).then_some(anonymous))
    }

    fn give_back(&self, share: Share, bytes: usize) {
        for (taken, _) in self.counters(share) {
            taken.fetch_sub(bytes, Ordering::AcqRel);
        }
    }
}

/// Released on drop.
#[derive(Debug)]
pub struct Reservation {
    budget: Arc<Budget>,
    share: Share,
    bytes: usize,
}

impl Reservation {
    /// Grows to `bytes` in all. On error the bytes reserved before stay reserved.
    pub fn grow_to(&mut self, bytes: usize) -> Result<(), Full> {
        let more = bytes.saturating_sub(self.bytes);
        if more == 0 {
            return Ok(());
        }
        let fits = |(taken, max): (&AtomicUsize, usize)| {
            let add = |taken: usize| taken.checked_add(more).filter(|sum| *sum <= max);
            taken.fetch_update(Ordering::AcqRel, Ordering::Acquire, add).is_ok()
        };
        let mut counters = self.budget.counters(self.share);
        if !counters.next().is_none_or(fits) {
            metrics::counter!("tenure_limits_reached_total", "limit" => self.budget.name).increment(1);
            return Err(Full);
        }
        if !counters.next().is_none_or(fits) {
            self.budget.taken.fetch_sub(more, Ordering::AcqRel);
            metrics::counter!("tenure_limits_reached_total", "limit" => self.budget.name).increment(1);
            return Err(Full);
        }
        self.bytes += more;
        Ok(())
    }

    /// Grows even beyond the budget, for content that must no longer be refused.
    pub fn force_to(&mut self, bytes: usize) {
        let more = bytes.saturating_sub(self.bytes);
        for (taken, _) in self.budget.counters(self.share) {
            taken.fetch_add(more, Ordering::AcqRel);
        }
        self.bytes += more;
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        // An empty reservation leaves the counters shared by all requests alone.
        if self.bytes > 0 {
            self.budget.give_back(self.share, self.bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn budget_is_never_overdrawn_and_drop_frees_bytes() {
        let budget = Budget::new("bodies", 100);
        let mut one = budget.begin(Share::Authenticated);
        assert_eq!(one.grow_to(60), Ok(()));
        let mut other = budget.begin(Share::Authenticated);
        assert_eq!((other.grow_to(41), other.grow_to(40)), (Err(Full), Ok(())));
        assert_eq!(one.grow_to(61), Err(Full));
        drop(one);
        assert_eq!((other.grow_to(100), other.grow_to(101)), (Ok(()), Err(Full)));
        assert_eq!(other.grow_to(10), Ok(()));
        drop(other);
        assert_eq!(budget.begin(Share::Authenticated).grow_to(100), Ok(()));
    }

    #[test]
    fn anonymous_callers_get_a_quarter_of_budget() {
        let budget = Budget::new("bodies", 100);
        let mut anonymous = budget.begin(Share::Anonymous);
        assert_eq!((anonymous.grow_to(26), anonymous.grow_to(25)), (Err(Full), Ok(())));
        assert_eq!(budget.begin(Share::Anonymous).grow_to(1), Err(Full));
        let mut authenticated = budget.begin(Share::Authenticated);
        assert_eq!((authenticated.grow_to(76), authenticated.grow_to(75)), (Err(Full), Ok(())));
        drop((anonymous, authenticated));
        let mut full = budget.begin(Share::Authenticated);
        assert_eq!(full.grow_to(100), Ok(()));
        assert_eq!(budget.begin(Share::Anonymous).grow_to(1), Err(Full));
        drop(full);
        assert_eq!(budget.begin(Share::Anonymous).grow_to(25), Ok(()), "a refusal reserves nothing");
    }

    #[test]
    fn forced_reservation_counts_against_budget() {
        let budget = Budget::new("answers", 100);
        let mut forced = budget.begin(Share::Authenticated);
        forced.force_to(150);
        assert_eq!(budget.begin(Share::Authenticated).grow_to(1), Err(Full));
        drop(forced);
        assert_eq!(budget.begin(Share::Authenticated).grow_to(100), Ok(()));
    }
}
