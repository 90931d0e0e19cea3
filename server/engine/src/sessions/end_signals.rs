//! Subscriptions to the ends of sessions: a claimWork request gets no run after its session has
//! ended.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tenure_api::states::SessionEnd;
use tokio::sync::watch;

#[derive(Debug, Clone, Default)]
pub struct EndSignals {
    senders: Arc<Mutex<HashMap<i64, watch::Sender<Option<SessionEnd>>>>>,
}

#[derive(Debug)]
pub struct EndSubscription {
    epoch: i64,
    ended: watch::Receiver<Option<SessionEnd>>,
    end_signals: EndSignals,
}

impl EndSubscription {
    pub async fn ended(&mut self) -> SessionEnd {
        match self.ended.wait_for(Option::is_some).await.map(|by| *by) {
            Ok(Some(by)) => by,
            // The sender is dropped with the last subscription.
            Ok(None) | Err(_) => std::future::pending().await,
        }
    }
}

impl Drop for EndSubscription {
    fn drop(&mut self) {
        let mut senders = self.end_signals.lock();
        // The count includes this subscription.
        if senders.get(&self.epoch).is_some_and(|sender| sender.receiver_count() == 1) {
            senders.remove(&self.epoch);
        }
        // Released under the lock, so that two concurrent drops do not both count the other.
        self.ended = watch::channel(None).1;
    }
}

impl EndSignals {
    fn lock(&self) -> MutexGuard<'_, HashMap<i64, watch::Sender<Option<SessionEnd>>>> {
        self.senders.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[must_use]
    pub fn subscribe(&self, epoch: i64) -> EndSubscription {
        let ended = self.lock().entry(epoch).or_insert_with(|| watch::channel(None).0).subscribe();
        EndSubscription { epoch, ended, end_signals: self.clone() }
    }

    pub fn note(&self, ended: &[(i64, SessionEnd)]) {
        let senders = self.lock();
        for (epoch, by) in ended {
            if let Some(sender) = senders.get(epoch) {
                sender.send_replace(Some(*by));
            }
        }
    }

    pub fn epochs(&self) -> Vec<i64> {
        self.lock().keys().copied().collect()
    }

    pub fn has_subscriber(&self, epoch: i64) -> bool {
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
    async fn session_end_reaches_its_subscribers_only() {
        let end_signals = EndSignals::default();
        let (mut one, mut two, mut other) =
            (end_signals.subscribe(1), end_signals.subscribe(1), end_signals.subscribe(2));
        end_signals.note(&[(1, SessionEnd::Takeover), (3, SessionEnd::Expired)]);
        assert_eq!((one.ended().await, two.ended().await), (SessionEnd::Takeover, SessionEnd::Takeover));
        assert_eq!(other.ended().now_or_never(), None);
    }

    #[test]
    fn session_has_subscriber_until_last_is_dropped() {
        let end_signals = EndSignals::default();
        let (one, two) = (end_signals.subscribe(1), end_signals.subscribe(1));
        drop(one);
        assert_eq!((end_signals.epochs(), end_signals.has_subscriber(1)), (vec![1], true));
        drop(two);
        assert!(!end_signals.any() && !end_signals.has_subscriber(1));
    }
}
