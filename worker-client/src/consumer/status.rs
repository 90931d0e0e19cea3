//! What a consumer is doing, for an operator or a health check.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use serde::Serialize;
use tenure_api::dates::Timestamp;
use tenure_api::ids::{RunId, SessionId, TaskId, TaskQueueId, WorkerGroup, WorkerId};

use super::control::{Control, Hold};
use super::inner::Inner;
use super::stop::StopReason;
use crate::Error;
use crate::debug::Debug;

/// What a consumer is doing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct Status {
    /// The queue whose tasks it takes.
    pub task_queue_id: TaskQueueId,
    /// Its name.
    pub worker_group: WorkerGroup,
    /// See `worker_group`.
    pub worker_id: WorkerId,
    /// Since when it runs, by the server's clock; none before.
    pub started: Option<Timestamp>,
    /// Whether it takes no more tasks for now.
    pub frozen: bool,
    /// Whether it was asked to shut down.
    pub shutting_down: bool,
    /// Its session, if it has one that is live as far as it knows.
    pub session_id: Option<SessionId>,
    /// How many jobs it does at the same time.
    pub capacity: usize,
    /// How many handlers went on although their runs were ours no longer, or could have been another worker's by then.
    pub claims_overrun: u64,
    /// Those under way, by when they began.
    pub tasks: Vec<JobStatus>,
}

/// How a job is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct JobStatus {
    /// The task.
    pub task_id: TaskId,
    /// The run.
    pub run_id: RunId,
    /// When it was claimed, by the server's clock.
    pub started: Timestamp,
    /// When it was first asked to stop.
    pub stopped: Option<Timestamp>,
    /// Why.
    pub stop_reason: Option<StopReason>,
    /// What it is doing.
    pub state: JobState,
}

/// What a job is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum JobState {
    /// Its handler works.
    Running,
    /// Its handler was asked to stop.
    Stopping,
    /// Its handler works although the run is ours no longer.
    Lost,
    /// Its handler has ended; the outcome is being reported.
    Reporting,
}

/// Listens for those who want to see the status, if that is wanted.
pub(super) async fn listen(inner: &Inner) -> Result<Option<Debug>, Error> {
    let Some(port) = inner.settings.debug_port else { return Ok(None) };
    let page = Debug::listen(port).await?;
    tracing::info!("the status is at http://{}/debug", page.address());
    Ok(Some(page))
}

/// Shows them the status. Never returns.
pub(super) async fn serve(inner: &Arc<Inner>, debug: Option<Debug>) {
    let Some(debug) = debug else { return std::future::pending().await };
    let inner = Arc::clone(inner);
    debug.serve(move || inner.status()).await;
}

impl Inner {
    pub(super) fn status(&self) -> Status {
        let mut tasks: Vec<JobStatus> = self.jobs.all().iter().map(|job| job.status()).collect();
        tasks.sort_by_key(|job| (job.started, job.task_id));
        let settings = &self.settings;
        Status {
            task_queue_id: settings.queue.clone(),
            worker_group: settings.name.group.clone(),
            worker_id: settings.name.id.clone(),
            started: self.started.get().map(|started| started.at),
            frozen: *self.orders.frozen.borrow(),
            shutting_down: self.orders.shutdown.is_cancelled(),
            session_id: self.membership.borrow().session(),
            capacity: settings.capacity,
            claims_overrun: self.jobs.overruns(),
            tasks,
        }
    }
}

impl Control {
    fn status(&self) -> JobStatus {
        let stop_reason = self.reason();
        let state = if self.reporting.load(Ordering::Relaxed) {
            JobState::Reporting
        } else if self.hold() == Hold::Gone {
            JobState::Lost
        } else if stop_reason.is_some() {
            JobState::Stopping
        } else {
            JobState::Running
        };
        let Self { task_id, run_id, started, .. } = *self;
        JobStatus { task_id, run_id, started, stopped: self.stopped.get().copied(), stop_reason, state }
    }
}
