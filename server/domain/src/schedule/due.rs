//! Which of the times that are due get a task. Several are due if no server ran, or if the task
//! could not be created yet.

use chrono::{DateTime, TimeDelta, Utc};
use tenure_api::states::CatchUp;

use super::pattern::Pattern;

/// Under [`CatchUp::None`], the first attempt at a time is made up to this late.
const LATE_MAX: TimeDelta = TimeDelta::minutes(1);
/// Times that [`CatchUp::All`] makes up, the latest ones.
const CAUGHT_UP_MAX: usize = 100;
/// Pause before a fire that was refused for now is tried again.
pub const RETRY_AFTER: TimeDelta = TimeDelta::seconds(5);

/// An attempt at the next time of a schedule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Attempt {
    First,
    /// After a refusal for now.
    Repeated,
}

/// What to do about a schedule that is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Due {
    /// The time that gets a task.
    pub fire: Option<DateTime<Utc>>,
    /// The time to be made afterwards, possibly in the past; none if the pattern has no further
    /// one.
    pub next: Option<DateTime<Utc>>,
}

/// `next` is the next time of the pattern without a task, `attempt` the one at it, and `now` not
/// before it.
#[must_use]
pub fn decide(pattern: &Pattern, catch_up: CatchUp, next: DateTime<Utc>, attempt: Attempt, now: DateTime<Utc>) -> Due {
    let wanted = match catch_up {
        CatchUp::None | CatchUp::Last => 1,
        CatchUp::All => CAUGHT_UP_MAX,
    };
    let latest = latest(pattern, next, now, wanted);
    let fire = latest.first().copied().unwrap_or(next);
    let is_first = attempt == Attempt::First || fire != next;
    let is_late = is_first && now - fire > LATE_MAX;
    Due {
        fire: match catch_up {
            CatchUp::None if is_late => None,
            CatchUp::None | CatchUp::Last | CatchUp::All => Some(fire),
        },
        next: pattern.next_after(fire),
    }
}

/// The latest times from `first` to `now`, in order. It looks back in growing steps: a pattern of
/// every minute may have missed a year.
fn latest(pattern: &Pattern, first: DateTime<Utc>, now: DateTime<Utc>, wanted: usize) -> Vec<DateTime<Utc>> {
    let mut step = TimeDelta::minutes(2);
    loop {
        let from = now - step;
        let is_whole = from < first;
        // `first` itself may be no time of a pattern that was changed by a new law.
        let start = if is_whole { vec![first] } else { pattern.next_after(from).into_iter().collect() };
        let mut found: Vec<DateTime<Utc>> = Vec::new();
        let mut time = start.first().copied().filter(|time| *time <= now);
        while let Some(at) = time {
            found.push(at);
            time = pattern.next_after(at).filter(|next| *next <= now);
        }
        if is_whole || found.len() >= wanted {
            return found.split_off(found.len().saturating_sub(wanted));
        }
        step = step * 2;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn time(text: &str) -> DateTime<Utc> {
        text.parse().unwrap()
    }

    fn decided(cron: &str, catch_up: CatchUp, next: &str, now: &str) -> Due {
        decide(&Pattern::parse(cron, "UTC").unwrap(), catch_up, time(next), Attempt::First, time(now))
    }

    fn due(fire: Option<&str>, next: &str) -> Due {
        Due { fire: fire.map(time), next: Some(time(next)) }
    }

    #[test]
    fn time_that_is_due_gets_a_task() {
        for catch_up in [CatchUp::None, CatchUp::Last, CatchUp::All] {
            let found = decided("0 3 * * *", catch_up, "2026-01-02T03:00:00Z", "2026-01-02T03:00:00.2Z");
            assert_eq!(found, due(Some("2026-01-02T03:00:00Z"), "2026-01-03T03:00:00Z"), "{catch_up:?}");
        }
    }

    #[test]
    fn missed_times_follow_the_rule() {
        let (next, now) = ("2026-01-02T03:00:00Z", "2026-01-05T12:00:00Z");
        let found = |catch_up| decided("0 3 * * *", catch_up, next, now);
        assert_eq!(found(CatchUp::Last), due(Some("2026-01-05T03:00:00Z"), "2026-01-06T03:00:00Z"));
        assert_eq!(found(CatchUp::None), due(None, "2026-01-06T03:00:00Z"));
        assert_eq!(found(CatchUp::All), due(Some("2026-01-02T03:00:00Z"), "2026-01-03T03:00:00Z"));
    }

    #[test]
    fn none_makes_a_time_up_to_a_minute_late() {
        let found = |now| decided("0 3 * * *", CatchUp::None, "2026-01-01T03:00:00Z", now).fire.is_some();
        assert!(found("2026-01-01T03:01:00Z"));
        assert!(!found("2026-01-01T03:01:01Z"));
        // An earlier one was missed, the latest is not late.
        assert!(found("2026-01-04T03:00:30Z"));
    }

    #[test]
    fn none_repeats_a_refused_time_until_the_next() {
        let pattern = Pattern::parse("0 3 * * *", "UTC").unwrap();
        let found = |now| decide(&pattern, CatchUp::None, time("2026-01-01T03:00:00Z"), Attempt::Repeated, time(now));
        for now in ["2026-01-01T03:10:00Z", "2026-01-02T02:59:59Z"] {
            assert_eq!(found(now), due(Some("2026-01-01T03:00:00Z"), "2026-01-02T03:00:00Z"), "{now}");
        }
        assert_eq!(found("2026-01-02T03:00:04Z"), due(Some("2026-01-02T03:00:00Z"), "2026-01-03T03:00:00Z"));
        // No server ran at the next time, so that was not refused.
        assert_eq!(found("2026-01-02T03:10:00Z"), due(None, "2026-01-03T03:00:00Z"));
    }

    #[test]
    fn all_makes_up_the_latest_hundred() {
        let mut next = time("2025-01-01T00:00:00Z");
        let now = time("2026-01-01T00:00:30Z");
        let pattern = Pattern::parse("* * * * *", "UTC").unwrap();
        let mut fired = Vec::new();
        while next <= now {
            let due = decide(&pattern, CatchUp::All, next, Attempt::First, now);
            fired.extend(due.fire);
            next = due.next.unwrap();
        }
        assert_eq!(fired.len(), CAUGHT_UP_MAX);
        assert_eq!(fired.first(), Some(&time("2025-12-31T22:21:00Z")));
        assert_eq!(fired.last(), Some(&time("2026-01-01T00:00:00Z")));
    }
}
