//! work: reports finished runs and claims new ones in one call.

use std::time::Duration;

use chrono::DateTime;
use tenure_api::bodies::Status;
use tenure_api::work::{WAIT_MAX, WorkRequest};

use super::claim_work::{of_a_share, session_of_claim, share_of};
use super::sessions::{OWN, of_a_claim};
use super::{SMALL_ANSWER, room_for_all, write_claims, write_json};
use crate::http::api::prelude::*;
use crate::http::api::state::ApiState;
use crate::http::declaration::ANSWER_MAX;
use crate::http::delivery::carry;
use tenure_domain::task::{Granted, Task};
use tenure_domain::work::{self as rules, Reported};
use tenure_engine::batch::wait_list::Answer;
use tenure_engine::ops::claim_work::Request;
use tenure_engine::ops::sessions;
use tenure_engine::ops::work::Worked;

/// Outcome of one result: a status or an error.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = WorkResult)]
struct ResultBody<'a> {
    /// Id of the task.
    task_id: TaskId,
    /// Number of the run.
    run_id: RunId,
    /// Status after the report; absent if it was refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<&'a Status>,
    /// Reason for the refusal; absent if the report was accepted.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<ResultError>,
}

/// Reason why a result was refused.
#[derive(Serialize, ToSchema)]
#[schema(as = WorkResultError)]
struct ResultError {
    /// Error code, as in a separate report of this run.
    code: ErrorCode,
    /// Message of that error.
    message: String,
}

/// `POST /api/tenure/v1/work`
pub fn endpoint() -> Endpoint {
    Endpoint::post("work", handle).no_pool().scopes(OWN).waits(|app| ANSWER_MAX + wait_of(app, WAIT_MAX)).described(
        "tenure",
        "Report what a worker has finished, and claim what it takes next",
        describe,
    )
}

fn describe(operation: Operation, sample: &Sample) -> Operation {
    let body = json!({
        "taskQueueId": QUEUE,
        "workerGroup": "rack-1",
        "workerId": "worker-1",
        "results": [{"taskId": sample.task, "runId": 0, "outcome": "completed"}],
        "claim": 1,
        "wait": 1,
    });
    let list_of = |name: &str| json!({"type": "array", "items": {"$ref": format!("#/components/schemas/{name}")}});
    of_a_share(of_a_claim(operation))
        .about(
            "One request instead of many reports and a claimWork. A worker reports the runs that it has claimed in \
             this queue under its own name; a client that may claim for it needs no credentials of the runs. Each \
             result is processed like a separate report: it returns the status, or an error with that report's \
             `code`, or `InsufficientScopes` if the run belongs to another queue or was claimed by another worker. \
             Results do not wait for the claims. The response comes with the first claims or when the wait is over. \
             Claims are those of claimWork: at most 16 MB of definitions, and requeued if the response does not \
             reach the worker. The request may be repeated: a result that was stored is answered as it was. After an \
             error of the whole request, such as `ServiceUnavailable` or `SessionEnded`, results may have been \
             stored.",
        )
        .takes::<WorkRequest>(&body)
        .names(&[("taskId", "$response.body#/tasks/0/status/taskId"), ("runId", "$response.body#/tasks/0/runId")])
        .with_schema::<ResultBody<'_>>()
        .answers_with(
            200,
            "The outcome of each result, in the order of the request, and the claims, most urgent first",
            "application/json",
            &json!({
                "type": "object",
                "required": ["results", "tasks"],
                "properties": {"results": list_of("WorkResult"), "tasks": list_of("Claim")},
            }),
            &json!({
                "results": [{"taskId": sample.task, "runId": 0, "status": sample.status("completed")}],
                "tasks": [sample.claim()],
            }),
        )
        .refuses(
            InputError,
            "a result has a field that its outcome does not have, or lacks the reason, a run is named twice, or a result of \
             `worker-shutdown`, or `released` without a delay, comes with a claim; nothing was reported",
        )
        .refuses(ResourceNotFound, "the session does not exist; nothing was reported")
}

fn wait_of(app: &ApiState, seconds: u16) -> Duration {
    app.claim_work_wait.min(Duration::from_secs(seconds.into()))
}

async fn handle(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    call.no_query()?;
    let body: WorkRequest = call.json()?;
    let arrived = match call.arrived() {
        Some(arrived) => arrived,
        // The role `anonymous` may have these scopes, so unsigned requests' dates are compared,
        // too.
        None => DateTime::from_timestamp_millis(app.intake.now().await?.server_ms).unwrap_or_default(),
    };
    let results = rules::results(&body, arrived)?;
    let named: Vec<(TaskId, RunId)> = body.results.iter().map(|result| (result.task_id, result.run_id)).collect();
    let asking = Values::of_path()
        .text("taskQueueId", body.task_queue_id.as_str())
        .text("workerGroup", body.worker_group.as_str())
        .text("workerId", body.worker_id.as_str());
    call.authorize(&asking)?;
    let worker = (body.worker_group.as_str(), body.worker_id.as_str());
    let session = session_of_claim(&app, body.session_id, &body.task_queue_id, worker).await?;
    let claim = Request {
        queue: body.task_queue_id.clone(),
        group: body.worker_group.to_string(),
        id: body.worker_id.to_string(),
        session,
        tasks: body.claim,
        share: body.partition.clone().map(share_of),
        wait_timeout: wait_of(&app, body.wait),
    };
    let acceptable: Vec<Reported> = results.iter().flatten().cloned().collect();
    let working = async {
        let worked = app.engine.work(&acceptable, &claim).await;
        sessions::unless_gone(app.engine.session_parts(), body.session_id, worked).await
    };
    // An error from here on drops the delivery, which requeues the claims.
    let Worked { results: verdicts, answer } = call.wait_for(&app.intake, &asking, working).await?;
    call.note_wait(answer.waited);
    let Answer { claims, delivery, .. } = answer;
    let size = room_for_all(&claims) + results.len() * SMALL_ANSWER;
    let mut verdicts = verdicts.into_iter();
    let verdicts = results.into_iter().filter_map(move |result| match result {
        Ok(_) => Some(verdicts.next()?.map_err(ApiError::from)),
        Err(refused) => Some(Err(refused.into())),
    });
    let (heavy, connection) = (app.intake.heavy.clone(), call.connection.clone());
    let json = heavy.run(size, move || to_json(size, &app, &named, verdicts, &claims)).await?;
    Ok(carry(json, delivery, connection))
}

fn to_json(
    size: usize,
    app: &Api,
    named: &[(TaskId, RunId)],
    verdicts: impl Iterator<Item = Result<Task, ApiError>>,
    claims: &[Granted],
) -> Result<Vec<u8>, ApiError> {
    let mut json = Vec::with_capacity(size + SMALL_ANSWER);
    json.extend_from_slice(b"{\"results\":[");
    for (index, (&(task_id, run_id), verdict)) in named.iter().zip(verdicts).enumerate() {
        if index > 0 {
            json.push(b',');
        }
        let (status, error) = match verdict {
            Ok(task) => (Some(task.into_status()), None),
            Err(error) => (None, Some(ResultError { code: error.code(), message: error.into_message() })),
        };
        write_json(&mut json, &ResultBody { task_id, run_id, status: status.as_ref(), error })?;
    }
    json.extend_from_slice(b"],");
    write_claims(&mut json, app, claims)?;
    json.push(b'}');
    Ok(json)
}
