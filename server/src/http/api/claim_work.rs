//! claimWork.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::response::Response;
use tenure_api::bodies::{CLAIM_TASKS, ClaimWorkRequest};
use tenure_api::errors::ErrorCode;

use super::claim_json;
use crate::batch::claim_line::{Answer, Request};
use crate::domain::scopes::Expression;
use crate::domain::task::Granted;
use crate::domain::worker::WorkerKey;
use crate::http::app::App;
use crate::http::call::Call;
use crate::http::delivery::carry;
use crate::http::error::ApiError;

/// A client that was deleted while it waited this long or longer gets nothing.
const LOOK_AGAIN_AFTER: Duration = Duration::from_millis(100);

/// `POST /claim-work/:taskQueueId`
pub async fn claim_work(app: App, call: Arc<Call>) -> Result<Response, ApiError> {
    let queue = call.task_queue_id()?;
    call.no_query()?;
    let body: ClaimWorkRequest = call.json()?;
    if !CLAIM_TASKS.contains(&body.tasks) {
        let message = format!("the body: `tasks` must be from {} to {}", CLAIM_TASKS.start(), CLAIM_TASKS.end());
        return Err(ApiError::new(ErrorCode::InputValidationError, message));
    }
    let required = Expression::all_of([
        format!("queue:claim-work:{queue}"),
        format!("queue:worker-id:{}/{}", body.worker_group, body.worker_id),
    ]);
    call.authorize(&required)?;
    let worker = WorkerKey {
        queue: app.engine.queues.make_key(&app.engine.pool, &queue).await?,
        group: body.worker_group.to_string(),
        id: body.worker_id.to_string(),
    };
    let request = Request { worker, tasks: body.tasks, patience: app.claim_work_wait };
    let asked = Instant::now();
    let answer = app.engine.line.claim(request).await?;
    // An error from here on drops the answer, and with it hands the claims back.
    if !answer.claims.is_empty() && asked.elapsed() >= LOOK_AGAIN_AFTER {
        call.authorize_again(&app, &required).await?;
    }
    let size = answer.claims.iter().filter_map(|granted| granted.definition.as_ref()).map(String::len).sum();
    let (heavy, connection) = (app.heavy.clone(), call.connection.clone());
    let Answer { claims, delivery } = answer;
    let json = heavy.run(size, move || claims_json(&app, &claims)).await?;
    Ok(carry(json, delivery, connection))
}

fn claims_json(app: &App, claims: &[Granted]) -> Result<String, ApiError> {
    let claims: Vec<String> = claims.iter().map(|granted| claim_json(app, granted)).collect::<Result<_, _>>()?;
    Ok(format!("{{\"tasks\":[{}]}}", claims.join(",")))
}
