//! Metrics of decisions: which waiting runs start, and what blocks the others.

use std::time::Duration;

use tenure_domain::admission::Stop;

const STARTED: &str = "tenure_admission_started_total";
const BLOCKED: &str = "tenure_admission_blocked_total";
const ROUNDS: &str = "tenure_admission_rounds_total";
const LOCK_SECONDS: &str = "tenure_admission_lock_seconds";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Dispatch {
    Pull,
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
    Total,
    Rate,
    Keys,
    /// The remaining runs cannot start now, usually because they are locked.
    Locked,
    Paused,
    /// The decision or response is full. The next decision continues.
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

/// Call it once per decision.
pub(crate) fn count_blocked(because: Blocked) {
    metrics::counter!(BLOCKED, "reason" => because.label()).increment(1);
}

pub(crate) fn count_decision(stop: Stop, started: usize, demand: u64) {
    if (started as u64) < demand {
        count_blocked(stop.into());
    }
}

pub(crate) fn count_round() {
    metrics::counter!(ROUNDS).increment(1);
}

pub(crate) fn record_lock(took: Duration) {
    metrics::histogram!(LOCK_SECONDS).record(took);
}

/// Registers the metrics, so that the first increment is visible.
pub fn begin_at_zero() {
    for dispatch in Dispatch::ALL {
        metrics::counter!(STARTED, "dispatch" => dispatch.label()).absolute(0);
    }
    for blocked in Blocked::ALL {
        metrics::counter!(BLOCKED, "reason" => blocked.label()).absolute(0);
    }
    metrics::counter!(ROUNDS).absolute(0);
    drop(metrics::histogram!(LOCK_SECONDS));
    metrics::gauge!("tenure_admission_announcements").set(0.0);
}
