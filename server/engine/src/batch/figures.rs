//! Metrics of an operation's batches. Handles are kept: a look-up costs more than recording.

use metrics::{Histogram, histogram};

pub(super) struct Figures {
    pub(super) members: Histogram,
    pub(super) seconds: Histogram,
}

impl Figures {
    /// Call it with the first batch: a registered histogram is exported even without values.
    pub(super) fn of(operation: &'static str) -> Self {
        Self {
            members: histogram!("tenure_batch_members", "operation" => operation),
            seconds: histogram!("tenure_batch_seconds", "operation" => operation),
        }
    }

    /// Adds a histogram of the seconds that a member waits for its batch.
    pub(super) fn with_waits(operation: &'static str) -> (Self, Histogram) {
        (Self::of(operation), histogram!("tenure_batch_wait_seconds", "operation" => operation))
    }
}
