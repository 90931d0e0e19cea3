//! Notifiers: code that makes something claimable or due notifies, and tasks that wait for it are woken.
//!
//! Notifying is local and costs nothing. One task per server forwards notifications to the other servers, at most every
//! few milliseconds and only while there are any: a NOTIFY in every transaction would serialise all commits.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use sqlx::{Postgres, Transaction};
use tokio::sync::{Notify, futures::Notified, oneshot};
use uuid::Uuid;

use crate::parked::Signal;
use crate::resolutions::Resolutions;
use crate::route::HotSessions;
use tenure_store::in_use::InUse;
use tenure_store::worker_removals::Gone;
use wait_lists::WaitLists;

mod admission;
mod effects;
mod wait_lists;

pub use admission::AdmittedBy;
pub use effects::Effects;
pub use wait_lists::WaitListNotifier;

/// Whether what makes up for lost notifications is on, which it is in every release. A test switches it off, to show that
/// the notifications themselves arrive.
pub fn fallbacks_are_on() -> bool {
    #[cfg(feature = "test-util")]
    return tenure_store::breakage::fallbacks_are_on();
    #[cfg(not(feature = "test-util"))]
    true
}

/// Whether notifications are lost on purpose, which they never are in a release.
pub(crate) fn are_lost() -> bool {
    #[cfg(feature = "test-util")]
    return tenure_store::breakage::is_on(tenure_store::breakage::Breakage::LoseNotifications);
    #[cfg(not(feature = "test-util"))]
    false
}

/// Maximum wait for the wait lists of this server, which may be in the middle of a statement.
pub const WAIT_LIST_TIMEOUT: Duration = Duration::from_secs(1);

/// The notifiers of one server.
#[derive(Clone, Default)]
pub struct Notifiers {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    /// What the wait list has to look at.
    wait_lists: WaitLists,
    /// Notifications for the wait list of limited queues.
    limited_list: WaitListNotifier,
    /// Queues notified here since they were last forwarded to the other servers.
    others: Signal<i32>,
    /// Sessions with a new item in their inbox, and sessions that have ended.
    inboxes: Arc<Signal<i64>>,
    /// Notified when there may be new events.
    tail: Notify,
    /// Notified when a pass may have something to do.
    passes: Notify,
    /// Notified when a task was resolved, or created with dependencies.
    dependencies: Notify,
    /// Whether any task waits or waited for another one: if not, a resolution does not start the dependency pass.
    dependents: AtomicBool,
    /// Notified when a task was resolved.
    groups: Notify,
    /// Notified when there may be something to admit.
    admission: Notify,
    /// Notified when a queue may need another scheduler.
    schedulers: Notify,
    /// Queues whose runs need admission, and by whom, as the pass has found.
    limited: RwLock<HashMap<i32, AdmittedBy>>,
    /// Number of changes to `limited` by this server itself.
    limited_changes: AtomicU64,
    /// Notified when a fact that every server caches was changed.
    facts: Notify,
    /// Tasks that were resolved, for requests that wait for that.
    resolved: Arc<Signal<Uuid>>,
    /// The tasks that this server has resolved.
    resolutions: Resolutions,
    /// Whether anything may be unresolved: then the passes run often.
    active: AtomicBool,
    /// Number of notifications so far.
    notifications: AtomicU64,
    /// For each queue whose generation was read: the number of its last notification, or of the last of any queue before it was read.
    generations: RwLock<InUse<i32, AtomicU64>>,
}

/// A worker that is gone: requests that wait in its name are answered empty.
#[derive(Debug)]
pub struct SendAway {
    /// Its name, without the registration.
    pub worker: Gone,
    /// Completed when no request waits in its name any more.
    pub done: oneshot::Sender<()>,
}

impl Notifiers {
    /// Those of a server with so many tick loops.
    pub fn new(sessions: HotSessions) -> Self {
        Self { shared: Arc::new(Shared { wait_lists: WaitLists::new(sessions), ..Shared::default() }) }
    }

