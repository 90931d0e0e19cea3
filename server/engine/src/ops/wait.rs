//! Waiting until a task is resolved.

use std::pin::pin;
use std::time::Duration;

use tenure_api::ids::TaskId;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::OpError;
use super::status::ReadStatus;
use crate::batch::{Batcher, Operation};
use crate::notifiers::{Notifiers, READERS_MAX};
use crate::rooms::Caller;
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
}

/// Waits until a task is resolved, the time is up, or the server drains.
pub async fn wait(
    status: &Batcher<ReadStatus>,
    notifiers: &Notifiers,
    drain: &CancellationToken,
    id: TaskId,
    caller: Caller,
    wait_timeout: Duration,
) -> Result<Waited, OpError> {
    let until = Instant::now() + wait_timeout;
    let watcher = notifiers.watched().watch(id.uuid(), caller).ok_or(OpError::Overloaded("wait"))?;
    loop {
        // Listening before reading: a task that is resolved in between notifies.
        let mut notified = pin!(watcher.notified());
        notified.as_mut().enable();
        let last_look = drain.is_cancelled() || Instant::now() >= until;
        let turn = watcher.turn().await;
        let task = status.submit(id).await?;
        drop(turn);
        let resolved = task.is_resolved();
        if resolved || last_look {
            return Ok(Waited { task, resolved });
        }
        tokio::select! {
            () = notified => {}
            () = drain.cancelled() => {}
            () = tokio::time::sleep_until(until) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::future::join_all;
    use tenure_domain::lifecycle::Report;
    use tenure_store::testing::{TestDatabase, eventually};

    use super::*;
    use crate::testing::{QUEUE, Queue};

    #[tokio::test]
    async fn more_callers_wait_for_one_task_than_may_ask_for_a_status_and_all_are_answered() {
        let database = TestDatabase::create().await;
        let queue = Queue::start(database.options());
        let task = queue.create_one(QUEUE).await;
        let run = queue.claim_one(QUEUE).await.run;
        let (engine, drain) = (&queue.engine, CancellationToken::new());
        let count = ReadStatus::WAITING_MAX + 1_000;
        let one = || wait(&engine.status, &engine.notifiers, &drain, task, Caller::Authenticated, WAIT_TIMEOUT_MAX);
        // All of them ask before anything else is done.
        let all = join_all((0..count).map(|_| tokio::task::unconstrained(one())));
        let reported = async {
            eventually("all of them wait", async || engine.notifiers.watched().watchers() == count).await;
            queue.report(task, run, Report::Completed).await.unwrap();
        };
        let (answers, ()) = tokio::join!(all, reported);
        assert!(answers.iter().all(|answer| answer.as_ref().is_ok_and(|waited| waited.resolved)));
        assert_eq!(engine.notifiers.watched().watchers(), 0);
        queue.stop().await;
        database.finish().await;
    }
}
