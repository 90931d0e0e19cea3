//! Until when resolved tasks are kept.
//!
//! The stored `expires` of a task that was submitted without it has one microsecond more than the
//! date shown: dates of requests are whole milliseconds. Such a task is purged early by default.

use chrono::{DateTime, TimeDelta, Utc};
use tenure_api::states::TaskState;

use super::document::Retain;

/// Of tasks submitted without `expires`, in queues without `retain`.
pub const RETAIN_DEFAULT: Retain = Retain { completed: Some(TimeDelta::days(7)), failed: Some(TimeDelta::days(30)) };
const MARK: TimeDelta = TimeDelta::microseconds(1);

/// Marks the default `expires` of a submission. Needs whole milliseconds.
#[must_use]
pub fn mark_default(expires: DateTime<Utc>) -> DateTime<Utc> {
    expires + MARK
}

/// True if the task was submitted without `expires`.
#[must_use]
pub fn is_default(expires: DateTime<Utc>) -> bool {
    expires.timestamp_subsec_micros() % 1_000 == 1
}

/// Returns the date until which a task is kept. `resolved` is the end of its last run, and `retain`
/// the policy of its queue. The SQL function of this name has the same rule.
#[must_use]
pub fn kept_until(
    state: TaskState,
    resolved: Option<DateTime<Utc>>,
    expires: DateTime<Utc>,
    retain: Option<Retain>,
) -> DateTime<Utc> {
    let retain = retain.or_else(|| is_default(expires).then_some(RETAIN_DEFAULT));
    let time = match state {
        TaskState::Completed => retain.and_then(|retain| retain.completed),
        TaskState::Failed | TaskState::Exception => retain.and_then(|retain| retain.failed),
        TaskState::Unscheduled | TaskState::Pending | TaskState::Running => None,
    };
    let until = resolved.zip(time).and_then(|(resolved, time)| resolved.checked_add_signed(time));
    until.map_or(expires, |until| until.min(expires))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> DateTime<Utc> {
        DateTime::from_timestamp(1_800_000_000 + seconds, 0).unwrap()
    }

    #[test]
    fn mark_is_invisible_and_recognized() {
        use tenure_api::dates::Timestamp;
        for expires in [at(0), at(0) + TimeDelta::milliseconds(999), DateTime::UNIX_EPOCH - TimeDelta::milliseconds(1)]
        {
            let marked = mark_default(expires);
            assert_eq!(Timestamp::new(marked), Timestamp::new(expires));
            assert_eq!((is_default(marked), is_default(expires)), (true, false), "{expires}");
        }
    }

    #[test]
    fn tasks_are_kept_by_outcome_and_at_most_until_expiry() {
        const DAY: i64 = 86_400;
        let year = at(365 * DAY);
        let marked = mark_default(year);
        let days = |completed: Option<i64>, failed: Option<i64>| {
            Some(Retain { completed: completed.map(TimeDelta::days), failed: failed.map(TimeDelta::days) })
        };
        // Retention of the queue, `expires`, and until when a completed and a failed task are kept.
        for (retain, expires, completed, failed) in [
            (None, year, year, year),
            (None, marked, at(7 * DAY), at(30 * DAY)),
            (days(Some(1), Some(2)), year, at(DAY), at(2 * DAY)),
            (days(Some(1), Some(2)), marked, at(DAY), at(2 * DAY)),
            (days(None, None), year, year, year),
            (days(None, None), marked, marked, marked),
            (days(Some(9), None), marked, at(9 * DAY), marked),
            (days(None, Some(9)), marked, marked, at(9 * DAY)),
            (days(Some(366), Some(366)), year, year, year),
            (days(Some(1), Some(2)), at(60), at(60), at(60)),
        ] {
            for (state, expected) in [
                (TaskState::Completed, completed),
                (TaskState::Failed, failed),
                (TaskState::Exception, failed),
                (TaskState::Unscheduled, expires),
                (TaskState::Pending, expires),
                (TaskState::Running, expires),
            ] {
                assert_eq!(kept_until(state, Some(at(0)), expires, retain), expected, "{state:?} {retain:?} {expires}");
                assert_eq!(kept_until(state, None, expires, retain), expires, "{state:?} without a run");
            }
        }
    }
}
