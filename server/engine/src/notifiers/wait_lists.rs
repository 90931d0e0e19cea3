//! Notifications for the tasks of the wait list, each about its own queues.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use super::{SendAway, Signal};
use crate::route::{HotSessions, Route};

#[derive(Default)]
pub struct WaitListNotifier {
    claimable: Signal<i32>,
    gone: Mutex<Vec<SendAway>>,
    /// Set if queue keys may have been lost.
    stale_keys: AtomicBool,
    has_requests: AtomicBool,
}

impl WaitListNotifier {
    /// Without requests, the list gets no notifications of claimable runs. Set it before the first
    /// request's query, which covers the time before.
    pub fn set_has_requests(&self, has_requests: bool) {
        if self.has_requests.load(Ordering::Relaxed) != has_requests {
            self.has_requests.store(has_requests, Ordering::SeqCst);
        }
    }

    pub(super) fn notify(&self, queues: impl IntoIterator<Item = i32>) {
        if self.has_requests.load(Ordering::SeqCst) {
            self.claimable.notify(queues);
        }
    }

    pub(super) fn send_away(&self, leaving: SendAway) {
        self.gone.lock().unwrap_or_else(PoisonError::into_inner).push(leaving);
        self.claimable.wake();
    }

    pub(super) fn drop_keys(&self) {
        self.stale_keys.store(true, Ordering::SeqCst);
        self.claimable.wake();
    }

    pub async fn notified(&self) {
        self.claimable.wait().await;
    }

    #[must_use]
    pub fn take_claimable(&self) -> HashSet<i32> {
        self.claimable.take().keys
    }

    #[must_use]
    pub fn take_stale_keys(&self) -> bool {
        self.stale_keys.swap(false, Ordering::SeqCst)
    }

    #[must_use]
    pub fn take_gone(&self) -> Vec<SendAway> {
        std::mem::take(&mut *self.gone.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// One notifier for each loop.
pub(super) struct WaitLists(Box<[WaitListNotifier]>);

impl Default for WaitLists {
    fn default() -> Self {
        Self::new(HotSessions::MIN)
    }
}

impl WaitLists {
    pub(super) fn new(sessions: HotSessions) -> Self {
        Self(sessions.of_workers().map(|_| WaitListNotifier::default()).collect())
    }

    pub(super) fn get(&self, place: usize) -> &WaitListNotifier {
        &self.0[place]
    }

    fn of(&self, queue: i32) -> &WaitListNotifier {
        self.get(Route::of_queue(queue).among(self.0.len()))
    }

    pub(super) fn notify(&self, queues: impl IntoIterator<Item = i32>) {
        match &*self.0 {
            [alone] => alone.notify(queues),
            _ => queues.into_iter().for_each(|queue| self.of(queue).notify([queue])),
        }
    }

    /// Cancels the requests of a removed worker, which wait in its queue.
    pub(super) fn send_away(&self, leaving: SendAway) {
        self.of(leaving.worker.queue).send_away(leaving);
    }

    pub(super) fn drop_keys(&self) {
        self.0.iter().for_each(WaitListNotifier::drop_keys);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tenure_store::worker_removals::Gone;
    use tokio::sync::oneshot;

    #[test]
    fn task_is_notified_of_own_queues_and_lost_keys() {
        let all = WaitLists::new(HotSessions::new(6).unwrap());
        let count = 3;
        let place = |queue| Route::of_queue(queue).among(count);
        all.notify(1..100);
        for task in 0..count {
            assert!(all.get(task).take_claimable().is_empty(), "it has no requests");
            all.get(task).set_has_requests(true);
        }
        all.notify(1..100);
        for queue in 1..100 {
            let (done, _) = oneshot::channel();
            let worker = Gone { queue, worker_group: "group".to_owned(), worker_id: "id".to_owned() };
            all.send_away(SendAway { worker, done });
        }
        all.drop_keys();
        for task in 0..count {
            let own: HashSet<i32> = (1..100).filter(|&queue| place(queue) == task).collect();
            assert!(!own.is_empty() && all.get(task).take_stale_keys());
            assert_eq!(all.get(task).take_claimable(), own);
            assert_eq!(all.get(task).take_gone().iter().map(|gone| gone.worker.queue).collect::<HashSet<_>>(), own);
        }
    }
}
