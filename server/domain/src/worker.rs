//! What is known of workers and of the queues that they ask: when each was seen, until when it is shown, and whether it
//! may have work.

use std::time::Duration;

use chrono::{DateTime, Utc};
use uuid::Uuid;

const DAY: Duration = Duration::from_secs(86_400);
/// How long a worker is shown after it was last seen, and its queue with it.
pub const WORKER_KEPT: Duration = DAY;
/// How long a queue is listed after a run of it was claimed by claimTask.
pub const CLAIM_TASK_QUEUE_KEPT: Duration = Duration::from_secs(5 * DAY.as_secs());
/// How long a worker is listed at least after its quarantine was changed.
pub const QUARANTINED_KEPT: Duration = DAY;
/// How many of its last claims are remembered of a worker.
pub const RECENT_MAX: usize = 20;
/// How many changes of its quarantine are remembered of a worker.
pub const QUARANTINES_MAX: usize = 100;
/// The longest reason for a quarantine, in characters.
pub const QUARANTINE_INFO_MAX: usize = 4_000;

/// A worker of a queue.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkerKey {
    /// `task_queues.id`.
    pub queue: i32,
    pub group: String,
    pub id: String,
}

/// How a worker was noticed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sight {
    /// It asked for work.
    ClaimWork,
    /// It claimed a run that it knew.
    ClaimTask,
    /// It renewed a claim.
    Reclaim,
}

impl Sight {
    /// How long its queue is shown from then on.
    #[must_use]
    pub fn queue_kept(self) -> Duration {
        match self {
            Self::ClaimWork | Self::Reclaim => WORKER_KEPT,
            Self::ClaimTask => CLAIM_TASK_QUEUE_KEPT,
        }
    }
}

/// A claim that a worker made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Recent {
    pub task: Uuid,
    pub run: i16,
    pub claimed: DateTime<Utc>,
}

/// Adds a claim to a list of the last ones, oldest first.
pub fn remember(recent: &mut Vec<Recent>, claim: Recent) {
    if recent.iter().any(|known| (known.task, known.run) == (claim.task, claim.run)) {
        return;
    }
    // Claims come nearly in order.
    let place = recent.iter().rposition(|known| known.claimed <= claim.claimed).map_or(0, |before| before + 1);
    recent.insert(place, claim);
    if recent.len() > RECENT_MAX {
        recent.remove(0);
    }
}

/// The two dates that decide about a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Visibility {
    pub expires: DateTime<Utc>,
    /// Until when it gets no work.
    pub quarantine_until: Option<DateTime<Utc>>,
}

impl Visibility {
    #[must_use]
    pub fn is_quarantined(self, now: DateTime<Utc>) -> bool {
        self.quarantine_until.is_some_and(|until| is_barred(until, now))
    }

    /// Whether the worker is shown; one that is not may be purged. A quarantined worker never expires.
    #[must_use]
    pub fn is_shown(self, now: DateTime<Utc>) -> bool {
        self.expires > now || self.is_quarantined(now)
    }

    /// The dates after its quarantine was changed. A date in the past lifts it.
    #[must_use]
    pub fn quarantined(self, until: DateTime<Utc>, now: DateTime<Utc>) -> Self {
        Self { expires: self.expires.max(now + QUARANTINED_KEPT), quarantine_until: Some(until) }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkerState {
    /// It gets no work, whatever it still holds.
    Quarantined,
    /// It holds a claim.
    Running,
    /// It holds none.
    Idle,
}

impl WorkerState {
    /// The state of a worker that holds so many claims.
    pub fn of(visibility: Visibility, claims: u64, now: DateTime<Utc>) -> Self {
        if visibility.is_quarantined(now) {
            return Self::Quarantined;
        }
        if claims > 0 { Self::Running } else { Self::Idle }
    }
}

/// Whether a quarantine until then is on.
pub fn is_barred(until: DateTime<Utc>, now: DateTime<Utc>) -> bool {
    until > now
}

/// Why a change of a quarantine is refused before anything is looked up.
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
    fn a_worker_is_shown_until_it_expires_or_its_quarantine_ends() {
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
    fn a_quarantine_keeps_the_worker_for_a_day_at_least_and_a_past_date_lifts_it() {
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
    fn a_reason_has_at_most_four_thousand_characters_of_text() {
        assert_eq!(check_info(None), None);
        assert_eq!(check_info(Some(&"ä".repeat(4_000))), None);
        assert!(check_info(Some(&"a".repeat(4_001))).is_some_and(|why| why.contains("4000")));
        assert!(check_info(Some("a\0b")).is_some());
    }

    #[test]
    fn a_claim_that_is_noted_twice_is_remembered_once() {
        let mut recent = vec![claim(1, 1)];
        remember(&mut recent, claim(1, 1));
        assert_eq!(recent, [claim(1, 1)]);
        remember(&mut recent, Recent { run: 1, ..claim(1, 2) });
        assert_eq!(recent.len(), 2);
    }

    proptest! {
        #[test]
        fn the_last_twenty_claims_are_remembered_oldest_first(hours in proptest::collection::vec(0_i64..50, 0..60)) {
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
