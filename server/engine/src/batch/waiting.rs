//! Counts an operation's waiting members and their bytes.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::WAITING_BYTES_MAX;

/// Last count of one loop's waiting members. The gauge has the sum over all loops.
#[derive(Clone, Default)]
pub(super) struct Waiting(usize);

impl Waiting {
    pub(super) fn count(&mut self, own: usize, operation: &'static str) {
        let before = std::mem::replace(&mut self.0, own);
        if own != before {
            metrics::gauge!("tenure_batch_waiting", "operation" => operation).increment(own as f64 - before as f64);
        }
    }
}

/// Bytes counted until this is dropped.
pub(super) struct Weight {
    bytes: usize,
    all: Arc<AtomicUsize>,
}

impl Weight {
    /// Counts bytes unless the limit is exceeded already.
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
