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
pub(crate) struct Rooms {
    max: usize,
    all: Arc<Semaphore>,
    anonymous: Arc<Semaphore>,
}

/// Counts a request until it is dropped.
#[derive(Debug)]
pub struct Room {
    _all: OwnedSemaphorePermit,
    _anonymous: Option<OwnedSemaphorePermit>,
}

impl Rooms {
    pub(crate) fn new(max: usize) -> Self {
        let semaphore = |permits| Arc::new(Semaphore::new(permits));
        Self { max, all: semaphore(max), anonymous: semaphore(max / ANONYMOUS_PART) }
    }

    pub(crate) fn enter(&self, caller: Caller) -> Option<Room> {
        let all = Arc::clone(&self.all).try_acquire_owned().ok()?;
        let anonymous = match caller {
            Caller::Anonymous => Some(Arc::clone(&self.anonymous).try_acquire_owned().ok()?),
            Caller::Authenticated => None,
        };
        Some(Room { _all: all, _anonymous: anonymous })
    }

    pub(crate) fn taken(&self) -> usize {
        self.max - self.all.available_permits()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn anonymous_callers_get_a_quarter() {
        let rooms = Rooms::new(8);
        let anonymous = [(); 2].map(|()| rooms.enter(Caller::Anonymous).unwrap());
        assert!(rooms.enter(Caller::Anonymous).is_none());
        // The refused request has taken nothing.
        let others = [(); 6].map(|()| rooms.enter(Caller::Authenticated).unwrap());
        assert!(rooms.enter(Caller::Authenticated).is_none());
        assert_eq!(rooms.taken(), 8);
        drop((anonymous, others));
        assert!(rooms.enter(Caller::Anonymous).is_some());
    }
}
