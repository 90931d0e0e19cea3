//! What the tasks of the wait list are notified of, each about its own queues.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use super::{SendAway, Signal};
use crate::route::{HotSessions, Route};

/// What one task of the wait list has to look at.
#[derive(Default)]
pub struct WaitListNotifier {
    /// Queues notified since it last looked.
    claimable: Signal<i32>,
    /// Workers that are gone, since it last looked.
    gone: Mutex<Vec<SendAway>>,
    /// Whether the keys of queues may have been lost since it last looked.
    stale_keys: AtomicBool,
    /// Whether requests wait that are to be tried again.
    has_requests: AtomicBool,
}

impl WaitListNotifier {
    /// Whether it has requests: without any it is not notified of claimable runs. Said before the first request is tried, which finds
    /// what it was not notified of until then.
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

    /// The keys of queues may have been lost.
    pub(super) fn drop_keys(&self) {
        self.stale_keys.store(true, Ordering::SeqCst);
        self.claimable.wake();
    }

    pub async fn notified(&self) {
        self.claimable.wait().await;
    }

    /// The queues that were notified since the last call.
    #[must_use]
    pub fn take_claimable(&self) -> HashSet<i32> {
        self.claimable.take().keys
    }

    /// Whether the keys of queues may have been lost since the last call.
    #[must_use]
    pub fn take_stale_keys(&self) -> bool {
        self.stale_keys.swap(false, Ordering::SeqCst)
    }

    /// The workers that are gone since the last call.
    #[must_use]
    pub fn take_gone(&self) -> Vec<SendAway> {
        std::mem::take(&mut *self.gone.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Those of all tasks, by the loop of each.
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

    /// That of the task which has this queue.
    fn of(&self, queue: i32) -> &WaitListNotifier {
        self.get(Route::of_queue(queue).among(self.0.len()))
    }

    /// Runs became claimable in these queues.
    pub(super) fn notify(&self, queues: impl IntoIterator<Item = i32>) {
        match &*self.0 {
            [alone] => alone.notify(queues),
            _ => queues.into_iter().for_each(|queue| self.of(queue).notify([queue])),
        }
    }

    /// A worker is gone, whose requests wait in the queue that it names.
    pub(super) fn send_away(&self, leaving: SendAway) {
        self.of(leaving.worker.queue).send_away(leaving);
    }

    /// The keys of queues may have been lost.
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
    fn each_task_is_notified_of_its_own_queues_and_of_lost_keys() {
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
