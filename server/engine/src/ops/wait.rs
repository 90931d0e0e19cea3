//! Waiting until a task is resolved.

use std::time::Duration;

use tenure_api::ids::TaskId;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::OpError;
use super::status::ReadStatus;
use crate::batch::{Batcher, Operation};
use crate::rooms::Caller;
use crate::task_ends::{READERS_MAX, TaskEnds};
use tenure_domain::task::Task;

/// How long a caller waits by default.
pub const WAIT_TIMEOUT_DEFAULT: Duration = Duration::from_secs(20);
/// How long a caller may wait.
pub const WAIT_TIMEOUT_MAX: Duration = Duration::from_secs(60);

// However many wait, and are notified at once, half of the room is for those that only ask for a status.
const _: () = assert!(READERS_MAX <= ReadStatus::WAITING_MAX / 2);

/// A task after the wait.
#[derive(Debug)]
pub struct Waited {
    /// As it is now.
    pub task: Task,
    /// Whether it is resolved; if not, the time was up or the server drains.
    pub resolved: bool,
    /// Lasts until the caller has read the result of the task: all callers that wait for one task would otherwise wait too
    /// long for a connection.
    _permit: Option<OwnedSemaphorePermit>,
}

/// Waits until a task is resolved, the time is up, or the server drains.
pub async fn wait(
    status: &Batcher<ReadStatus>,
    ends: &TaskEnds,
    drain: &CancellationToken,
    id: TaskId,
    caller: Caller,
    wait_timeout: Duration,
) -> Result<Waited, OpError> {
    let until = Instant::now() + wait_timeout;
    loop {
        // Before the read: the end of a task that is resolved in between is notified.
        let watch = ends.watch(id.uuid(), caller, until)?;
        let last_read = drain.is_cancelled() || Instant::now() >= until;
        let permit = ends.permit().await;
        let task = status.submit(id).await?;
        let resolved = task.is_resolved();
        if resolved || last_read {
            return Ok(Waited { task, resolved, _permit: permit });
        }
        drop(permit);
        watch.resolved().await;
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
        let waited = wait(&engine.status, &engine.task_ends, &drain, task, Caller::Authenticated, WAIT_TIMEOUT_MAX);
        waited.await.unwrap()
    }

    /// The turn of the caller is over then.
    async fn is_resolved_after_wait(queue: &Queue, task: TaskId) -> bool {
        after_wait(queue, task).await.resolved
    }

    #[tokio::test]
    async fn more_callers_wait_for_one_task_than_may_ask_for_a_status_and_all_are_answered() {
        let database = TestDatabase::create().await;
        let queue = Queue::start(database.options());
        let task = queue.create_one(QUEUE).await;
        let run = queue.claim_one(QUEUE).await.run;
        let ends = &queue.engine.task_ends;
        let count = ReadStatus::WAITING_MAX + 1_000;
        // All of them ask before anything else is done.
        let all = join_all((0..count).map(|_| tokio::task::unconstrained(is_resolved_after_wait(&queue, task))));
        let reported = async {
            eventually("all of them wait", async || ends.waiting() == count).await;
            queue.report(task, run, Report::Completed).await.unwrap();
        };
        let (answers, ()) = tokio::join!(all, reported);
        assert!(answers.iter().all(|resolved| *resolved));
        eventually("no request waits", async || ends.waiting() == 0).await;
        queue.stop().await;
        database.finish().await;
    }

    #[tokio::test]
    async fn a_caller_has_its_turn_until_it_has_read_what_the_task_returned() {
        let database = TestDatabase::create().await;
        let queue = Queue::start(database.options());
        let task = queue.create_one(QUEUE).await;
        let run = queue.claim_one(QUEUE).await.run;
        queue.report(task, run, Report::Completed).await.unwrap();
        let turn = || tokio::task::unconstrained(queue.engine.task_ends.permit()).now_or_never().flatten();
        let others: Vec<_> = (1..READERS_MAX).map_while(|_| turn()).collect();
        assert_eq!(others.len(), READERS_MAX - 1);
        let waited = after_wait(&queue, task).await;
        assert!(waited.resolved);
        assert!(turn().is_none(), "it may read what the task returned");
        drop(waited);
        assert!(turn().is_some());
        drop(others);
        queue.stop().await;
        database.finish().await;
    }
}
