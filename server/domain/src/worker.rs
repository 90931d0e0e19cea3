//! Workers and the queues they contact: retention, quarantine and recent claims.

use std::time::Duration;

use chrono::{DateTime, Utc};
use uuid::Uuid;

const DAY: Duration = Duration::from_secs(86_400);
/// How long a worker and its queue are shown after the last contact.
pub const WORKER_KEPT: Duration = DAY;
/// How long a queue is listed after a claimTask.
pub const CLAIM_TASK_QUEUE_KEPT: Duration = Duration::from_secs(5 * DAY.as_secs());
/// Minimum time that a worker is listed after a change of its quarantine.
pub const QUARANTINED_KEPT: Duration = DAY;
/// Stored recent claims per worker.
pub const RECENT_MAX: usize = 20;
/// Stored changes per worker.
pub const QUARANTINES_MAX: usize = 100;
pub const QUARANTINE_INFO_MAX: usize = 4_000;

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkerKey {
    /// `task_queues.id`.
    pub queue: i32,
    pub group: String,
    pub id: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sight {
    ClaimWork,
    /// Claimed a specific run.
    ClaimTask,
    Reclaim,
}

impl Sight {
    /// Returns how long its queue is shown afterwards.
    #[must_use]
    pub fn queue_kept(self) -> Duration {
        match self {
            Self::ClaimWork | Self::Reclaim => WORKER_KEPT,
            Self::ClaimTask => CLAIM_TASK_QUEUE_KEPT,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Recent {
    pub task: Uuid,
    pub run: i16,
    pub claimed: DateTime<Utc>,
}

/// Adds a claim; the oldest comes first.
pub fn remember(recent: &mut Vec<Recent>, claim: Recent) {
    if recent.iter().any(|known| (known.task, known.run) == (claim.task, claim.run)) {
        return;
    }
    // Claims arrive nearly in order.
    let place = recent.iter().rposition(|known| known.claimed <= claim.claimed).map_or(0, |before| before + 1);
    recent.insert(place, claim);
    if recent.len() > RECENT_MAX {
        recent.remove(0);
    }
}

/// Determines whether a worker is shown and gets work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Visibility {
    pub expires: DateTime<Utc>,
    pub quarantine_until: Option<DateTime<Utc>>,
}

impl Visibility {
    #[must_use]
    pub fn is_quarantined(self, now: DateTime<Utc>) -> bool {
        self.quarantine_until.is_some_and(|until| is_barred(until, now))
    }

    /// Others may be purged. A quarantined worker never expires.
    #[must_use]
    pub fn is_shown(self, now: DateTime<Utc>) -> bool {
        self.expires > now || self.is_quarantined(now)
    }

    /// A date in the past lifts the quarantine.
    #[must_use]
    pub fn quarantined(self, until: DateTime<Utc>, now: DateTime<Utc>) -> Self {
        Self { expires: self.expires.max(now + QUARANTINED_KEPT), quarantine_until: Some(until) }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkerState {
    /// Gets no work, even if it still holds runs.
    Quarantined,
    Running,
    Idle,
}

impl WorkerState {
    pub fn of(visibility: Visibility, claims: u64, now: DateTime<Utc>) -> Self {
        if visibility.is_quarantined(now) {
            return Self::Quarantined;
        }
        if claims > 0 { Self::Running } else { Self::Idle }
    }
}

pub fn is_barred(until: DateTime<Utc>, now: DateTime<Utc>) -> bool {
    until > now
}

#[must_use]
pub fn check_info(info: Option<&str>) -> Option<String> {
    let length = info.map_or(0, |info| info.chars().count());
    if length > QUARANTINE_INFO_MAX {
        return Some(format!("`quarantineInfo` must have at most {QUARANTINE_INFO_MAX} characters; it has {length}"));
    }
    // PostgreSQL stores every other character.
    info.filter(|info| info.contains('\0')).map(|_| "`quarantineInfo` must not contain U+0000".to_owned())
}

#[cfg(test)]
mod tests {
    use chrono::TimeDelta;
    use proptest::prelude::*;

    use super::*;

    fn at(hours: i64) -> DateTime<Utc> {
        DateTime::from_timestamp(1_800_000_000, 0).unwrap() + TimeDelta::hours(hours)
    }

    fn claim(number: u128, hours: i64) -> Recent {
        Recent { task: Uuid::from_u128(number), run: 0, claimed: at(hours) }
    }

    #[test]
    fn worker_is_shown_until_expiry_or_end_of_quarantine() {
        for (expires, quarantine, quarantined, shown) in [
            (1, None, false, true),
            (0, None, false, false),
            (-1, None, false, false),
            (1, Some(-1), false, true),
            (1, Some(0), false, true),
            (1, Some(1), true, true),
            (-1, Some(1), true, true),
            (-1, Some(0), false, false),
            (-1, Some(-1), false, false),
        ] {
            let visibility = Visibility { expires: at(expires), quarantine_until: quarantine.map(at) };
            assert_eq!(
                (visibility.is_quarantined(at(0)), visibility.is_shown(at(0))),
                (quarantined, shown),
                "{visibility:?}"
            );
        }
    }

    #[test]
    fn quarantine_keeps_worker_for_a_day_and_past_date_lifts_it() {
        let visibility = Visibility { expires: at(1), quarantine_until: None };
        let barred = visibility.quarantined(at(48), at(0));
        assert_eq!(
            (barred.expires, barred.is_quarantined(at(47)), barred.is_quarantined(at(48))),
            (at(24), true, false)
        );
        let lifted = barred.quarantined(at(-5), at(1));
        assert_eq!((lifted.expires, lifted.is_quarantined(at(1))), (at(25), false));
        let long = Visibility { expires: at(100), quarantine_until: None };
        assert_eq!(long.quarantined(at(1), at(0)).expires, at(100));
    }

    #[test]
    fn a_worker_is_in_one_state() {
        for (quarantine, claims, state) in [
            (None, 0, WorkerState::Idle),
            (None, 2, WorkerState::Running),
            (Some(0), 1, WorkerState::Running),
            (Some(1), 0, WorkerState::Quarantined),
            (Some(1), 1, WorkerState::Quarantined),
        ] {
            let visibility = Visibility { expires: at(5), quarantine_until: quarantine.map(at) };
            assert_eq!(WorkerState::of(visibility, claims, at(0)), state, "{visibility:?} {claims}");
        }
    }

    #[test]
    fn quarantine_reason_is_limited_to_4000_characters() {
        assert_eq!(check_info(None), None);
        assert_eq!(check_info(Some(&"ä".repeat(4_000))), None);
        assert!(check_info(Some(&"a".repeat(4_001))).is_some_and(|why| why.contains("4000")));
        assert!(check_info(Some("a\0b")).is_some());
    }

    #[test]
    fn repeated_claim_is_stored_once() {
        let mut recent = vec![claim(1, 1)];
        remember(&mut recent, claim(1, 1));
        assert_eq!(recent, [claim(1, 1)]);
        remember(&mut recent, Recent { run: 1, ..claim(1, 2) });
        assert_eq!(recent.len(), 2);
    }

    proptest! {
        #[test]
        fn last_twenty_claims_are_stored_oldest_first(hours in proptest::collection::vec(0_i64..50, 0..60)) {
            let claims: Vec<Recent> = (1..).zip(&hours).map(|(number, &hour)| claim(number, hour)).collect();
            let mut recent = Vec::new();
            for one in &claims {
                remember(&mut recent, *one);
            }
            prop_assert!(recent.is_sorted_by_key(|one| one.claimed));
            prop_assert_eq!(recent.len(), claims.len().min(RECENT_MAX));
            let mut times: Vec<_> = claims.iter().map(|one| one.claimed).collect();
            times.sort();
            let newest = times.split_off(times.len() - recent.len());
            prop_assert_eq!(recent.iter().map(|one| one.claimed).collect::<Vec<_>>(), newest);
        }
    }
}
