//! Notifiers wake tasks when something becomes claimable or due.
//!
//! They are local and cheap. One task per server forwards notifications to other servers, every few
//! milliseconds and only while others exist: a NOTIFY in every transaction would serialize all
//! commits.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use sqlx::{Postgres, Transaction};
use tokio::sync::{Notify, futures::Notified, oneshot};
use uuid::Uuid;

use crate::parked::Signal;
use crate::route::HotSessions;
use crate::statistics::Statistics;
use crate::traces;
use tenure_store::in_use::InUse;
use tenure_store::worker_removals::Gone;
use wait_lists::WaitLists;

mod admission;
mod dependent_hints;
mod effects;
mod wait_lists;

pub use admission::AdmittedBy;
pub use dependent_hints::DependentHints;
pub use effects::Effects;
pub use wait_lists::WaitListNotifier;

/// True if the fallbacks for lost notifications are on, as in every release. Tests turn them off to
/// prove that notifications arrive.
pub fn fallbacks_are_on() -> bool {
    #[cfg(feature = "test-util")]
    return tenure_store::breakage::fallbacks_are_on();
    #[cfg(not(feature = "test-util"))]
    true
}

pub(crate) fn are_lost() -> bool {
    #[cfg(feature = "test-util")]
    return tenure_store::breakage::is_on(tenure_store::breakage::Breakage::LoseNotifications);
    #[cfg(not(feature = "test-util"))]
    false
}

/// Maximum wait for the wait lists of this server, which may be executing a statement.
pub const WAIT_LIST_TIMEOUT: Duration = Duration::from_secs(1);

#[derive(Clone, Default)]
pub struct Notifiers {
    shared: Arc<NotifiersInner>,
}

#[derive(Default)]
struct NotifiersInner {
    wait_lists: WaitLists,
    limited_list: WaitListNotifier,
    share_list: WaitListNotifier,
    others: Signal<i32>,
    /// Sessions with a new inbox item, and ended sessions.
    inboxes: Arc<Signal<i64>>,
    tail: Notify,
    passes: Notify,
    dependencies: Notify,
    /// True if a task has or had dependencies. Otherwise resolutions do not start the dependency
    /// pass.
    dependents: AtomicBool,
    dependent_hints: DependentHints,
    groups: Notify,
    admission: Notify,
    schedulers: Notify,
    /// Queues whose runs need admission, and by whom, according to the pass.
    limited: RwLock<HashMap<i32, AdmittedBy>>,
    limited_changes: AtomicU64,
    facts: Notify,
    resolved: Arc<Signal<Uuid>>,
    statistics: Statistics,
    /// True if anything may be unresolved; passes then run often.
    active: AtomicBool,
    notifications: AtomicU64,
    /// Per queue with a read generation: the number of its last notification, or of the latest one
    /// when it was inserted.
    generations: RwLock<InUse<i32, AtomicU64>>,
}

/// A removed worker: its waiting requests get empty responses.
#[derive(Debug)]
pub struct SendAway {
    pub worker: Gone,
    /// Completed when no request of the worker waits.
    pub done: oneshot::Sender<()>,
}

impl Notifiers {
    pub fn new(sessions: HotSessions, statistics: Statistics) -> Self {
        let wait_lists = WaitLists::new(sessions);
        Self { shared: Arc::new(NotifiersInner { wait_lists, statistics, ..NotifiersInner::default() }) }
    }

    /// Notifies after a commit of this server that made runs claimable or messages visible.
    pub fn notify(&self, queues: impl IntoIterator<Item = i32> + Clone) {
        self.raise_generations(queues.clone());
        self.stay_active();
        self.shared.wait_lists.notify(queues.clone());
        self.shared.share_list.notify(queues.clone());
        self.shared.others.notify(queues);
        self.shared.tail.notify_one();
    }

