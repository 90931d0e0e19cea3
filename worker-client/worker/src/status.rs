//! Status of a worker for `GET /debug`, with the names and states of the consumer's.

use serde::Serialize;
use tenure_api::dates::Timestamp;
use tenure_api::ids::{RunId, TaskId, TaskQueueId, WorkerGroup, WorkerId};
use tenure_client::consumer::{self, JobState};

use super::Plane;

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
    /// Ordered by start.
    tasks: Vec<TaskStatus>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct TaskStatus {
    task_id: TaskId,
    run_id: RunId,
    /// Time of the claim, by the server's clock.
    started: Timestamp,
    state: JobState,
}

impl Status {
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
