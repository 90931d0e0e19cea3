//! A worker's presence and activity, for people.

use chrono::{DateTime, TimeDelta, Utc};

use crate::policy::why::ASKED_WITHIN;
use crate::worker::is_barred;

/// Time without contact after which a worker without runs is silent.
pub const SILENT_AFTER: TimeDelta = ASKED_WITHIN;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Presence {
    /// Removed, without contact since.
    Removed,
    /// Gets no work, even if it still holds runs.
    Quarantined,
    /// Its session asked for no further runs.
    Frozen,
    Working,
    Idle,
    Silent,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Known {
    pub contact: DateTime<Utc>,
    /// The end of the quarantine; may be past.
    pub quarantine_until: Option<DateTime<Utc>>,
    pub removed: Option<DateTime<Utc>>,
    /// True if its live session is frozen.
    pub frozen: bool,
    pub claims: i64,
}

impl Presence {
    /// A worker with a run need not contact the server until its lease ends.
    pub fn of(known: Known, now: DateTime<Utc>) -> Self {
        if known.removed.is_some_and(|removed| removed >= known.contact) {
            Self::Removed
        } else if known.quarantine_until.is_some_and(|until| is_barred(until, now)) {
            Self::Quarantined
        } else if known.frozen {
            Self::Frozen
        } else if known.claims > 0 {
            Self::Working
        } else if now - known.contact > SILENT_AFTER {
            Self::Silent
        } else {
            Self::Idle
        }
    }

    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Removed => "removed",
            Self::Quarantined => "quarantined",
            Self::Frozen => "frozen",
            Self::Working => "working",
            Self::Idle => "idle",
            Self::Silent => "silent",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: i64 = 1_800_000_000;

    fn at(seconds: i64) -> DateTime<Utc> {
        DateTime::from_timestamp(NOW + seconds, 0).unwrap()
    }

    #[test]
    fn presence_is_most_important_applicable_state() {
        let silent = -SILENT_AFTER.num_seconds() - 1;
        for (contact, quarantine, removed, frozen, claims, word) in [
            (0, None, None, false, 0, "idle"),
            (silent + 1, None, None, false, 0, "idle"),
            (silent, None, None, false, 0, "silent"),
            // It renews its claim once in many minutes.
            (silent, None, None, false, 1, "working"),
            (0, None, None, true, 0, "frozen"),
            (silent, None, None, true, 1, "frozen"),
            (0, Some(1), None, true, 1, "quarantined"),
            (0, Some(1), None, false, 1, "quarantined"),
            (silent, Some(1), None, false, 0, "quarantined"),
            (0, Some(0), None, false, 0, "idle"),
            (-5, Some(1), Some(-5), true, 1, "removed"),
            (silent, None, Some(-5), false, 0, "removed"),
            // Another worker of this name has registered.
            (-4, None, Some(-5), false, 0, "idle"),
        ] {
            let (quarantine_until, removed) = (quarantine.map(at), removed.map(at));
            let known = Known { contact: at(contact), quarantine_until, removed, frozen, claims };
            assert_eq!(Presence::of(known, at(0)).as_str(), word, "{known:?}");
        }
    }
}
