//! Causes that hold the runs of a queue, in numbers and in words.

use chrono::{DateTime, Utc};
use tenure_api::policy::QueueCounts;

use super::counts::Counted;
use crate::verdict::span;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeldBy {
    /// Only a worker is missing.
    Nothing,
    Pause,
    Limit,
    /// Assigned to a session, which has not accepted them yet.
    Session,
    Delay,
}

impl HeldBy {
    #[must_use]
    pub fn words(self) -> &'static str {
        match self {
            Self::Nothing => "can start",
            Self::Pause => "paused",
            Self::Limit => "held by limits",
            Self::Session => "assigned",
            Self::Delay => "delayed",
        }
    }
}

/// Divides the pending and delayed runs of a queue. Parts without runs are omitted.
#[must_use]
pub fn divide(counts: &QueueCounts, is_paused: bool) -> Vec<(HeldBy, i64)> {
    let QueueCounts { pending, delayed, assigned, runnable, .. } = *counts;
    let parts = if is_paused {
        vec![(HeldBy::Pause, pending), (HeldBy::Delay, delayed)]
    } else {
        let free = (runnable - assigned).clamp(0, pending.max(0));
        let limited = pending - assigned - free;
        vec![(HeldBy::Nothing, free), (HeldBy::Limit, limited), (HeldBy::Session, assigned), (HeldBy::Delay, delayed)]
    };
    parts.into_iter().filter(|(_, runs)| *runs > 0).collect()
}

/// State of a queue's own limits.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct LimitsNow {
    /// Limit, and number of ready, assigned and claimed runs.
    pub total: Option<(u32, i64)>,
    /// When the rate of the queue allows the next start; none if now.
    pub next_start: Option<DateTime<Utc>>,
    /// True if keys have limits, too.
    pub has_key_limits: bool,
}

impl LimitsNow {
    /// Returns which limit holds the waiting runs; none if they only wait for a worker.
    #[must_use]
    pub fn words(&self, now: DateTime<Utc>) -> Option<String> {
        match (self.total, self.next_start) {
            (Some((limit, used)), _) if used >= i64::from(limit) => Some(format!("{used} of {limit} slots used")),
            (_, Some(next)) if next > now => Some(format!("rate: next start in {}", span(next - now))),
            _ => self.has_key_limits.then(|| "limits of keys".to_owned()),
        }
    }
}

/// Returns the cause that holds the runs of a queue. `limits` are needed if a limit holds a run.
#[must_use]
pub fn words(counted: Counted, is_paused: bool, limits: Option<&LimitsNow>, now: DateTime<Utc>) -> Option<String> {
    if is_paused {
        return Some("paused".to_owned());
    }
    // Other held runs are assigned to sessions.
    let waits = counted.waiting > 0;
    if let Some(words) = limits.filter(|_| waits).and_then(|limits| limits.words(now)) {
        return Some(words);
    }
    (counted.delayed > 0 && counted.pending <= 0).then(|| format!("{} delayed", counted.delayed))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::counts::shown;
    use chrono::TimeDelta;

    const NOW: DateTime<Utc> = DateTime::UNIX_EPOCH;

    fn counted(pending: i64, delayed: i64, waiting: i64) -> Counted {
        Counted { pending, claimed: 2, delayed, waiting }
    }

    #[test]
    fn parts_add_up_to_pending_and_delayed() {
        for (counts, assigned, admissible) in
            [(counted(9, 1, 5), 3, 2), (counted(9, 0, 0), 0, 0), (counted(4, 4, 4), 0, 0), (counted(0, 0, 0), 0, 0)]
        {
            for is_paused in [false, true] {
                let counts = shown(counts, assigned, admissible, is_paused);
                let sum: i64 = divide(&counts, is_paused).iter().map(|(_, runs)| runs).sum();
                assert_eq!(sum, counts.pending + counts.delayed, "{counts:?}");
            }
        }
    }

    #[test]
    fn run_is_held_by_limit_or_can_start() {
        let counts = shown(counted(9, 1, 5), 3, 2, false);
        let expected = [(HeldBy::Nothing, 3), (HeldBy::Limit, 3), (HeldBy::Session, 3), (HeldBy::Delay, 1)];
        assert_eq!(divide(&counts, false), expected);
        let paused = shown(counted(9, 1, 5), 3, 2, true);
        assert_eq!(divide(&paused, true), [(HeldBy::Pause, 9), (HeldBy::Delay, 1)]);
        assert!(divide(&QueueCounts::default(), false).is_empty());
    }

    #[test]
    fn full_limit_is_named_before_rate() {
        let next_start = Some(NOW + TimeDelta::seconds(4));
        let of = |total, next_start, has_key_limits| LimitsNow { total, next_start, has_key_limits }.words(NOW);
        assert_eq!(of(Some((12, 12)), next_start, true).as_deref(), Some("12 of 12 slots used"));
        assert_eq!(of(Some((12, 3)), next_start, true).as_deref(), Some("rate: next start in 4 s"));
        assert_eq!(of(None, None, true).as_deref(), Some("limits of keys"));
        assert_eq!(of(Some((12, 3)), Some(NOW), true).as_deref(), Some("limits of keys"));
    }

    #[test]
    fn limit_that_holds_nothing_is_not_named() {
        let free = LimitsNow { total: Some((12, 3)), next_start: None, has_key_limits: false };
        assert_eq!(words(counted(5, 0, 5), false, Some(&free), NOW), None);
        // All are assigned to sessions.
        let of_keys = LimitsNow { has_key_limits: true, ..free };
        assert_eq!(words(counted(5, 0, 0), false, Some(&of_keys), NOW), None);
    }

    #[test]
    fn pause_is_named_before_limits_and_delays() {
        let limits = LimitsNow { has_key_limits: true, ..LimitsNow::default() };
        assert_eq!(words(counted(1, 1, 1), true, Some(&limits), NOW).as_deref(), Some("paused"));
        assert_eq!(words(counted(1, 1, 1), false, Some(&limits), NOW).as_deref(), Some("limits of keys"));
        assert_eq!(words(counted(0, 3, 0), false, None, NOW).as_deref(), Some("3 delayed"));
        assert_eq!(words(counted(1, 3, 0), false, None, NOW), None);
    }
}
