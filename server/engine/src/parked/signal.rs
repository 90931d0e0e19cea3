//! Notifications of the task that owns parked requests.

use std::collections::HashSet;
use std::hash::Hash;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use crate::notifiers::are_lost;

/// Collects changed keys for one task.
pub(crate) struct Signal<K> {
    notified: Mutex<Notified<K>>,
    notify: Notify,
    waiting: Arc<AtomicUsize>,
}

/// The keys since the last [`Signal::take`].
pub(crate) struct Notified<K> {
    pub(crate) keys: HashSet<K>,
    /// Unknown keys were changed too.
    pub(crate) all: bool,
}

impl<K> Default for Notified<K> {
    fn default() -> Self {
        Self { keys: HashSet::new(), all: false }
    }
}

impl<K> Default for Signal<K> {
    fn default() -> Self {
        Self { notified: Mutex::default(), notify: Notify::new(), waiting: Arc::default() }
    }
}

/// Counts a waiting request until it is dropped.
pub(super) struct Waiting(Arc<AtomicUsize>);

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl<K: Eq + Hash> Signal<K> {
    pub(crate) fn notify(&self, keys: impl IntoIterator<Item = K>) {
        if are_lost() {
            return;
        }
        let mut notified = self.lock();
        let before = notified.keys.len();
        notified.keys.extend(keys);
        if notified.keys.len() > before {
            self.notify.notify_one();
        }
    }

    /// Takes no lock if no request waits.
    pub(crate) fn notify_if_waiting(&self, keys: impl IntoIterator<Item = K>) {
        if self.waiting() > 0 {
            self.notify(keys);
        }
    }

    /// Notifies the task that unknown keys were changed.
    pub(crate) fn notify_all(&self) {
        if self.waiting() > 0 && !are_lost() {
            self.lock().all = true;
            self.notify.notify_one();
        }
    }

    pub(crate) fn wake(&self) {
        self.notify.notify_one();
    }

    pub(crate) fn waiting(&self) -> usize {
        self.waiting.load(Ordering::SeqCst)
    }

    pub(crate) async fn wait(&self) {
        self.notify.notified().await;
    }

    pub(crate) fn take(&self) -> Notified<K> {
        std::mem::take(&mut *self.lock())
    }

    pub(super) fn enter(&self) -> Waiting {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        Waiting(Arc::clone(&self.waiting))
    }

    fn lock(&self) -> MutexGuard<'_, Notified<K>> {
        self.notified.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
