//! Chooses the tick loop of a request.
//!
//! A server runs one loop per hot session: some for requests of workers, the others for the
//! creation of tasks. Operations that must not overlap share a loop: all changes of one existing
//! task, and all claims from one queue. Exception: a single task of the wait list may claim in a
//! tick that creates.

use std::ops::Range;

use uuid::Uuid;

/// Number of tick loops, each with its own session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HotSessions(u8);

impl HotSessions {
    pub const MIN: Self = Self(1);
    /// More loops would make batches too small.
    pub const MAX: Self = Self(8);
    const CORES_EACH: usize = 4;
    /// Even on one core: while one loop commits, the other reads requests and sends responses.
    const USEFUL_MIN: usize = 2;

    pub fn new(count: u64) -> Option<Self> {
        u8::try_from(count).ok().filter(|count| (Self::MIN.0..=Self::MAX.0).contains(count)).map(Self)
    }

    /// Returns the useful number for a machine.
    pub fn for_cores(cores: usize) -> Self {
        let count = cores.div_ceil(Self::CORES_EACH).clamp(Self::USEFUL_MIN, Self::MAX.count());
        Self(u8::try_from(count).unwrap_or(Self::MAX.0))
    }

    #[must_use]
    pub const fn count(self) -> usize {
        self.0 as usize
    }

    #[must_use]
    pub const fn of_workers(self) -> Range<usize> {
        0..self.count() - self.count() / 2
    }

    /// The loops for the creation of tasks: the others, or the only one.
    #[must_use]
    pub const fn of_creates(self) -> Range<usize> {
        if self.count() == 1 { 0..1 } else { self.of_workers().end..self.count() }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Route(u64);

impl Route {
    /// For requests that any loop may serve.
    pub const ANY: Self = Self(0);

    pub fn of_task(task: Uuid) -> Self {
        let (high, low) = task.as_u64_pair();
        Self(high ^ low)
    }

    /// For claims from a queue, and polls of its messages.
    pub fn of_queue(key: i32) -> Self {
        Self(u64::from(key.cast_unsigned()))
    }

    /// Returns the index among `count` loops.
    #[must_use]
    pub fn among(self, count: usize) -> usize {
        // Multiplied by an odd number near 2^64 divided by the golden ratio, because ids and keys
        // are not always random.
        let mixed = self.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        let count = u64::try_from(count.max(1)).unwrap_or(1);
        usize::try_from(mixed % count).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machine_runs_loop_per_four_cores_and_at_least_two() {
        for (cores, count) in [(0, 2), (1, 2), (4, 2), (5, 2), (8, 2), (9, 3), (29, 8), (32, 8), (500, 8)] {
            assert_eq!(HotSessions::for_cores(cores).count(), count, "{cores} cores");
        }
        let allowed: Vec<u64> = (0..300).filter(|&count| HotSessions::new(count).is_some()).collect();
        assert_eq!(allowed, [1, 2, 3, 4, 5, 6, 7, 8]);
    }

    #[test]
    fn half_of_loops_create_and_single_loop_does_both() {
        let of =
            |count| HotSessions::new(count).map(|sessions| (sessions.of_workers(), sessions.of_creates())).unwrap();
        assert_eq!([of(1), of(2), of(3), of(8)], [(0..1, 0..1), (0..1, 1..2), (0..2, 2..3), (0..4, 4..8)]);
    }

    #[test]
    fn requests_are_spread_over_all_loops() {
        for count in 1..=HotSessions::MAX.count() {
            let spread = |route: &dyn Fn(i32) -> Route| {
                let mut hits = vec![0; count];
                (0..4_000).for_each(|n| hits[route(n).among(count)] += 1);
                let least = hits.iter().min().copied().unwrap_or_default();
                assert!(least > 2_000 / count, "{hits:?}");
            };
            spread(&Route::of_queue);
            spread(&|_| Route::of_task(Uuid::new_v4()));
            spread(&|n| Route::of_task(Uuid::from_u128(u128::from(n.cast_unsigned()))));
        }
    }
}
