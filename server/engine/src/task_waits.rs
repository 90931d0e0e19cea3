//! Requests that wait for the end of a task.

use std::sync::Arc;

use sqlx::PgPool;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use uuid::Uuid;

use crate::notifiers::Notifiers;
use crate::ops::OpError;
use crate::parked::{self, Due, GiveUp, Parked, Parking, Timing};
use crate::wait_limit::{Caller, WaitLimit, WaitPermit};
use tenure_store::tasks;

/// Waiting requests per server.
pub const WAITERS_MAX: usize = 50_000;
/// Concurrent reads of tasks or results: all requests may wait for the same task.
pub const READERS_MAX: usize = 4_000;
const IDS_MAX: usize = 10_000;

pub struct TaskWaits {
    parking: Parking<Lookup>,
    wait_limit: WaitLimit,
    readers: Arc<Semaphore>,
}

impl TaskWaits {
    #[must_use]
    pub fn start(pool: PgPool, notifiers: &Notifiers, tasks: &TaskTracker, stop: CancellationToken) -> Self {
        Self::start_with(pool, notifiers, Timing::default(), tasks, stop)
    }

    fn start_with(
        pool: PgPool,
        notifiers: &Notifiers,
        timing: Timing,
        tasks: &TaskTracker,
        stop: CancellationToken,
    ) -> Self {
        let parking = Parking::start(Lookup { pool }, notifiers.resolved(), timing, tasks, stop);
        Self { parking, wait_limit: WaitLimit::new(WAITERS_MAX), readers: Arc::new(Semaphore::new(READERS_MAX)) }
    }

    /// Waits for a task from now on. Fails at the limit of waiting requests, or of anonymous ones.
    pub fn wait_for(&self, id: Uuid, caller: Caller, deadline: Instant) -> Result<TaskWait, OpError> {
        let permit = self.wait_limit.acquire(caller).ok_or(OpError::Overloaded("wait"))?;
        let (reply, resolved) = oneshot::channel();
        self.parking.park(id, Some(deadline), Waiter(reply));
        Ok(TaskWait { resolved, _permit: permit })
    }

    /// Waits for a permit to read the task. Never none: the semaphore is never closed.
    pub async fn permit(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.readers).acquire_owned().await.ok()
    }

    pub fn waiting(&self) -> usize {
        self.wait_limit.in_use()
    }
}

pub struct TaskWait {
    resolved: oneshot::Receiver<()>,
    _permit: WaitPermit,
}

impl TaskWait {
    /// Returns true when the task is resolved; false after the deadline or when the server drains.
    pub async fn resolved(self) -> bool {
        self.resolved.await.is_ok()
    }
}

struct Waiter(oneshot::Sender<()>);

impl parked::Waiter for Waiter {
    fn is_closed(&self) -> bool {
        self.0.is_closed()
    }

    fn give_up(self, _: GiveUp) {}
}

struct Lookup {
    pool: PgPool,
}

impl parked::Source for Lookup {
    type Key = Uuid;
    type Waiter = Waiter;
    const GAUGE: &'static str = "tenure_waiting_for_tasks";

    fn answer_notified(&mut self, parked: &mut Parked<Self>, id: Uuid) -> bool {
        parked.take(id).for_each(|waiter| {
            let _ = waiter.0.send(());
        });
        true
    }

    /// A new request reads its task itself.
    async fn poll(&mut self, parked: &mut Parked<Self>, due: &Due<Uuid>) -> Result<bool, sqlx::Error> {
        let ids: Vec<Uuid> = if due.all { parked.keys().collect() } else { Vec::new() };
        for part in ids.chunks(IDS_MAX) {
            for id in tasks::list_resolved(&mut *self.pool.acquire().await?, part).await? {
                self.answer_notified(parked, id);
            }
        }
        Ok(false)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use sqlx::Connection as _;
    use tenure_domain::lifecycle::Report;
    use tenure_store::connector::Connector;
    use tenure_store::testing::{Proxy, TestDatabase, until_a_session_waits};
    use tokio::time::timeout;

    use super::*;
    use crate::testing::{QUEUE, Queue};

    const SHORT: Duration = Duration::from_secs(1);

    #[tokio::test]
    async fn silent_connection_is_given_up_and_next_poll_finds_task() {
        let database = TestDatabase::create().await;
        let queue = Queue::start(database.options());
        let task = queue.create_one(QUEUE).await;
        let run = queue.claim_one(QUEUE).await.run;
        queue.report(task, run, Report::Completed).await.unwrap();
        let mut holder = database.connect().await;
        let mut lock = holder.begin().await.unwrap();
        sqlx::query("LOCK TABLE tasks IN ACCESS EXCLUSIVE MODE").execute(&mut *lock).await.unwrap();
        let proxy = Proxy::start(database.options()).await;
        let pool = Connector::new(proxy.options().clone()).pool();
        let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
        let timing = Timing { timeout: SHORT, ..Timing::default() };
        // Another server, which gets no notifications.
        let waits = TaskWaits::start_with(pool, &Notifiers::default(), timing, &tasks, stop.clone());
        let wait = waits.wait_for(task.uuid(), Caller::Authenticated, Instant::now() + SHORT * 60).unwrap();
        until_a_session_waits(database.pool()).await;
        proxy.fall_silent();
        lock.rollback().await.unwrap();
        assert!(timeout(SHORT * 10, wait.resolved()).await.expect("it is polled again"));
        stop.cancel();
        drop((waits, holder));
        queue.stop().await;
        database.finish().await;
    }
}
