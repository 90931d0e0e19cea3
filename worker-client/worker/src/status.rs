//! Status of a worker for `GET /debug`. Names and states are those of the consumer's status.

use serde::Serialize;
use tenure_api::dates::Timestamp;
use tenure_api::ids::{RunId, TaskId, TaskQueueId, WorkerGroup, WorkerId};
use tenure_client::consumer::{self, JobState};

use super::Plane;

/// Status of a worker.
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
    /// Current tasks, by start.
    tasks: Vec<TaskStatus>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct TaskStatus {
    task_id: TaskId,
    run_id: RunId,
    /// When it was claimed, by the server's clock.
    started: Timestamp,
    state: JobState,
}

impl Status {
    /// Derives the status from the consumer's.
    pub(super) fn of(consumer: consumer::Status, plane: Plane, started: Timestamp) -> Self {
        let task = |job: consumer::JobStatus| TaskStatus {
            task_id: job.task_id,
            run_id: job.run_id,
            started: job.started,
            state: job.state,
        };
        Self {
            task_queue_id: consumer.task_queue_id,
            worker_group: consumer.worker_group,
            worker_id: consumer.worker_id,
            started,
            shutting_down: consumer.shutting_down,
            plane: match plane {
                Plane::Claim => "claim",
                Plane::Poll => "poll",
            },
            capacity: consumer.capacity,
            tasks: consumer.tasks.into_iter().map(task).collect(),
        }
    }
}
