//! Watched sessions: a claimWork request gets no run after its session has ended.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tenure_api::states::SessionEnd;
use tokio::sync::watch;

#[derive(Debug, Clone, Default)]
pub struct Endings {
    watched: Arc<Mutex<HashMap<i64, watch::Sender<Option<SessionEnd>>>>>,
}

#[derive(Debug)]
pub struct Watcher {
    epoch: i64,
    ended: watch::Receiver<Option<SessionEnd>>,
    endings: Endings,
}

impl Watcher {
    pub async fn ended(&mut self) -> SessionEnd {
        match self.ended.wait_for(Option::is_some).await.map(|by| *by) {
            Ok(Some(by)) => by,
            // The sender is dropped with the last watcher.
            Ok(None) | Err(_) => std::future::pending().await,
        }
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        let mut watched = self.endings.lock();
        // The count includes this watcher.
        if watched.get(&self.epoch).is_some_and(|sender| sender.receiver_count() == 1) {
            watched.remove(&self.epoch);
        }
        // Released under the lock, so that two concurrent drops do not both count the other.
        self.ended = watch::channel(None).1;
    }
}

impl Endings {
    fn lock(&self) -> MutexGuard<'_, HashMap<i64, watch::Sender<Option<SessionEnd>>>> {
        self.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[must_use]
    pub fn watch(&self, epoch: i64) -> Watcher {
        let ended = self.lock().entry(epoch).or_insert_with(|| watch::channel(None).0).subscribe();
        Watcher { epoch, ended, endings: self.clone() }
    }

    pub fn note(&self, ended: &[(i64, SessionEnd)]) {
        let watched = self.lock();
        for (epoch, by) in ended {
            if let Some(sender) = watched.get(epoch) {
                sender.send_replace(Some(*by));
            }
        }
    }

    pub fn epochs(&self) -> Vec<i64> {
        self.lock().keys().copied().collect()
    }

    pub fn is_watched(&self, epoch: i64) -> bool {
        self.lock().contains_key(&epoch)
    }

    pub fn any(&self) -> bool {
        !self.lock().is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt as _;

    #[tokio::test]
    async fn session_end_reaches_its_watchers_only() {
        let endings = Endings::default();
        let (mut one, mut two, mut other) = (endings.watch(1), endings.watch(1), endings.watch(2));
        endings.note(&[(1, SessionEnd::Takeover), (3, SessionEnd::Expired)]);
        assert_eq!((one.ended().await, two.ended().await), (SessionEnd::Takeover, SessionEnd::Takeover));
        assert_eq!(other.ended().now_or_never(), None);
    }

    #[test]
    fn session_is_watched_until_last_watcher_is_dropped() {
        let endings = Endings::default();
        let (one, two) = (endings.watch(1), endings.watch(1));
        drop(one);
        assert_eq!((endings.epochs(), endings.is_watched(1)), (vec![1], true));
        drop(two);
        assert!(!endings.any() && !endings.is_watched(1));
    }
}
