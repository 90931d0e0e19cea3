//! claimTask.

use tenure_api::bodies::{Claim, ClaimTaskRequest};

use super::claim_json;
use super::claim_work::session_of_claim;
use super::sessions::of_a_claim;
use crate::http::api::prelude::*;
use tenure_engine::ops::claim_task::{ClaimTask, claim_task as claim};
use tenure_engine::ops::sessions;

/// `POST /task/:taskId/runs/:runId/claim`
pub fn endpoint() -> Endpoint {
    Endpoint::post("claimTask", claim_task)
        .scopes(AnyOf(&[
            AllOf(&[Scope("queue:claim-task:<taskQueueId>"), Scope("queue:worker-id:<workerGroup>/<workerId>")]),
            // From the time of signed URLs.
            AllOf(&[
                Scope("queue:claim-task"),
                Scope("assume:worker-type:<taskQueueId>"),
                Scope("assume:worker-id:<workerGroup>/<workerId>"),
            ]),
        ]))
        .described("queue", "Claim one run of a task", describe)
}

fn describe(operation: Operation, sample: &Sample) -> Operation {
    of_a_claim(operation)
        .deprecated()
        .about(
            "For workers that found the run by the poll API, or in the inbox of their session. The worker that holds \
             the claim gets the same claim again. In a queue with limits, a run that waits is claimed if the limits \
             allow a start now, also before older runs; otherwise the answer is 409 and says why.",
        )
        .takes::<ClaimTaskRequest>(&json!({"workerGroup": "rack-1", "workerId": "worker-1"}))
        .names(&[
            ("taskId", "$response.body#/status/taskId"),
            ("runId", "$response.body#/runId"),
            ("provisionerId", "$response.body#/status/provisionerId"),
            ("workerType", "$response.body#/status/workerType"),
            ("workerGroup", "$response.body#/workerGroup"),
            ("workerId", "$response.body#/workerId"),
        ])
        .answers::<Claim<'_>>("The claim", &sample.claim())
        .refuses(ResourceNotFound, "the task, the run or the session does not exist")
        .refuses(
            RequestConflict,
            "another worker has claimed the run, it has ended, it cannot be claimed yet or is assigned to another \
             worker, its queue is paused, the task's deadline has passed, or the worker is quarantined",
        )
}

async fn claim_task(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    let (task, run) = (call.task_id()?, call.run_id()?);
    call.no_query()?;
    let body: ClaimTaskRequest = call.json()?;
    // The scopes contain the task's queue.
    let status = app.engine.status.submit(task).await?;
    let values = Values::of_path()
        .text("taskQueueId", status.queue.as_str())
        .text("workerGroup", body.worker_group.as_str())
        .text("workerId", body.worker_id.as_str());
    call.authorize(&values)?;
    let worker = (body.worker_group.as_str(), body.worker_id.as_str());
    let session = session_of_claim(&app, body.session_id, &status.queue, worker).await?;
    let request = ClaimTask {
        task,
        run,
        worker_group: body.worker_group.to_string(),
        worker_id: body.worker_id.to_string(),
        session,
    };
    // The worker can repeat the claim, so a lost response needs no guard.
    let granted = claim(app.engine.why_parts(), app.engine.settings.claim_timeout, &request).await?;
    let granted = sessions::unless_gone(app.engine.session_parts(), body.session_id, granted).await?;
    Ok(raw(claim_json(&app, &granted)?))
}
