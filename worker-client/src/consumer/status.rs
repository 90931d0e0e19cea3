//! Status of a consumer.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use serde::Serialize;
use tenure_api::dates::Timestamp;
use tenure_api::ids::{RunId, SessionId, TaskId, TaskQueueId, WorkerGroup, WorkerId};

use super::control::Control;
use super::inner::Inner;
use super::stop::StopReason;
use crate::Error;
use crate::debug::Debug;

/// Status of a consumer.
///
/// ```
/// # fn example(handle: &tenure_client::consumer::ConsumerHandle) {
/// let status = handle.status();
/// println!("{} of {} slots are taken", status.tasks.len(), status.capacity);
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct Status {
    pub task_queue_id: TaskQueueId,
    pub worker_group: WorkerGroup,
    pub worker_id: WorkerId,
    /// By the server's clock; none before the start.
    pub started: Option<Timestamp>,
    /// Takes no tasks.
    pub frozen: bool,
    pub shutting_down: bool,
    /// The current session, as far as known.
    pub session_id: Option<SessionId>,
    pub capacity: usize,
    /// Handlers that continued after the run was lost or could have been given to another worker.
    pub claims_overrun: u64,
    /// Ordered by start.
    pub tasks: Vec<JobStatus>,
}

/// Status of a job.
///
/// ```
/// # fn example(handle: &tenure_client::consumer::ConsumerHandle) {
/// for job in handle.status().tasks {
///     println!("task {} run {}: {:?} since {}", job.task_id, job.run_id, job.state, job.started);
/// }
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct JobStatus {
    pub task_id: TaskId,
    pub run_id: RunId,
    /// Time of the claim, by the server's clock.
    pub started: Timestamp,
    /// Time of the first request to stop.
    pub stopped: Option<Timestamp>,
    pub stop_reason: Option<StopReason>,
    pub state: JobState,
}

/// State of a job.
///
/// ```
/// use tenure_client::consumer::JobState;
///
/// # fn example(status: &tenure_client::consumer::Status) {
/// let stopping = status.tasks.iter().filter(|job| job.state == JobState::Stopping).count();
/// println!("{stopping} jobs are stopping");
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum JobState {
    Running,
    Stopping,
    /// The handler works although the run is lost, or has ended and its result may count.
    Lost,
    /// The handler has ended; its outcome is being reported.
    Reporting,
}

pub(super) async fn listen(inner: &Inner) -> Result<Option<Debug>, Error> {
    let Some(port) = inner.settings.debug_port else { return Ok(None) };
    let page = Debug::listen(port).await?;
    tracing::info!("the status is at http://{}/debug", page.address());
    Ok(Some(page))
}

/// Never returns.
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
        } else if self.hold().has_ended() {
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
