//! claimWork.

use tenure_api::bodies::{CLAIM_TASKS, ClaimWorkRequest};
use tenure_api::ids::SessionId;
use tenure_api::partitions::PartitionClaim;

use super::claims_json;
use super::sessions::{OWN, of_a_claim};
use crate::http::api::prelude::*;
use crate::http::declaration::ANSWER_MAX;
use crate::http::delivery::carry;
use tenure_engine::batch::wait_list::{Answer, Share};
use tenure_engine::ops::claim_work::Request;
use tenure_engine::ops::sessions;

/// `POST /claim-work/:taskQueueId`
pub fn endpoint() -> Endpoint {
    Endpoint::post("claimWork", claim_work)
        .no_pool()
        .scopes(OWN)
        .waits(|app| ANSWER_MAX + app.claim_work_wait)
        .described("queue", "Claim up to 32 tasks of a queue", describe)
}

fn describe(operation: Operation, sample: &Sample) -> Operation {
    of_a_share(of_a_claim(operation))
        .about(
            "If there is no work, the request waits up to 20 seconds and then returns an empty list. Each claim is \
             valid until `takenUntil`: renew it earlier with reclaimTask. A claim whose response did not reach the \
             worker is requeued. A response has at most 16 MB of definitions; further tasks stay pending. The first \
             task is always included. With `sessionId` the claims end with that session at the latest.",
        )
        .takes::<ClaimWorkRequest>(&json!({"workerGroup": "rack-1", "workerId": "worker-1", "tasks": 1}))
        .names(&[("taskId", "$response.body#/tasks/0/status/taskId"), ("runId", "$response.body#/tasks/0/runId")])
        .answers_with(
            200,
            "The claims, most urgent first",
            "application/json",
            &json!({
                "type": "object",
                "required": ["tasks"],
                "properties": {"tasks": {"type": "array", "items": {"$ref": "#/components/schemas/Claim"}}},
            }),
            &json!({"tasks": [sample.claim()]}),
        )
        .refuses(ErrorCode::ResourceNotFound, "the session does not exist")
}

/// Epoch of the worker's session, if any.
pub(super) async fn session_of_claim(
    app: &Api,
    session: Option<SessionId>,
    queue: &TaskQueueId,
    (group, worker): (&str, &str),
) -> Result<Option<i64>, ApiError> {
    match session {
        Some(id) => Ok(Some(sessions::of_claim(app.engine.session_parts(), id, queue, group, worker).await?)),
        None => Ok(None),
    }
}

pub(super) fn share_of(claim: PartitionClaim) -> Share {
    let PartitionClaim { name: group, epoch, index } = claim;
    Share { group, epoch, index }
}

/// For calls that claim.
pub(super) fn of_a_share(operation: Operation) -> Operation {
    operation.refuses(InputError, "`partition` names another group than the policy of the queue").refuses(
        ErrorCode::StalePartition,
        "the map of the partition group is another one, or nobody has the index; `epoch` is its number",
    )
}

async fn claim_work(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    let queue = call.task_queue_id()?;
    call.no_query()?;
    let body: ClaimWorkRequest = call.json()?;
    if !CLAIM_TASKS.contains(&body.tasks) {
        let message = format!("the body: `tasks` must be from {} to {}", CLAIM_TASKS.start(), CLAIM_TASKS.end());
        return Err(ApiError::new(ErrorCode::InputValidationError, message));
    }
    let asking =
        Values::of_path().text("workerGroup", body.worker_group.as_str()).text("workerId", body.worker_id.as_str());
    call.authorize(&asking)?;
    let worker = (body.worker_group.as_str(), body.worker_id.as_str());
    let session = session_of_claim(&app, body.session_id, &queue, worker).await?;
    let request = Request {
        queue,
        group: body.worker_group.to_string(),
        id: body.worker_id.to_string(),
        session,
        tasks: body.tasks,
        share: body.partition.map(share_of),
        wait_timeout: app.claim_work_wait,
    };
    let claiming = async {
        let answer = app.engine.claim_work(&request).await;
        sessions::unless_gone(app.engine.session_parts(), body.session_id, answer).await
    };
    // An error from here on drops the answer, which requeues the claims.
    let answer = call.wait_for(&app.intake, &asking, claiming).await?;
    call.note_wait(answer.waited);
    let size = answer.claims.iter().filter_map(|granted| granted.definition.as_ref()).map(String::len).sum();
    let (heavy, connection) = (app.intake.heavy.clone(), call.connection.clone());
    let Answer { claims, delivery, .. } = answer;
    let json = heavy.run(size, move || claims_json(&app, &claims)).await?;
    Ok(carry(json, delivery, connection))
}
