//! The operations of the Taskcluster Queue API, as its clients know them.

/// Whether Taskcluster promises to keep an operation.
#[derive(Clone, Copy)]
pub enum Stability {
    Stable,
    Experimental,
    Deprecated,
}
use Stability::{Deprecated, Experimental, Stable};

/// Name, stability, method, and path below `/api/queue/v1`.
pub const QUEUE_API: &[(&str, Stability, &str, &str)] = &[
    ("ping", Stable, "GET", "/ping"),
    ("lbheartbeat", Stable, "GET", "/__lbheartbeat__"),
    ("heartbeat", Stable, "GET", "/__heartbeat__"),
    ("version", Stable, "GET", "/__version__"),
    ("task", Stable, "GET", "/task/{taskId}"),
    ("tasks", Experimental, "POST", "/tasks"),
    ("statuses", Experimental, "POST", "/tasks/status"),
    ("status", Stable, "GET", "/task/{taskId}/status"),
    ("listTaskGroup", Stable, "GET", "/task-group/{taskGroupId}/list"),
    ("getTaskGroup", Stable, "GET", "/task-group/{taskGroupId}"),
    ("sealTaskGroup", Experimental, "POST", "/task-group/{taskGroupId}/seal"),
    ("cancelTaskGroup", Experimental, "POST", "/task-group/{taskGroupId}/cancel"),
    ("changeTaskGroupPriority", Experimental, "POST", "/task-group/{taskGroupId}/priority"),
    ("listDependentTasks", Stable, "GET", "/task/{taskId}/dependents"),
    ("createTask", Stable, "PUT", "/task/{taskId}"),
    ("scheduleTask", Stable, "POST", "/task/{taskId}/schedule"),
    ("rerunTask", Stable, "POST", "/task/{taskId}/rerun"),
    ("cancelTask", Stable, "POST", "/task/{taskId}/cancel"),
    ("changeTaskPriority", Experimental, "POST", "/task/{taskId}/priority"),
    ("claimWork", Stable, "POST", "/claim-work/{taskQueueId}"),
    ("claimTask", Deprecated, "POST", "/task/{taskId}/runs/{runId}/claim"),
    ("reclaimTask", Stable, "POST", "/task/{taskId}/runs/{runId}/reclaim"),
    ("reportCompleted", Stable, "POST", "/task/{taskId}/runs/{runId}/completed"),
    ("reportFailed", Stable, "POST", "/task/{taskId}/runs/{runId}/failed"),
    ("reportException", Stable, "POST", "/task/{taskId}/runs/{runId}/exception"),
    ("createArtifact", Stable, "POST", "/task/{taskId}/runs/{runId}/artifacts/{name}"),
    ("finishArtifact", Stable, "PUT", "/task/{taskId}/runs/{runId}/artifacts/{name}"),
    ("getArtifact", Stable, "GET", "/task/{taskId}/runs/{runId}/artifacts/{name}"),
    ("getLatestArtifact", Stable, "GET", "/task/{taskId}/artifacts/{name}"),
    ("listArtifacts", Stable, "GET", "/task/{taskId}/runs/{runId}/artifacts"),
    ("listLatestArtifacts", Stable, "GET", "/task/{taskId}/artifacts"),
    ("artifactInfo", Stable, "GET", "/task/{taskId}/runs/{runId}/artifact-info/{name}"),
    ("latestArtifactInfo", Stable, "GET", "/task/{taskId}/artifact-info/{name}"),
    ("artifact", Stable, "GET", "/task/{taskId}/runs/{runId}/artifact-content/{name}"),
    ("latestArtifact", Stable, "GET", "/task/{taskId}/artifact-content/{name}"),
    ("listProvisioners", Deprecated, "GET", "/provisioners"),
    ("getProvisioner", Deprecated, "GET", "/provisioners/{provisionerId}"),
    ("pendingTasks", Deprecated, "GET", "/pending/{taskQueueId}"),
    ("taskQueueCounts", Stable, "GET", "/task-queues/{taskQueueId}/counts"),
    ("taskQueueCountsBatch", Experimental, "POST", "/task-queues/counts"),
    ("listPendingTasks", Experimental, "GET", "/task-queues/{taskQueueId}/pending"),
    ("listClaimedTasks", Experimental, "GET", "/task-queues/{taskQueueId}/claimed"),
    ("listWorkerTypes", Deprecated, "GET", "/provisioners/{provisionerId}/worker-types"),
    ("getWorkerType", Deprecated, "GET", "/provisioners/{provisionerId}/worker-types/{workerType}"),
    ("listTaskQueues", Stable, "GET", "/task-queues"),
    ("getTaskQueue", Stable, "GET", "/task-queues/{taskQueueId}"),
    ("listWorkers", Deprecated, "GET", "/provisioners/{provisionerId}/worker-types/{workerType}/workers"),
    (
        "getWorker",
        Deprecated,
        "GET",
        "/provisioners/{provisionerId}/worker-types/{workerType}/workers/{workerGroup}/{workerId}",
    ),
    (
        "quarantineWorker",
        Experimental,
        "PUT",
        "/provisioners/{provisionerId}/worker-types/{workerType}/workers/{workerGroup}/{workerId}",
    ),
    (
        "declareWorker",
        Experimental,
        "PUT",
        "/provisioners/{provisionerId}/worker-types/{workerType}/{workerGroup}/{workerId}",
    ),
    // Gone from Taskcluster in 2019, but not from its workers of that time.
    ("pollTaskUrls", Deprecated, "GET", "/poll-task-url/{provisionerId}/{workerType}"),
];

impl Stability {
    pub fn word(self) -> &'static str {
        match self {
            Stable => "stable",
            Experimental => "experimental",
            Deprecated => "deprecated",
        }
    }
}

/// What Taskcluster promises of an operation of its Queue API.
pub fn stability(name: &str) -> Option<Stability> {
    QUEUE_API.iter().find(|(operation, ..)| *operation == name).map(|(_, stability, ..)| *stability)
}
