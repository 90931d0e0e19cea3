//! The metrics of an operation's batches. Their handles are kept, because looking one up by name and labels costs more than recording.

use metrics::{Histogram, histogram};

/// The histograms of an operation.
pub(super) struct Figures {
    /// Members of a batch.
    pub(super) members: Histogram,
    /// Seconds that a batch takes.
    pub(super) seconds: Histogram,
}

impl Figures {
    /// To be made with the first batch: a histogram is shown once it is made, even without a value.
    pub(super) fn of(operation: &'static str) -> Self {
        Self {
            members: histogram!("tenure_batch_members", "operation" => operation),
            seconds: histogram!("tenure_batch_seconds", "operation" => operation),
        }
    }

    /// The same, and the seconds that a member waits for its batch.
    pub(super) fn with_waits(operation: &'static str) -> (Self, Histogram) {
        (Self::of(operation), histogram!("tenure_batch_wait_seconds", "operation" => operation))
    }
}