    /// Runs became claimable in these queues, or messages visible, by a transaction of this server that has committed.
    pub fn notify(&self, queues: impl IntoIterator<Item = i32> + Clone) {
        self.raise_generations(queues.clone());
        self.stay_active();
        self.shared.wait_lists.notify(queues.clone());
        self.shared.others.notify(queues);
        self.shared.tail.notify_one();
    }

    /// Notifies everything that waits for what a transaction of this server did, which has committed.
    pub fn apply(&self, effects: Effects) {
        let Effects { claimable, resolved, resolutions, resolved_unnamed, dependents, inboxes, admission } = effects;
        self.shared.resolutions.count(&resolutions);
        self.notify_admission(claimable.iter().chain(&admission));
        self.notify(claimable);
        if !inboxes.is_empty() {
            self.shared.inboxes.notify(inboxes);
        }
        if dependents {
            self.notify_dependencies();
        }
        if resolved_unnamed {
            self.shared.resolved.notify_all();
        }
        if resolved_unnamed || !resolved.is_empty() {
            self.shared.resolved.notify_if_waiting(resolved);
            self.notify_resolved();
        }
    }

    /// Commits, and applies what follows. A commit whose answer was lost may have happened: then they are applied too.
    pub async fn commit(&self, transaction: Transaction<'_, Postgres>, effects: Effects) -> Result<(), sqlx::Error> {
        let committed = transaction.commit().await;
        self.apply(effects);
        committed
    }

    /// Another server has notified.
    pub fn notify_from_other_server(&self, queues: impl IntoIterator<Item = i32> + Clone) {
        self.raise_generations(queues.clone());
        self.stay_active();
        self.notify_limited(queues.clone());
        self.shared.wait_lists.notify(queues);
        self.shared.tail.notify_one();
    }

    /// A number that every notification of a queue changes. A caller that reads it, then queries the database and finds the queue
    /// empty, may rely on that for as long as the number stays the same, also if it was dropped in between.
    pub fn generation(&self, queue: i32) -> u64 {
        let known = &self.shared.generations;
        if let Some(generation) = known.read().unwrap_or_else(PoisonError::into_inner).get(&queue) {
            return generation.load(Ordering::SeqCst);
        }
        let mut known = known.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(generation) = known.get(&queue) {
            return generation.load(Ordering::SeqCst);
        }
        // Not one that the queue has had before a notification, if it was dropped.
        let generation = self.notifications();
        known.insert(queue, AtomicU64::new(generation));
        generation
    }

    /// Begins a turn of [`InUse`]: drops the generations of queues that were not read in many turns; answers of how many.
    pub fn drop_idle_generations(&self) -> usize {
        self.shared.generations.write().unwrap_or_else(PoisonError::into_inner).begin_turn()
    }

    /// Counts a notification of these queues. It has its number before a generation is looked for: one that is made meanwhile is not
    /// below it.
    fn raise_generations(&self, queues: impl IntoIterator<Item = i32>) {
        let number = self.shared.notifications.fetch_add(1, Ordering::SeqCst) + 1;
        if are_lost() {
            return;
        }
        let known = self.shared.generations.read().unwrap_or_else(PoisonError::into_inner);
        for queue in queues {
            // The generation of any other queue is not read.
            if let Some(generation) = known.peek(&queue) {
                generation.fetch_max(number, Ordering::SeqCst);
            }
        }
    }

    /// Something is unresolved: the passes run often from now on.
    pub fn stay_active(&self) {
        if !self.shared.active.swap(true, Ordering::SeqCst) {
            self.shared.passes.notify_waiters();
        }
    }

    /// Nothing was unresolved when `notifications` was read: idle, unless there was a notification since.
    pub fn set_idle(&self, notifications: u64) {
        if self.notifications() == notifications {
            self.shared.active.store(false, Ordering::SeqCst);
            // One that came between the two found it active, and left it so.
            if self.notifications() != notifications {
                self.stay_active();
            }
        }
    }

    /// Whether anything may be unresolved.
    pub fn is_active(&self) -> bool {
        self.shared.active.load(Ordering::SeqCst)
    }

    /// Number of notifications so far.
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

    /// A task was created that waits for others.
    fn notify_dependencies(&self) {
        self.stay_active();
        self.expect_dependents(true);
        self.shared.dependencies.notify_one();
    }

