//! claimTask.

use std::sync::Arc;

use axum::response::Response;
use tenure_api::bodies::ClaimTaskRequest;

use super::{claim_json, raw};
use crate::domain::scopes::Expression;
use crate::http::app::App;
use crate::http::call::Call;
use crate::http::error::ApiError;
use crate::ops::claim_task::{Request, claim_task as claim};

/// `POST /task/:taskId/runs/:runId/claim`
pub async fn claim_task(app: App, call: Arc<Call>) -> Result<Response, ApiError> {
    let (task, run) = (call.task_id()?, call.run_id()?);
    call.no_query()?;
    let body: ClaimTaskRequest = call.json()?;
    // The scopes name the task's queue, so that the task must be known before they can be checked.
    let known = app.engine.status.submit(task).await?;
    let worker = format!("{}/{}", body.worker_group, body.worker_id);
    call.authorize(&Expression::any_of([
        Expression::all_of([format!("queue:claim-task:{}", known.queue), format!("queue:worker-id:{worker}")]),
        // What workers had in the days of signed URLs.
        Expression::all_of([
            "queue:claim-task".to_owned(),
            format!("assume:worker-type:{}", known.queue),
            format!("assume:worker-id:{worker}"),
        ]),
    ]))?;
    let request =
        Request { task, run, worker_group: body.worker_group.to_string(), worker_id: body.worker_id.to_string() };
    // The worker can ask for the very same claim again, so that a lost answer needs no guard.
    let granted = claim(&app.engine.pool, &app.engine.workers, app.engine.settings.claim_timeout, &request).await??;
    Ok(raw(claim_json(&app, &granted)?))
}
