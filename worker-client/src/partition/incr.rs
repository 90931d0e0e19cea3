//! The counter that partition groups replace.

use std::time::Duration;

/// Shares by a counter such as Redis' `INCR`, without a server of Tenure: for comparison.
///
/// In each interval every member increments the counter of the interval's number, and reads the
/// counter of the previous one: its first increment gave it an index, and the number of increments
/// is the number of shares. This works only while members keep different phases, which each must
/// add to its clock: with the same phase the order of the increments changes, and so do the shares.
/// A repeated increment counts twice, a late one is missed by the others, and nobody waits for work
/// in progress. [`Member`](super::Member) has none of these faults.
///
/// ```
/// # use std::collections::HashMap;
/// # use std::time::Duration;
/// # use tenure_client::partition::Incr;
/// let mut counters: HashMap<u64, u64> = HashMap::new();
/// let mut incr = Incr::new(Duration::from_secs(10), Duration::from_secs(3));
/// let mut call = |seconds| {
///     let number = incr.number(Duration::from_secs(seconds));
///     let count = counters.entry(number).or_default();
///     *count += 1;
///     let count = *count;
///     incr.counted(count, counters.get(&(number - 1)).copied())
/// };
/// assert_eq!((call(1_000), call(1_010)), (None, Some((0, 1))));
/// ```
#[derive(Debug, Clone)]
pub struct Incr {
    interval: Duration,
    skew: Duration,
    index: Option<u64>,
}

impl Incr {
    /// `skew` is the phase of this member; each member has another one.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tenure_client::partition::Incr;
    /// let incr = Incr::new(Duration::from_secs(10), Duration::from_secs(3));
    /// # drop(incr);
    /// ```
    #[must_use]
    pub fn new(interval: Duration, skew: Duration) -> Self {
        Self { interval: interval.max(Duration::from_millis(1)), skew, index: None }
    }

    /// Returns the number of the interval at this time since 1970, whose counter is to be
    /// incremented.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tenure_client::partition::Incr;
    /// let incr = Incr::new(Duration::from_secs(10), Duration::from_secs(3));
    /// assert_eq!(incr.number(Duration::from_secs(1_005)), 100);
    /// ```
    #[must_use]
    pub fn number(&self, now: Duration) -> u64 {
        let number = now.as_millis() / self.interval.as_millis();
        u64::try_from(number).unwrap_or(u64::MAX)
    }

    /// Returns how long to wait from this time since 1970 until the next increment.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tenure_client::partition::Incr;
    /// let incr = Incr::new(Duration::from_secs(10), Duration::from_secs(3));
    /// assert_eq!(incr.pause(Duration::from_secs(1_005)), Duration::from_secs(5 + 3));
    /// ```
    #[must_use]
    pub fn pause(&self, now: Duration) -> Duration {
        let passed = now.as_millis() % self.interval.as_millis();
        let left = self.interval.as_millis() - passed;
        Duration::from_millis(u64::try_from(left).unwrap_or(u64::MAX)) + self.skew
    }

    /// Takes in the incremented counter and that of the previous interval. Returns index and number
    /// of shares of the previous interval, unless this is the first one.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tenure_client::partition::Incr;
    /// let mut incr = Incr::new(Duration::from_secs(10), Duration::from_secs(3));
    /// assert_eq!(incr.counted(2, None), None);
    /// assert_eq!(incr.counted(1, Some(5)), Some((1, 5)));
    /// ```
    pub fn counted(&mut self, count: u64, previous: Option<u64>) -> Option<(u64, u64)> {
        // The first increment returns 1, but remainders begin at 0.
        self.index.replace(count.saturating_sub(1)).zip(previous)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    /// Counts how often an index changes in 100 intervals. Members with equal phases call in an
    /// order that differs from interval to interval.
    fn changes(has_skew: bool) -> usize {
        let interval = Duration::from_secs(10);
        let mut members: Vec<Incr> =
            (0..5).map(|n| Incr::new(interval, Duration::from_millis(if has_skew { n * 900 } else { 0 }))).collect();
        let mut counters: HashMap<u64, u64> = HashMap::new();
        let mut last: HashMap<usize, u64> = HashMap::new();
        let (mut changes, mut noise) = (0, 12_345_u64);
        for interval in 100..200_u64 {
            let mut order: Vec<(Duration, u64, usize)> = Vec::new();
            for (n, member) in members.iter().enumerate() {
                noise ^= noise << 13;
                noise ^= noise >> 7;
                noise ^= noise << 17;
                order.push((member.skew, noise, n));
            }
            order.sort_unstable();
            for (skew, _, n) in order {
                let number = members[n].number(Duration::from_secs(interval * 10) + skew);
                let counter = counters.entry(number).or_default();
                *counter += 1;
                let count = *counter;
                let share = members[n].counted(count, counters.get(&(number - 1)).copied());
                if let Some((index, replicas)) = share {
                    assert!(index < replicas && replicas == 5);
                    changes += usize::from(last.insert(n, index).is_some_and(|before| before != index));
                }
            }
        }
        changes
    }

    #[test]
    fn indices_churn_without_skew_only() {
        assert_eq!(changes(true), 0);
        assert!(changes(false) > 100, "{}", changes(false));
    }

    #[test]
    fn next_increment_is_in_next_interval() {
        let incr = Incr::new(Duration::from_secs(10), Duration::from_secs(2));
        for (now, pause) in [(1_000, 12), (1_001, 11), (1_009, 3)] {
            assert_eq!(incr.pause(Duration::from_secs(now)), Duration::from_secs(pause));
        }
    }
}
