//! Counts claims that ended without a report, and ended sessions.

use tenure_api::states::{EndedBy, SessionEnd};
use tenure_domain::policy::ending::Ending;

const ENDINGS: &str = "tenure_endings_total";
const SESSION_ENDS: &str = "tenure_session_ends_total";

/// Counts claims ended by a statement that has or may have committed.
pub fn count(ending: Ending, claims: usize) {
    if let Some(by) = ending.ended_by() {
        metrics::counter!(ENDINGS, "ended_by" => by.as_str()).increment(claims as u64);
    }
}

pub fn count_session(by: SessionEnd) {
    metrics::counter!(SESSION_ENDS, "reason" => by.as_str()).increment(1);
}

/// Makes the first increment of each kind visible.
pub fn begin_at_zero() {
    for by in EndedBy::ALL {
        metrics::counter!(ENDINGS, "ended_by" => by.as_str()).absolute(0);
    }
    for by in SessionEnd::ALL {
        metrics::counter!(SESSION_ENDS, "reason" => by.as_str()).absolute(0);
    }
}
