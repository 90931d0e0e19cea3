//! Limits on waiting requests.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Anonymous callers may take one in this many, so that they never block workers.
pub(crate) const ANONYMOUS_PART: usize = 4;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Caller {
    Anonymous,
    /// With a checked signature or token.
    Authenticated,
}

#[derive(Debug, Clone)]
pub(crate) struct WaitLimit {
    max: usize,
    all: Arc<Semaphore>,
    anonymous: Arc<Semaphore>,
}

/// Counts a request until it is dropped.
#[derive(Debug)]
pub struct WaitPermit {
    _all: OwnedSemaphorePermit,
    _anonymous: Option<OwnedSemaphorePermit>,
}

impl WaitLimit {
    pub(crate) fn new(max: usize) -> Self {
        let semaphore = |permits| Arc::new(Semaphore::new(permits));
        Self { max, all: semaphore(max), anonymous: semaphore(max / ANONYMOUS_PART) }
    }

    pub(crate) fn acquire(&self, caller: Caller) -> Option<WaitPermit> {
        let all = Arc::clone(&self.all).try_acquire_owned().ok()?;
        let anonymous = match caller {
            Caller::Anonymous => Some(Arc::clone(&self.anonymous).try_acquire_owned().ok()?),
            Caller::Authenticated => None,
        };
        Some(WaitPermit { _all: all, _anonymous: anonymous })
    }

    pub(crate) fn in_use(&self) -> usize {
        self.max - self.all.available_permits()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn anonymous_callers_get_a_quarter() {
        let limit = WaitLimit::new(8);
        let anonymous = [(); 2].map(|()| limit.acquire(Caller::Anonymous).unwrap());
        assert!(limit.acquire(Caller::Anonymous).is_none());
        // The refused request has taken nothing.
        let others = [(); 6].map(|()| limit.acquire(Caller::Authenticated).unwrap());
        assert!(limit.acquire(Caller::Authenticated).is_none());
        assert_eq!(limit.in_use(), 8);
        drop((anonymous, others));
        assert!(limit.acquire(Caller::Anonymous).is_some());
    }
}
