//! A value that a server remembers from the database, and can drop at any time.
//!
//! What was requested before a drop is not taken in afterwards: the database that answered may have lost it since.

use std::sync::{Arc, PoisonError, RwLock};

/// The value. A clone is the same memory.
#[derive(Debug)]
pub struct Memory<T> {
    shared: Arc<RwLock<Inner<T>>>,
}

#[derive(Debug, Default)]
struct Inner<T> {
    epoch: Epoch,
    value: T,
}

/// The time between two drops.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Epoch(u64);

impl<T> Clone for Memory<T> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared) }
    }
}

impl<T: Default> Default for Memory<T> {
    fn default() -> Self {
        Self { shared: Arc::default() }
    }
}

impl<T: Default> Memory<T> {
    /// To be read before the database is asked for what [`Memory::note`] will take in.
    pub fn epoch(&self) -> Epoch {
        self.shared.read().unwrap_or_else(PoisonError::into_inner).epoch
    }

    /// Looks at what is remembered.
    pub fn read<R>(&self, look: impl FnOnce(&T) -> R) -> R {
        look(&self.shared.read().unwrap_or_else(PoisonError::into_inner).value)
    }

    /// Changes what is remembered, unless it was dropped since.
    pub fn note<R>(&self, since: Epoch, change: impl FnOnce(&mut T) -> R) -> Option<R> {
        let mut inner = self.shared.write().unwrap_or_else(PoisonError::into_inner);
        (inner.epoch == since).then(|| change(&mut inner.value))
    }

    pub fn drop_all(&self) {
        let mut inner = self.shared.write().unwrap_or_else(PoisonError::into_inner);
        *inner = Inner { epoch: Epoch(inner.epoch.0 + 1), value: T::default() };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_asked_for_before_a_drop_is_not_taken_in_after_it() {
        let memory = Memory::<Vec<i32>>::default();
        let epoch = memory.epoch();
        assert_eq!(memory.note(epoch, |value| value.push(1)), Some(()));
        memory.drop_all();
        assert_eq!(memory.note(epoch, |value| value.push(2)), None);
        assert!(memory.read(Vec::is_empty));
        memory.note(memory.epoch(), |value| value.push(3));
        assert_eq!(memory.clone().read(Vec::clone), [3]);
    }
}