    pub fn apply(&self, effects: Effects) {
        let Effects {
            claimable,
            resolved,
            created,
            ended,
            traced,
            resolved_unnamed,
            dependents,
            awaited,
            inboxes,
            admission,
        } = effects;
        self.shared.statistics.created(&created);
        self.shared.statistics.ended(&ended);
        traces::record_created(&created, &self.shared.statistics);
        traces::record_ended(traced, &self.shared.statistics);
        self.notify_admission(claimable.iter().chain(&admission));
        self.notify(claimable);
        if !inboxes.is_empty() {
            self.shared.inboxes.notify(inboxes);
        }
        if !awaited.is_empty() {
            self.shared.dependent_hints.add(awaited);
        }
        if dependents {
            self.notify_dependencies();
        }
        if resolved_unnamed {
            self.shared.resolved.notify_all();
        }
        if resolved_unnamed || !resolved.is_empty() {
            self.shared.dependent_hints.remove(&resolved);
            self.shared.resolved.notify_if_waiting(resolved);
            self.notify_resolved();
        }
    }

    /// Commits, then applies the effects even on an error: a commit without a response may have
    /// happened.
    pub async fn commit(&self, transaction: Transaction<'_, Postgres>, effects: Effects) -> Result<(), sqlx::Error> {
        let committed = transaction.commit().await;
        self.apply(effects);
        committed
    }

    pub fn notify_from_other_server(&self, queues: impl IntoIterator<Item = i32> + Clone) {
        self.raise_generations(queues.clone());
        self.stay_active();
        self.notify_limited(queues.clone());
        self.shared.wait_lists.notify(queues.clone());
        self.shared.share_list.notify(queues);
        self.shared.tail.notify_one();
    }

    /// Returns a number that changes with each notification of a queue. If a caller reads it before
    /// a query that finds the queue empty, the queue stays empty while the number is the same, even
    /// across an eviction.
    pub fn generation(&self, queue: i32) -> u64 {
        let known = &self.shared.generations;
        if let Some(generation) = known.read().unwrap_or_else(PoisonError::into_inner).get(&queue) {
            return generation.load(Ordering::SeqCst);
        }
        let mut known = known.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(generation) = known.get(&queue) {
            return generation.load(Ordering::SeqCst);
        }
        // A new number, so that an evicted queue never regains an old one.
        let generation = self.notifications();
        known.insert(queue, AtomicU64::new(generation));
        generation
    }

    /// Starts a new generation of [`InUse`], and returns the number of evicted queues.
    pub fn drop_idle_generations(&self) -> usize {
        self.shared.generations.write().unwrap_or_else(PoisonError::into_inner).begin_turn()
    }

    /// Counts a notification. Its number is taken before the lookup, so that a concurrent insert is
    /// not below it.
    fn raise_generations(&self, queues: impl IntoIterator<Item = i32>) {
        let number = self.shared.notifications.fetch_add(1, Ordering::SeqCst) + 1;
        if are_lost() {
            return;
        }
        let known = self.shared.generations.read().unwrap_or_else(PoisonError::into_inner);
        for queue in queues {
            // Nobody has read the generation of other queues.
            if let Some(generation) = known.peek(&queue) {
                generation.fetch_max(number, Ordering::SeqCst);
            }
        }
    }

    /// Marks work as unresolved: passes run often from now on.
    pub fn stay_active(&self) {
        if !self.shared.active.swap(true, Ordering::SeqCst) {
            self.shared.passes.notify_waiters();
        }
    }

    /// Marks everything as resolved, unless a notification came after `notifications` was read.
    pub fn set_idle(&self, notifications: u64) {
        if self.notifications() == notifications {
            self.shared.active.store(false, Ordering::SeqCst);
            // A notification in between saw `active` as still true.
            if self.notifications() != notifications {
                self.stay_active();
            }
        }
    }

    pub fn is_active(&self) -> bool {
        self.shared.active.load(Ordering::SeqCst)
    }

    pub fn notifications(&self) -> u64 {
        self.shared.notifications.load(Ordering::SeqCst)
    }

    fn notify_resolved(&self) {
        self.stay_active();
        if self.shared.dependents.load(Ordering::SeqCst) {
            self.shared.dependencies.notify_one();
        }
        self.shared.groups.notify_one();
    }

    fn notify_dependencies(&self) {
        self.stay_active();
        self.expect_dependents(true);
        self.shared.dependencies.notify_one();
    }

