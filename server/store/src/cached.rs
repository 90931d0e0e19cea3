//! A cached database value that can be invalidated at any time.
//!
//! A result requested before an invalidation is discarded: the database may have been replaced
//! since.

use std::sync::{Arc, PoisonError, RwLock};

/// A cached value. Clones share it.
#[derive(Debug)]
pub struct Cached<T> {
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

impl<T> Clone for Cached<T> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared) }
    }
}

impl<T: Default> Default for Cached<T> {
    fn default() -> Self {
        Self { shared: Arc::default() }
    }
}

impl<T: Default> Cached<T> {
    /// Returns the current epoch. Call it before the query whose result goes to [`Cached::update`].
    pub fn epoch(&self) -> Epoch {
        self.shared.read().unwrap_or_else(PoisonError::into_inner).epoch
    }

    pub fn read<R>(&self, look: impl FnOnce(&T) -> R) -> R {
        look(&self.shared.read().unwrap_or_else(PoisonError::into_inner).value)
    }

    /// Applies `change`, unless the value was invalidated after `since`.
    pub fn update<R>(&self, since: Epoch, change: impl FnOnce(&mut T) -> R) -> Option<R> {
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
        let cached = Cached::<Vec<i32>>::default();
        let epoch = cached.epoch();
        assert_eq!(cached.update(epoch, |value| value.push(1)), Some(()));
        cached.drop_all();
        assert_eq!(cached.update(epoch, |value| value.push(2)), None);
        assert!(cached.read(Vec::is_empty));
        cached.update(cached.epoch(), |value| value.push(3));
        assert_eq!(cached.clone().read(Vec::clone), [3]);
    }
}
