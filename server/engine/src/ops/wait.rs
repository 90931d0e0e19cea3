//! Waiting until a task is resolved.

use std::pin::pin;
use std::time::Duration;

use tenure_api::ids::TaskId;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::OpError;
use super::status::ReadStatus;
use crate::batch::Batcher;
use crate::notifiers::Notifiers;
use crate::rooms::Caller;
use tenure_domain::task::Task;

/// How long a caller waits by default.
pub const WAIT_TIMEOUT_DEFAULT: Duration = Duration::from_secs(20);
/// How long a caller may wait.
pub const WAIT_TIMEOUT_MAX: Duration = Duration::from_secs(60);

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
        let task = status.submit(id).await?;
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