    pub fn dependent_hints(&self) -> DependentHints {
        self.shared.dependent_hints.clone()
    }

    pub(crate) fn resolved(&self) -> Arc<Signal<Uuid>> {
        Arc::clone(&self.shared.resolved)
    }

    pub fn statistics(&self) -> &Statistics {
        &self.shared.statistics
    }

    /// Sets whether dependencies exist, according to the pass. Dependencies created at other
    /// servers are found by the next pass.
    pub fn expect_dependents(&self, any: bool) {
        self.shared.dependents.store(any, Ordering::SeqCst);
    }

    pub fn dependencies(&self) -> Notified<'_> {
        self.shared.dependencies.notified()
    }

    pub fn groups(&self) -> Notified<'_> {
        self.shared.groups.notified()
    }

    /// A queue may need another scheduler before the next heartbeat.
    pub fn notify_schedulers(&self) {
        self.shared.schedulers.notify_one();
    }

    pub fn schedulers(&self) -> Notified<'_> {
        self.shared.schedulers.notified()
    }

    pub fn notify_facts(&self) {
        self.shared.facts.notify_one();
    }

    pub fn facts(&self) -> Notified<'_> {
        self.shared.facts.notified()
    }

    pub fn passes(&self) -> Notified<'_> {
        self.shared.passes.notified()
    }

    /// Waits for any notification: everything that makes a run claimable is also an event.
    pub async fn tail(&self) {
        self.shared.tail.notified().await;
    }

    pub fn wait_list(&self, place: usize) -> &WaitListNotifier {
        self.shared.wait_lists.get(place)
    }

    pub fn limited_list(&self) -> &WaitListNotifier {
        &self.shared.limited_list
    }

    pub fn share_list(&self) -> &WaitListNotifier {
        &self.shared.share_list
    }

    /// Cancels the waiting requests of a removed worker. Completes when the wait lists of this
    /// server have answered them, or after [`WAIT_LIST_TIMEOUT`]; at once without wait lists.
    pub fn send_away(&self, worker: Gone) -> impl Future<Output = ()> + Send + use<> {
        let ((done, answered), (done_too, answered_too)) = (oneshot::channel(), oneshot::channel());
        let (done_at_last, answered_at_last) = oneshot::channel();
        self.shared.limited_list.send_away(SendAway { worker: worker.clone(), done: done_too });
        self.shared.share_list.send_away(SendAway { worker: worker.clone(), done: done_at_last });
        self.shared.wait_lists.send_away(SendAway { worker, done });
        async {
            let answers = async { (answered.await, answered_too.await, answered_at_last.await) };
            drop(tokio::time::timeout(WAIT_LIST_TIMEOUT, answers).await);
        }
    }

    pub fn send_away_for_keys(&self) {
        self.shared.wait_lists.drop_keys();
        self.shared.limited_list.drop_keys();
        self.shared.share_list.drop_keys();
    }

    pub(crate) fn inboxes(&self) -> Arc<Signal<i64>> {
        Arc::clone(&self.shared.inboxes)
    }

    pub async fn others(&self) {
        self.shared.others.wait().await;
    }

    #[must_use]
    pub fn take_others(&self) -> HashSet<i32> {
        self.shared.others.take().keys
    }
}

#[cfg(test)]
mod tests {
    use tenure_store::in_use::TURNS;

    use super::*;

    #[test]
    fn evicted_queue_never_regains_old_generation() {
        let notifiers = Notifiers::default();
        notifiers.notify([2]);
        let [first, other] = [1, 2].map(|queue| notifiers.generation(queue));
        notifiers.notify([2]);
        assert_eq!(notifiers.generation(1), first, "another queue was notified");
        assert!(notifiers.generation(2) > other);
        for _ in 0..TURNS {
            assert_eq!(notifiers.drop_idle_generations(), 0);
            // Not a read: it does not keep the generation.
            notifiers.notify([1]);
            assert!(notifiers.generation(2) > other);
        }
        assert_eq!(notifiers.drop_idle_generations(), 1);
        assert!(notifiers.generation(1) > first);
    }
}
