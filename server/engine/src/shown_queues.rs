//! The queues that metrics name. Anyone who may create a task can make a queue, so their number is
//! bounded; metrics sum up all others as [`OTHER`].

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Label of the queues that are not named. No queue has this name, because it has no slash.
pub const OTHER: &str = "other";
/// How long a queue stays after its last place among the largest, or after its last values.
pub(crate) const SHOWN_AFTER: Duration = Duration::from_secs(60 * 60);

/// The `max` queues with the most runs, and up to as many again that were among them within the
/// last hour: otherwise queues of similar size would come and go.
#[derive(Debug)]
pub struct ShownQueues {
    /// `--metrics-queues`.
    max: usize,
    /// Last time when each queue was among the largest.
    queues: Mutex<HashMap<String, Instant>>,
}

impl ShownQueues {
    #[must_use]
    pub fn new(max: usize) -> Self {
        Self { max, queues: Mutex::default() }
    }

    /// Names the queues with the most pending and claimed runs.
    pub fn rank(&self, mut runs: Vec<(&str, i64)>, now: Instant) {
        let mut queues = self.lock();
        // Of equal queues, the named ones stay.
        runs.sort_unstable_by_key(|&(name, runs)| (Reverse(runs), !queues.contains_key(name), name));
        for (name, _) in runs.into_iter().take(self.max) {
            match queues.get_mut(name) {
                Some(ranked) => *ranked = now,
                None => {
                    queues.insert(name.to_owned(), now);
                }
            }
        }
        queues.retain(|_, ranked| now.saturating_duration_since(*ranked) < SHOWN_AFTER);
        let surplus = queues.len().saturating_sub(self.max.saturating_mul(2));
        if surplus > 0 {
            let mut oldest: Vec<(Instant, String)> = queues.iter().map(|(name, at)| (*at, name.clone())).collect();
            oldest.sort_unstable();
            for (_, name) in oldest.into_iter().take(surplus) {
                queues.remove(&name);
            }
        }
    }

    /// Names queues without runs (their workers are idle) while fewer than `max` are named.
    pub fn admit<'a>(&self, names: impl IntoIterator<Item = &'a str>, now: Instant) {
        let mut queues = self.lock();
        for name in names {
            let named = queues.len();
            match queues.get_mut(name) {
                Some(ranked) if named <= self.max => *ranked = now,
                None if named < self.max => {
                    queues.insert(name.to_owned(), now);
                }
                Some(_) | None => {}
            }
        }
    }

    pub fn names(&self) -> HashSet<String> {
        self.lock().keys().cloned().collect()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Instant>> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(shown: &ShownQueues) -> Vec<String> {
        let mut names: Vec<String> = shown.names().into_iter().collect();
        names.sort_unstable();
        names
    }

    #[test]
    fn largest_queues_are_named_and_stay_for_an_hour() {
        let (shown, begin) = (ShownQueues::new(2), Instant::now());
        shown.rank(vec![("a/1", 1), ("a/2", 2), ("a/3", 3)], begin);
        assert_eq!(named(&shown), ["a/2", "a/3"]);
        // Equal queues do not displace named ones.
        shown.rank(vec![("a/1", 3), ("a/2", 3), ("a/3", 3)], begin);
        assert_eq!(named(&shown), ["a/2", "a/3"]);
        let later = begin + Duration::from_secs(60);
        shown.rank(vec![("a/1", 9), ("a/2", 1), ("a/3", 3)], later);
        assert_eq!(named(&shown), ["a/1", "a/2", "a/3"]);
        shown.rank(vec![("a/1", 9), ("a/3", 3)], begin + SHOWN_AFTER);
        assert_eq!(named(&shown), ["a/1", "a/3"]);
    }

    #[test]
    fn number_of_named_queues_is_bounded() {
        let (shown, begin) = (ShownQueues::new(2), Instant::now());
        for round in 0..10_u64 {
            let names = [format!("a/{round}"), format!("b/{round}")];
            let runs = names.iter().map(|name| (name.as_str(), 1)).collect();
            shown.rank(runs, begin + Duration::from_secs(round));
        }
        assert_eq!(named(&shown), ["a/8", "a/9", "b/8", "b/9"]);
    }

    #[test]
    fn queue_without_runs_is_named_while_there_is_room() {
        let (shown, begin) = (ShownQueues::new(2), Instant::now());
        shown.rank(vec![("a/1", 1)], begin);
        shown.admit(["b/1", "b/2"], begin);
        assert_eq!(named(&shown), ["a/1", "b/1"]);
        let later = begin + SHOWN_AFTER;
        shown.admit(["b/1"], later);
        shown.rank(Vec::new(), later);
        assert_eq!(named(&shown), ["b/1"]);
    }
}