    /// Returns the signal of tasks that were resolved.
    pub(crate) fn resolved(&self) -> Arc<Signal<Uuid>> {
        Arc::clone(&self.shared.resolved)
    }

    /// The tasks that this server has resolved, for the metrics.
    pub fn resolutions(&self) -> &Resolutions {
        &self.shared.resolutions
    }

    /// Sets whether there are dependencies, as the pass has found. Those that another server creates are found by the next
    /// pass.
    pub fn expect_dependents(&self, any: bool) {
        self.shared.dependents.store(any, Ordering::SeqCst);
    }

    /// Waits until a task was resolved or waits for others.
    pub fn dependencies(&self) -> Notified<'_> {
        self.shared.dependencies.notified()
    }

    /// Waits until a task was resolved.
    pub fn groups(&self) -> Notified<'_> {
        self.shared.groups.notified()
    }

    /// A queue may need another scheduler, without waiting for the next beat.
    pub fn notify_schedulers(&self) {
        self.shared.schedulers.notify_one();
    }

    pub fn schedulers(&self) -> Notified<'_> {
        self.shared.schedulers.notified()
    }

    /// A fact that every server caches was changed, here or elsewhere.
    pub fn notify_facts(&self) {
        self.shared.facts.notify_one();
    }

    /// Waits until such a fact was changed.
    pub fn facts(&self) -> Notified<'_> {
        self.shared.facts.notified()
    }

    /// Waits until the passes are notified.
    pub fn passes(&self) -> Notified<'_> {
        self.shared.passes.notified()
    }

    /// Waits for a notification of any kind: whatever makes a run claimable is also an event.
    pub async fn tail(&self) {
        self.shared.tail.notified().await;
    }

    /// What the wait list of this loop is notified of.
    pub fn wait_list(&self, place: usize) -> &WaitListNotifier {
        self.shared.wait_lists.get(place)
    }

    /// Returns the notifications for the wait list of limited queues.
    pub fn limited_list(&self) -> &WaitListNotifier {
        &self.shared.limited_list
    }

    /// Ends the waiting requests of a worker that is gone. Completes when the wait lists of this server
    /// have answered them, or after [`WAIT_LIST_TIMEOUT`]; at once without wait lists.
    pub fn send_away(&self, worker: Gone) -> impl Future<Output = ()> + Send + use<> {
        let ((done, answered), (done_too, answered_too)) = (oneshot::channel(), oneshot::channel());
        self.shared.limited_list.send_away(SendAway { worker: worker.clone(), done: done_too });
        self.shared.wait_lists.send_away(SendAway { worker, done });
        async {
            let answers = async { (answered.await, answered_too.await) };
            drop(tokio::time::timeout(WAIT_LIST_TIMEOUT, answers).await);
        }
    }

    /// The database may have lost the keys of queues that requests wait with.
    pub fn send_away_for_keys(&self) {
        self.shared.wait_lists.drop_keys();
        self.shared.limited_list.drop_keys();
    }

    /// Returns the signal of sessions with a new item, and sessions that have ended.
    pub(crate) fn inboxes(&self) -> Arc<Signal<i64>> {
        Arc::clone(&self.shared.inboxes)
    }

    /// Waits until there is something to forward to the other servers.
    pub async fn others(&self) {
        self.shared.others.wait().await;
    }

    /// The queues to forward to the other servers.
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
    fn a_queue_has_no_generation_of_before_its_notification_also_if_that_was_dropped() {
        let notifiers = Notifiers::default();
        notifiers.notify([2]);
        let [first, other] = [1, 2].map(|queue| notifiers.generation(queue));
        notifiers.notify([2]);
        assert_eq!(notifiers.generation(1), first, "another queue was notified");
        assert!(notifiers.generation(2) > other);
        for _ in 0..TURNS {
            assert_eq!(notifiers.drop_idle_generations(), 0);
            // That is no reason to keep it.
            notifiers.notify([1]);
            assert!(notifiers.generation(2) > other);
        }
        assert_eq!(notifiers.drop_idle_generations(), 1);
        assert!(notifiers.generation(1) > first);
    }
}
