//! Tasks whose resolution callers wait for. Code that resolves tasks names them here, which costs a lookup in a map; those
//! that other servers resolve are looked up for all callers together.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, futures::Notified};
use uuid::Uuid;

use crate::rooms::{ANONYMOUS_PART, Caller};

/// Callers that may wait at one server.
pub const WATCHERS_MAX: usize = 50_000;
/// How many of them may be without credentials.
const ANONYMOUS_MAX: usize = WATCHERS_MAX / ANONYMOUS_PART;
/// Callers that read their task, or what it returned, at the same time: all may watch the same one, and are notified together.
pub const READERS_MAX: usize = 4_000;

/// The tasks that are watched at one server.
#[derive(Clone, Default)]
pub struct Watched {
    shared: Arc<Shared>,
}

struct Shared {
    tasks: Mutex<HashMap<Uuid, Arc<Notify>>>,
    watchers: AtomicUsize,
    /// Those of the watchers that are without credentials; changed and compared only under the lock of the tasks.
    anonymous: AtomicUsize,
    /// Notified when there is something to look up.
    look: Notify,
    /// The turns of those that read their task.
    readers: Arc<Semaphore>,
}

impl Default for Shared {
    fn default() -> Self {
        Self {
            tasks: Mutex::default(),
            watchers: AtomicUsize::default(),
            anonymous: AtomicUsize::default(),
            look: Notify::default(),
            readers: Arc::new(Semaphore::new(READERS_MAX)),
        }
    }
}

/// Waits for a task until it is dropped.
pub struct Watcher {
    id: Uuid,
    caller: Caller,
    notify: Arc<Notify>,
    watched: Watched,
}

impl Watcher {
    /// Waits until the task is reported as resolved.
    pub fn notified(&self) -> Notified<'_> {
        self.notify.notified()
    }

    /// Waits for its turn to read the task, which lasts until the permit is dropped. There is always one: the semaphore is never closed.
    pub async fn turn(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.watched.shared.readers).acquire_owned().await.ok()
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        let shared = &self.watched.shared;
        let mut tasks = shared.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        shared.watchers.fetch_sub(1, Ordering::Relaxed);
        if self.caller == Caller::Anonymous {
            shared.anonymous.fetch_sub(1, Ordering::Relaxed);
        }
        // The map's and this one: clones are made and dropped only under the lock.
        if Arc::strong_count(&self.notify) == 2 {
            tasks.remove(&self.id);
        }
        // Released under the lock, so that two watchers dropped at once do not both count the other one.
        self.notify = Arc::default();
    }
}

impl Watched {
    /// Watches a task; none if there are too many watchers, or too many without credentials.
    #[must_use]
    pub fn watch(&self, id: Uuid, caller: Caller) -> Option<Watcher> {
        let mut tasks = self.shared.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        if self.watchers() >= WATCHERS_MAX {
            return None;
        }
        if caller == Caller::Anonymous {
            if self.shared.anonymous.load(Ordering::Relaxed) >= ANONYMOUS_MAX {
                return None;
            }
            self.shared.anonymous.fetch_add(1, Ordering::Relaxed);
        }
        self.shared.watchers.fetch_add(1, Ordering::Relaxed);
        let first = tasks.is_empty();
        let notify = Arc::clone(tasks.entry(id).or_default());
        drop(tasks);
        if first {
            self.shared.look.notify_one();
        }
        Some(Watcher { id, caller, notify, watched: self.clone() })
    }

    /// These tasks were resolved, by a transaction that has committed or is about to.
    pub fn notify(&self, ids: impl IntoIterator<Item = Uuid>) {
        let tasks = self.shared.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        if tasks.is_empty() || super::are_lost() {
            return;
        }
        ids.into_iter().filter_map(|id| tasks.get(&id)).for_each(|notify| notify.notify_waiters());
    }

    /// Tasks were resolved that are not named: they are looked up now.
    pub fn notify_unnamed(&self) {
        self.shared.look.notify_one();
    }

    /// How many callers wait.
    #[must_use]
    pub fn watchers(&self) -> usize {
        self.shared.watchers.load(Ordering::Relaxed)
    }

    /// The tasks that are watched.
    #[must_use]
    pub fn ids(&self) -> Vec<Uuid> {
        self.shared.tasks.lock().unwrap_or_else(PoisonError::into_inner).keys().copied().collect()
    }

    /// Waits until there may be something to look up.
    pub async fn look(&self) {
        self.shared.look.notified().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIGNED: Caller = Caller::Authenticated;

    #[tokio::test]
    async fn a_notification_reaches_all_watchers_of_the_task_and_no_other() {
        let watched = Watched::default();
        let (a, b) = (Uuid::from_u128(1), Uuid::from_u128(2));
        let watchers = [a, a, b].map(|id| watched.watch(id, SIGNED).unwrap());
        let mut notified: Vec<_> = watchers.iter().map(|watcher| Box::pin(watcher.notified())).collect();
        notified.iter_mut().for_each(|notified| assert!(!notified.as_mut().enable()));
        watched.notify([a, Uuid::from_u128(3)]);
        assert_eq!(
            notified.iter_mut().map(|notified| notified.as_mut().enable()).collect::<Vec<_>>(),
            [true, true, false]
        );
    }

    #[test]
    fn a_task_is_removed_with_the_last_of_its_watchers() {
        let watched = Watched::default();
        let id = Uuid::from_u128(1);
        let (one, two) = (watched.watch(id, SIGNED).unwrap(), watched.watch(id, Caller::Anonymous).unwrap());
        drop(one);
        assert_eq!((watched.ids(), watched.watchers()), (vec![id], 1));
        drop(two);
        assert_eq!((watched.ids(), watched.watchers()), (vec![], 0));
    }

    #[test]
    fn there_is_a_limit_of_watchers() {
        let watched = Watched::default();
        let watch = |n: usize, caller| watched.watch(Uuid::from_u128(n as u128), caller);
        let watchers: Vec<_> = (0..WATCHERS_MAX).map(|n| watch(n, SIGNED).unwrap()).collect();
        assert!(watch(1, SIGNED).is_none());
        drop(watchers);
        assert!(watch(1, SIGNED).is_some());
    }

    #[test]
    fn callers_without_credentials_get_a_quarter_and_leave_the_rest() {
        let watched = Watched::default();
        let watch = |n: usize, caller| watched.watch(Uuid::from_u128(n as u128), caller);
        let strangers: Vec<_> = (0..WATCHERS_MAX / 4).map(|n| watch(n, Caller::Anonymous).unwrap()).collect();
        assert!(watch(1, Caller::Anonymous).is_none());
        // What was refused has taken nothing.
        let others: Vec<_> = (strangers.len()..WATCHERS_MAX).map(|n| watch(n, SIGNED).unwrap()).collect();
        assert!(watch(1, SIGNED).is_none());
        drop(strangers);
        assert!(watch(1, Caller::Anonymous).is_some());
        drop(others);
    }
}
