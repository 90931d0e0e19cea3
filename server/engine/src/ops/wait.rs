//! Waits for the end of a task.

use std::time::Duration;

use tenure_api::ids::TaskId;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::OpError;
use super::status::ReadStatus;
use crate::batch::{Batcher, Operation};
use crate::task_waits::{READERS_MAX, TaskWaits};
use crate::wait_limit::Caller;
use tenure_domain::task::Task;

pub const WAIT_TIMEOUT_DEFAULT: Duration = Duration::from_secs(20);
pub const WAIT_TIMEOUT_MAX: Duration = Duration::from_secs(60);

// Half of the capacity stays free for plain status requests, even if all waiters wake at once.
const _: () = assert!(READERS_MAX <= ReadStatus::WAITING_MAX / 2);

#[derive(Debug)]
pub struct Waited {
    pub task: Task,
    /// False after a timeout or while the server drains.
    pub resolved: bool,
    /// How long the request waited for the end.
    pub waited: Duration,
    /// Held until the caller has read the task's result: all waiters of one task would otherwise
    /// compete for connections.
    _permit: Option<OwnedSemaphorePermit>,
}

pub async fn wait(
    status: &Batcher<ReadStatus>,
    waits: &TaskWaits,
    drain: &CancellationToken,
    id: TaskId,
    caller: Caller,
    wait_timeout: Duration,
) -> Result<Waited, OpError> {
    let until = Instant::now() + wait_timeout;
    let mut waited = Duration::ZERO;
    loop {
        // Before the read, so that an end in between is notified.
        let waiter = waits.wait_for(id.uuid(), caller, until)?;
        let last_read = drain.is_cancelled() || Instant::now() >= until;
        let permit = waits.permit().await;
        let task = status.submit(id).await?;
        let resolved = task.is_resolved();
        if resolved || last_read {
            return Ok(Waited { task, resolved, waited, _permit: permit });
        }
        drop(permit);
        let began = Instant::now();
        waiter.resolved().await;
        waited += began.elapsed();
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;
    use futures_util::future::join_all;
    use tenure_domain::lifecycle::Report;
    use tenure_store::testing::{TestDatabase, eventually};

    use super::*;
    use crate::testing::{QUEUE, Queue};

    async fn after_wait(queue: &Queue, task: TaskId) -> Waited {
        let (engine, drain) = (&queue.engine, CancellationToken::new());
        let waited = wait(&engine.status, &engine.task_waits, &drain, task, Caller::Authenticated, WAIT_TIMEOUT_MAX);
        waited.await.unwrap()
    }

    /// Releases the caller's permit.
    async fn is_resolved_after_wait(queue: &Queue, task: TaskId) -> bool {
        after_wait(queue, task).await.resolved
    }

    #[tokio::test]
    async fn waiters_beyond_status_capacity_are_all_answered() {
        let database = TestDatabase::create().await;
        let queue = Queue::start(database.options());
        let task = queue.create_one(QUEUE).await;
        let run = queue.claim_one(QUEUE).await.run;
        let waits = &queue.engine.task_waits;
        let count = ReadStatus::WAITING_MAX + 1_000;
        // All callers enter before any other work.
        let all = join_all((0..count).map(|_| tokio::task::unconstrained(is_resolved_after_wait(&queue, task))));
        let reported = async {
            eventually("all callers wait", async || waits.waiting() == count).await;
            queue.report(task, run, Report::Completed).await.unwrap();
        };
        let (answers, ()) = tokio::join!(all, reported);
        assert!(answers.iter().all(|resolved| *resolved));
        eventually("no request waits", async || waits.waiting() == 0).await;
        queue.stop().await;
        database.finish().await;
    }

    #[tokio::test]
    async fn waiter_holds_permit_until_result_is_read() {
        let database = TestDatabase::create().await;
        let queue = Queue::start(database.options());
        let task = queue.create_one(QUEUE).await;
        let run = queue.claim_one(QUEUE).await.run;
        queue.report(task, run, Report::Completed).await.unwrap();
        let turn = || tokio::task::unconstrained(queue.engine.task_waits.permit()).now_or_never().flatten();
        let others: Vec<_> = (1..READERS_MAX).map_while(|_| turn()).collect();
        assert_eq!(others.len(), READERS_MAX - 1);
        let waited = after_wait(&queue, task).await;
        assert!(waited.resolved);
        assert!(turn().is_none(), "the waiter still holds its permit");
        drop(waited);
        assert!(turn().is_some());
        drop(others);
        queue.stop().await;
        database.finish().await;
    }
}
