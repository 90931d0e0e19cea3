//! Queues that the pass `admission` cannot read, as one whose policy a newer release has stored. Each is left alone for a while, and
//! changes nothing for the others.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use super::AFTER_FAILURE;

/// The queues, and when each is tried again.
#[derive(Debug, Default)]
pub(super) struct FailingQueues(Mutex<BTreeMap<i32, Instant>>);

impl FailingQueues {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<i32, Instant>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets the queues that this server does not admit runs of any more.
    pub(super) fn keep(&self, is_ours: impl Fn(i32) -> bool) {
        self.lock().retain(|queue, _| is_ours(*queue));
    }

    /// Whether a queue is not to be tried yet.
    pub(super) fn is_put_off(&self, queue: i32) -> bool {
        self.lock().get(&queue).is_some_and(|until| *until > Instant::now())
    }

    /// A queue cannot be read, and is tried again when a pass that failed would be; whether that is new.
    pub(super) fn fail(&self, queue: i32) -> bool {
        self.lock().insert(queue, Instant::now() + AFTER_FAILURE).is_none()
    }

    /// A queue was looked at; whether that is new.
    pub(super) fn recover(&self, queue: i32) -> bool {
        self.lock().remove(&queue).is_some()
    }

    /// How many there are.
    pub(super) fn count(&self) -> usize {
        self.lock().len()
    }
}
