//! What a worker is doing, for `GET /debug`. Names and states are those of the consumer's status.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::Serialize;
use tenure_api::dates::Timestamp;
use tenure_api::ids::{RunId, TaskId, TaskQueueId, WorkerGroup, WorkerId};
use tenure_client::Claim;
use tenure_client::consumer::JobState;
use tokio_util::sync::CancellationToken;

use super::{Plane, Settings};

/// What a worker is doing.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Status {
    task_queue_id: TaskQueueId,
    worker_group: WorkerGroup,
    worker_id: WorkerId,
    /// By the server's clock.
    started: Timestamp,
    shutting_down: bool,
    plane: &'static str,
    capacity: usize,
    /// Those under way, by when they began.
    tasks: Vec<TaskStatus>,
}

/// How a task is.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
struct TaskStatus {
    task_id: TaskId,
    run_id: RunId,
    /// When its claim came, by the server's clock.
    started: Timestamp,
    state: JobState,
}

/// The tasks under way. Clones share them.
#[derive(Clone, Default)]
pub(super) struct UnderWay(Arc<Mutex<BTreeMap<(TaskId, RunId), TaskStatus>>>);

/// A task that is among those for as long as this is kept.
pub(super) struct Entered {
    tasks: UnderWay,
    run: (TaskId, RunId),
}

impl UnderWay {
    pub(super) fn enter(&self, claim: &Claim) -> Entered {
        let (task_id, run_id) = (claim.task_id(), claim.run_id());
        let status = TaskStatus { task_id, run_id, started: claim.client().now(), state: JobState::Running };
        self.lock().insert((task_id, run_id), status);
        Entered { tasks: self.clone(), run: (task_id, run_id) }
    }

    /// What a worker with these settings is doing now.
    pub(super) fn status(&self, settings: &Settings, started: Timestamp, shutdown: &CancellationToken) -> Status {
        let mut tasks: Vec<TaskStatus> = self.lock().values().cloned().collect();
        tasks.sort_by_key(|task| (task.started, task.task_id));
        Status {
            task_queue_id: settings.queue.clone(),
            worker_group: settings.name.group.clone(),
            worker_id: settings.name.id.clone(),
            started,
            shutting_down: shutdown.is_cancelled(),
            plane: match settings.plane {
                Plane::Claim => "claim",
                Plane::Poll => "poll",
            },
            capacity: settings.capacity.get(),
            tasks,
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<(TaskId, RunId), TaskStatus>> {
        // Each change is one call, so that a panic elsewhere leaves nothing half done.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Entered {
    pub(super) fn is(&self, state: JobState) {
        if let Some(task) = self.tasks.lock().get_mut(&self.run) {
            task.state = state;
        }
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        self.tasks.lock().remove(&self.run);
    }
}
