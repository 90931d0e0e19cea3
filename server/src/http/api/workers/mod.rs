//! Workers of a queue: listWorkers, getWorker, quarantineWorker, declareWorker.

pub mod declare_worker;
pub mod get_worker;
pub mod list_workers;
pub mod quarantine_worker;

use tenure_engine::ops::workers::{KnownWorker, Name};
use tenure_store::workers::QuarantineRow;

use crate::http::api::prelude::*;

/// The reason in the history of quarantines where none was given.
const NO_INFO: &str = "[unspecified]";

/// In minutes.
const DAY_MINUTES: i64 = 24 * 60;

/// A run of a task.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = TaskRun)]
struct RunBody {
    /// The task.
    task_id: TaskId,
    /// The run.
    run_id: RunId,
}

impl From<(TaskId, RunId)> for RunBody {
    fn from((task_id, run_id): (TaskId, RunId)) -> Self {
        Self { task_id, run_id }
    }
}

/// A change of a worker's quarantine.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = QuarantineDetails)]
struct DetailsBody {
    /// Who made it.
    client_id: String,
    /// When.
    updated_at: Timestamp,
    /// Until when the worker was to get no work.
    quarantine_until: Timestamp,
    /// Why.
    quarantine_info: String,
}

/// A worker of a queue.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Worker)]
struct WorkerBody {
    provisioner_id: String,
    worker_type: String,
    task_queue_id: TaskQueueId,
    worker_group: String,
    worker_id: String,
    /// Its last claims, oldest first; at most 20.
    recent_tasks: Vec<RunBody>,
    /// Until when it is shown, unless it is seen again.
    expires: Timestamp,
    /// Until when it gets no work. May be over; absent if it was never quarantined.
    #[serde(skip_serializing_if = "Option::is_none")]
    quarantine_until: Option<Timestamp>,
    /// The changes of its quarantine, oldest first; the last hundred.
    quarantine_details: Vec<DetailsBody>,
    /// When it was first seen.
    first_claim: Timestamp,
    /// When it was last seen.
    last_date_active: Timestamp,
    /// Always empty; clients expect the field.
    #[schema(value_type = Vec<Object>)]
    actions: [(); 0],
}

impl From<KnownWorker> for WorkerBody {
    fn from(known_worker: KnownWorker) -> Self {
        let KnownWorker { queue, worker, recent, quarantines } = known_worker;
        let details = |row: QuarantineRow| DetailsBody {
            client_id: row.client_id,
            updated_at: row.updated.into(),
            quarantine_until: row.quarantine_until.into(),
            quarantine_info: row.info.unwrap_or_else(|| NO_INFO.to_owned()),
        };
        Self {
            provisioner_id: queue.provisioner_id().to_owned(),
            worker_type: queue.worker_type().to_owned(),
            worker_group: worker.worker_group,
            worker_id: worker.worker_id,
            recent_tasks: recent.into_iter().map(RunBody::from).collect(),
            expires: worker.expires.into(),
            quarantine_until: worker.quarantine_until.map(Timestamp::new),
            quarantine_details: quarantines.into_iter().map(details).collect(),
            first_claim: worker.first_claim.into(),
            last_date_active: worker.last_seen.into(),
            actions: [],
            task_queue_id: queue,
        }
    }
}

/// The worker that the path names, if there can be one in its queue. To be asked when the caller's scopes were checked.
fn name(call: &Call) -> Result<Name, ApiError> {
    let (queue, group, id) = (call.queue_of_halves()?, call.worker_group()?, call.worker_id()?);
    let missing = || {
        let queue = call.task_queue_text();
        ApiError::new(
            ErrorCode::ResourceNotFound,
            format!("no queue can be called {queue}, so that there is no such worker"),
        )
    };
    Ok(Name { queue: queue.ok_or_else(missing)?, group: group.to_string(), id: id.to_string() })
}

/// The worker of the examples.
fn a_worker(sample: &Sample) -> Value {
    json!({
        "provisionerId": "acme",
        "workerType": "linux",
        "taskQueueId": QUEUE,
        "workerGroup": "rack-1",
        "workerId": "worker-1",
        "recentTasks": [{"taskId": sample.task, "runId": 0}],
        "expires": sample.after(DAY_MINUTES),
        "quarantineDetails": [],
        "firstClaim": sample.after(0),
        "lastDateActive": sample.after(1),
        "actions": [],
    })
}
