//! Bounds on the requests that may wait at a server, or stream from it.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The room is divided by this for callers without credentials, so that they never take what workers need.
pub(crate) const ANONYMOUS_PART: usize = 4;

/// Who asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Caller {
    /// A caller without credentials.
    Anonymous,
    /// A caller whose signature or token was checked.
    Authenticated,
}

/// A limit on requests, with a lower one for callers without credentials.
#[derive(Debug, Clone)]
pub(crate) struct Rooms {
    all: Arc<Semaphore>,
    anonymous: Arc<Semaphore>,
}

/// The room that a stream takes while it is read; free again when this is dropped.
#[derive(Debug)]
pub struct Room {
    _of_all: OwnedSemaphorePermit,
    _of_anonymous: Option<OwnedSemaphorePermit>,
}

impl Rooms {
    pub(crate) fn new(requests: usize) -> Self {
        let anonymous = Arc::new(Semaphore::new(requests / ANONYMOUS_PART));
        Self { all: Arc::new(Semaphore::new(requests)), anonymous }
    }

    /// Returns room for a request, if there is some.
    pub(crate) fn enter(&self, caller: Caller) -> Option<Room> {
        let of_all = Arc::clone(&self.all).try_acquire_owned().ok()?;
        let of_anonymous = match caller {
            Caller::Anonymous => Some(Arc::clone(&self.anonymous).try_acquire_owned().ok()?),
            Caller::Authenticated => None,
        };
        Some(Room { _of_all: of_all, _of_anonymous: of_anonymous })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn callers_without_credentials_get_a_quarter() {
        let rooms = Rooms::new(8);
        let taken = [Caller::Anonymous; 2].map(|caller| rooms.enter(caller).unwrap());
        assert!(rooms.enter(Caller::Anonymous).is_none());
        // What was refused has taken nothing: all the rest is there for the others.
        let others = [Caller::Authenticated; 6].map(|caller| rooms.enter(caller).unwrap());
        assert!(rooms.enter(Caller::Authenticated).is_none());
        drop((taken, others));
        assert!(rooms.enter(Caller::Anonymous).is_some());
    }
}
