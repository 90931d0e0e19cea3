//! Limits concurrent use of the connection pool, so that reads never take every connection.
//!
//! A request waits up to a second and then receives a 503. Callers without credentials share a
//! quarter of the slots and queue separately, because semaphores serve in order and a flood must
//! not delay others.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use super::budget::Share;
use super::error::ApiError;
use tenure_store::session::POOL_MAX;

/// Connections reserved for writes, which take no slot.
const KEPT_FOR_WRITES: usize = 2;
const SLOTS: usize = POOL_MAX as usize - KEPT_FOR_WRITES;
const ANONYMOUS_PART: usize = 4;
const WAIT_MAX: Duration = Duration::from_secs(1);

/// Clones share the slots.
#[derive(Clone)]
pub struct ReadSlots {
    all: Arc<Semaphore>,
    anonymous: Arc<Semaphore>,
}

/// Released on drop.
#[derive(Debug)]
pub struct ReadSlot {
    _slot: Option<OwnedSemaphorePermit>,
    _anonymous: Option<OwnedSemaphorePermit>,
}

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("too many requests are reading the database; send the request again")]
pub struct NoSlot;

impl From<NoSlot> for ApiError {
    fn from(error: NoSlot) -> Self {
        Self::unavailable(error.to_string())
    }
}

impl ReadSlots {
    #[must_use]
    pub fn new() -> Self {
        Self { all: Arc::new(Semaphore::new(SLOTS)), anonymous: Arc::new(Semaphore::new(SLOTS / ANONYMOUS_PART)) }
    }

    /// Takes a slot, waiting up to a second. Counts a timeout.
    pub async fn take(&self, share: Share) -> Result<ReadSlot, NoSlot> {
        timeout(WAIT_MAX, self.queue(share)).await.map_err(|_| {
            metrics::counter!("tenure_limits_reached_total", "limit" => "reads").increment(1);
            NoSlot
        })
    }

    /// Takes a slot without a time limit: for a bounded number of requests that have already
    /// waited.
    pub async fn queue(&self, share: Share) -> ReadSlot {
        // The semaphores never close. Holders of an anonymous permit wait only for requests that
        // hold a slot, so there is no deadlock.
        let anonymous = match share {
            Share::Anonymous => Arc::clone(&self.anonymous).acquire_owned().await.ok(),
            Share::Authenticated => None,
        };
        ReadSlot { _slot: Arc::clone(&self.all).acquire_owned().await.ok(), _anonymous: anonymous }
    }
}

impl Default for ReadSlots {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use std::iter::from_fn;

    use futures_util::FutureExt as _;

    use super::*;

    fn take_all(slots: &ReadSlots, share: Share) -> Vec<ReadSlot> {
        from_fn(|| slots.queue(share).now_or_never()).collect()
    }

    #[tokio::test]
    async fn anonymous_reads_get_a_quarter_of_slots() {
        let slots = ReadSlots::new();
        let taken = take_all(&slots, Share::Anonymous);
        assert_eq!(taken.len(), SLOTS / ANONYMOUS_PART);
        let begun = std::time::Instant::now();
        assert_eq!(slots.take(Share::Anonymous).await.unwrap_err(), NoSlot);
        assert!(begun.elapsed() >= WAIT_MAX);
        assert_eq!(take_all(&slots, Share::Authenticated).len(), SLOTS - taken.len());
        drop(taken);
        assert!(slots.take(Share::Anonymous).now_or_never().is_some());
    }
}
