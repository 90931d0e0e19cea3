//! A cached database value that can be invalidated at any time.
//!
//! A result requested before an invalidation is discarded: the database may have been replaced
//! since.

use std::sync::{Arc, PoisonError, RwLock};

/// A cached value. Clones share it.
#[derive(Debug)]
pub struct Memory<T> {
    shared: Arc<RwLock<Inner<T>>>,
}

#[derive(Debug, Default)]
struct Inner<T> {
    epoch: Epoch,
    value: T,
}

/// Counts invalidations.
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
    /// Returns the current epoch. Call it before the query whose result goes to [`Memory::note`].
    pub fn epoch(&self) -> Epoch {
        self.shared.read().unwrap_or_else(PoisonError::into_inner).epoch
    }

    pub fn read<R>(&self, look: impl FnOnce(&T) -> R) -> R {
        look(&self.shared.read().unwrap_or_else(PoisonError::into_inner).value)
    }

    /// Applies `change`, unless the value was invalidated after `since`.
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
    fn stale_result_is_discarded() {
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
