//! Bounds on the requests about runs that may wait at a server, and on their runs: each run is looked up twice a second.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Callers without credentials get one part in so many of the room, so that they never take what workers need.
pub(crate) const ANONYMOUS_PART: usize = 4;

/// Who asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Caller {
    /// A caller without credentials.
    Anonymous,
    /// A caller whose signature or token was checked.
    Authenticated,
}

/// The room that there is.
#[derive(Debug, Clone)]
pub(crate) struct Rooms {
    all: Bounds,
    anonymous: Bounds,
}

#[derive(Debug, Clone)]
struct Bounds {
    requests: Arc<Semaphore>,
    runs: Arc<Semaphore>,
}

/// The room that a request takes while it waits, or a stream while it is read; free again when this is dropped.
#[derive(Debug)]
pub struct Room {
    _permits: Vec<OwnedSemaphorePermit>,
}

impl Rooms {
    pub(crate) fn new(requests: usize, runs: usize) -> Self {
        Self {
            all: Bounds::new(requests, runs),
            anonymous: Bounds::new(requests / ANONYMOUS_PART, runs / ANONYMOUS_PART),
        }
    }

    /// Room for a request about so many runs, if there is some.
    pub(crate) fn enter(&self, runs: usize, caller: Caller) -> Option<Room> {
        let runs = u32::try_from(runs).ok()?;
        let mut permits = self.all.enter(runs)?;
        if caller == Caller::Anonymous {
            permits.extend(self.anonymous.enter(runs)?);
        }
        Some(Room { _permits: permits })
    }
}

impl Bounds {
    fn new(requests: usize, runs: usize) -> Self {
        Self { requests: Arc::new(Semaphore::new(requests)), runs: Arc::new(Semaphore::new(runs)) }
    }

    fn enter(&self, runs: u32) -> Option<Vec<OwnedSemaphorePermit>> {
        let request = Arc::clone(&self.requests).try_acquire_owned().ok()?;
        let runs = Arc::clone(&self.runs).try_acquire_many_owned(runs).ok()?;
        Some(vec![request, runs])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_and_runs_are_bounded_and_what_is_dropped_is_free_again() {
        let rooms = Rooms::new(2, 10);
        let first = rooms.enter(9, Caller::Authenticated).unwrap();
        assert!(rooms.enter(2, Caller::Authenticated).is_none(), "too many runs");
        let second = rooms.enter(1, Caller::Authenticated).unwrap();
        drop(first);
        let third = rooms.enter(1, Caller::Authenticated).unwrap();
        assert!(rooms.enter(1, Caller::Authenticated).is_none(), "too many requests");
        drop((second, third));
        assert!(rooms.enter(10, Caller::Authenticated).is_some());
    }

    #[test]
    fn callers_without_credentials_get_a_quarter_of_both() {
        let rooms = Rooms::new(8, 40);
        assert!(rooms.enter(11, Caller::Anonymous).is_none(), "too many runs");
        let taken = [5, 5].map(|runs| rooms.enter(runs, Caller::Anonymous).unwrap());
        assert!(rooms.enter(0, Caller::Anonymous).is_none(), "too many requests");
        // What was refused has taken nothing: all the rest is there for the others.
        let others = [5; 6].map(|runs| rooms.enter(runs, Caller::Authenticated).unwrap());
        assert!(rooms.enter(1, Caller::Authenticated).is_none());
        drop((taken, others));
        assert!(rooms.enter(10, Caller::Anonymous).is_some());
    }
}
