//! Counts claims that ended without a report, late results, and ended sessions.

use tenure_api::states::{EndedBy, SessionEnd};
use tenure_domain::policy::ending::Ending;

const ENDINGS: &str = "tenure_endings_total";
const LATE_RESULTS: &str = "tenure_late_results_total";
const SESSION_ENDS: &str = "tenure_session_ends_total";

/// Counts claims ended by a statement that has or may have committed.
pub fn count(ending: Ending, claims: usize) {
    if let Some(by) = ending.ended_by() {
        metrics::counter!(ENDINGS, "ended_by" => by.as_str()).increment(claims as u64);
    }
}

/// The fate of a report, as completed, of a run that was taken from its worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LateOutcome {
    /// The report resolved its task.
    Recorded,
    /// The queue rejects late results, or another run came first.
    Rejected,
}

impl LateOutcome {
    const ALL: [Self; 2] = [Self::Recorded, Self::Rejected];

    fn as_str(self) -> &'static str {
        match self {
            Self::Recorded => "recorded",
            Self::Rejected => "rejected",
        }
    }
}

pub fn count_late(outcome: LateOutcome) {
    metrics::counter!(LATE_RESULTS, "outcome" => outcome.as_str()).increment(1);
}

pub fn count_session(by: SessionEnd) {
    metrics::counter!(SESSION_ENDS, "reason" => by.as_str()).increment(1);
}

/// Makes the first increment of each kind visible.
pub fn begin_at_zero() {
    // A late result ends no claim.
    for by in EndedBy::ALL.iter().filter(|by| **by != EndedBy::LateResult) {
        metrics::counter!(ENDINGS, "ended_by" => by.as_str()).absolute(0);
    }
    for outcome in LateOutcome::ALL {
        metrics::counter!(LATE_RESULTS, "outcome" => outcome.as_str()).absolute(0);
    }
    for by in SessionEnd::ALL {
        metrics::counter!(SESSION_ENDS, "reason" => by.as_str()).absolute(0);
    }
}
