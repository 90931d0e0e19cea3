//! What waits of an operation: how many members, and how many bytes of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::WAITING_BYTES_MAX;

/// Members of an operation that wait, in all loops.
#[derive(Clone, Default)]
pub(super) struct Waiting {
    all: Arc<AtomicUsize>,
    /// Those of this loop, when it counted last.
    own: usize,
}

impl Waiting {
    /// So many wait in this loop.
    pub(super) fn count(&mut self, own: usize, operation: &'static str) {
        let more = own.wrapping_sub(std::mem::replace(&mut self.own, own));
        let all = self.all.fetch_add(more, Ordering::Relaxed).wrapping_add(more);
        metrics::gauge!("tenure_batch_waiting", "operation" => operation).set(all as f64);
    }
}

/// Bytes that are counted until this is dropped.
pub(super) struct Weight {
    bytes: usize,
    all: Arc<AtomicUsize>,
}

impl Weight {
    /// Counts them, unless there are too many already.
    pub(super) fn take(bytes: usize, all: &Arc<AtomicUsize>) -> Option<Self> {
        let before = all.fetch_add(bytes, Ordering::Relaxed);
        let weight = Self { bytes, all: Arc::clone(all) };
        (before <= WAITING_BYTES_MAX).then_some(weight)
    }
}

impl Drop for Weight {
    fn drop(&mut self) {
        self.all.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}
