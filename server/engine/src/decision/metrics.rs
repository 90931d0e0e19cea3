//! Metrics of decisions: which waiting runs of limited queues start, and what keeps the others.

use std::time::Duration;

use tenure_domain::admission::Stop;

const STARTED: &str = "tenure_admission_started_total";
const BLOCKED: &str = "tenure_admission_blocked_total";
const ROUNDS: &str = "tenure_admission_rounds_total";
const LOCK_SECONDS: &str = "tenure_admission_lock_seconds";

/// How a queue starts its runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Dispatch {
    /// Workers claim them.
    Pull,
    /// Its scheduler gives them to sessions.
    Assign,
}

impl Dispatch {
    const ALL: [Self; 2] = [Self::Pull, Self::Assign];

    fn label(self) -> &'static str {
        match self {
            Self::Pull => "pull",
            Self::Assign => "assign",
        }
    }
}

/// Why a decision started fewer runs than the demand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Blocked {
    /// The queue is at its limit.
    Total,
    /// The rate of the queue allows no start now.
    Rate,
    /// No key has a run that may start.
    Keys,
    /// The remaining runs cannot start now, as a rule because another transaction has locked them.
    Locked,
    /// The queue is paused.
    Paused,
    /// The decision or an answer has its maximum size. The next decision goes on.
    More,
}

impl Blocked {
    const ALL: [Self; 6] = [Self::Total, Self::Rate, Self::Keys, Self::Locked, Self::Paused, Self::More];

    fn label(self) -> &'static str {
        match self {
            Self::Total => "total",
            Self::Rate => "rate",
            Self::Keys => "keys",
            Self::Locked => "locked",
            Self::Paused => "paused",
            Self::More => "more",
        }
    }
}

impl From<Stop> for Blocked {
    fn from(stop: Stop) -> Self {
        match stop {
            Stop::Total => Self::Total,
            Stop::Rate => Self::Rate,
            Stop::Keys => Self::Keys,
            Stop::PassedOver => Self::Locked,
            Stop::Demand | Stop::Unread => Self::More,
        }
    }
}

pub(crate) fn count_started(dispatch: Dispatch, runs: usize) {
    metrics::counter!(STARTED, "dispatch" => dispatch.label()).increment(runs as u64);
}

/// Counts a decision that started fewer runs than the demand. Call it once a decision.
pub(crate) fn count_blocked(because: Blocked) {
    metrics::counter!(BLOCKED, "reason" => because.label()).increment(1);
}

/// Counts a decision as blocked if it started fewer runs than the demand.
pub(crate) fn count_decision(stop: Stop, started: usize, demand: u64) {
    if (started as u64) < demand {
        count_blocked(stop.into());
    }
}

/// Counts a transaction that only took in announcements.
pub(crate) fn count_round() {
    metrics::counter!(ROUNDS).increment(1);
}

/// Records how long a decision took to lock its queue.
pub(crate) fn record_lock(took: Duration) {
    metrics::histogram!(LOCK_SECONDS).record(took);
}

/// Registers these metrics, so that the first increment of a counter is seen as one.
pub fn begin_at_zero() {
    for dispatch in Dispatch::ALL {
        metrics::counter!(STARTED, "dispatch" => dispatch.label()).absolute(0);
    }
    for blocked in Blocked::ALL {
        metrics::counter!(BLOCKED, "reason" => blocked.label()).absolute(0);
    }
    metrics::counter!(ROUNDS).absolute(0);
    // A histogram is shown once it is made.
    drop(metrics::histogram!(LOCK_SECONDS));
    metrics::gauge!("tenure_admission_announcements").set(0.0);
}
