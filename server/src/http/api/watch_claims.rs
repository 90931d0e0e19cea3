//! watchClaims: until a run ends that a worker holds.

use std::sync::Arc;
use std::time::Duration;

use axum::response::Response;
use chrono::DateTime;
use serde_json::json;
use tenure_api::dates::Timestamp;
use tenure_api::errors::ErrorCode::InputError;
use tenure_api::watch::{WATCH_WAIT_MAX, WatchClaimsRequest, WatchedClaims};

use super::ok;
use crate::http::app::App;
use crate::http::call::Call;
use crate::http::docs::Sample;
use crate::http::docs::operation::Operation;
use crate::http::endpoint::{ANSWER_MAX, Endpoint};
use crate::http::error::ApiError;
use crate::http::scopes::Template::{self, ForEach};
use crate::http::scopes::Values;
use tenure_domain::watch::watch;

const WAIT_MAX: Duration = Duration::from_secs(WATCH_WAIT_MAX.unsigned_abs());

/// `POST /api/tenure/v1/claims/watch`
pub fn endpoint() -> Endpoint {
    Endpoint::post("watchClaims", watch_claims).no_pool().scopes(SCOPES).waits(|_| ANSWER_MAX + WAIT_MAX).described(
        "tenure",
        "Wait until a run ends that a worker holds",
        describe,
    )
}

const SCOPES: Template = ForEach { item: "taskId", list: "taskIds", scopes: &["queue:status:<taskId>"] };

fn describe(operation: Operation, sample: &Sample) -> Operation {
    operation
        .about(
            "One request for all runs that a worker without a session holds. The answer comes as soon as one of them is held by no \
             worker, whatever has ended it: its task was cancelled or has met its deadline, its lease is over, its worker was \
             removed, or it was reported. It has those that are known by then, and none if the wait was over first; the worker stops \
             working on them, and asks again with the others. A run that waits for a worker has the `state` `pending`, and one that \
             does not exist none. Nothing is remembered of a request: one whose answer is lost is sent again.",
        )
        .takes::<WatchClaimsRequest>(&json!({"runs": [{"taskId": sample.task, "runId": 0}], "wait": 1}))
        .answers::<WatchedClaims>(
            "Those of the runs that no worker holds",
            &json!({
                "ended": [{"taskId": sample.task, "runId": 0, "state": "exception", "reasonResolved": "canceled"}],
                "serverTime": sample.after(0),
            }),
        )
        .refuses(InputError, "`wait` or the number of runs is out of its range")
}

async fn watch_claims(app: App, call: Arc<Call>) -> Result<Response, ApiError> {
    call.no_query()?;
    let watch = watch(&call.json::<WatchClaimsRequest>()?)?;
    let runs = Values::of_path().list("taskIds", watch.runs.iter().map(|(task, _)| task.to_string()));
    call.authorize(&runs)?;
    let ended = call.wait_for(&app, &runs, app.engine.watches.watch(watch, call.caller())).await?;
    let now = DateTime::from_timestamp_millis(app.now().await?.server_ms).unwrap_or_default();
    ok(&WatchedClaims { ended, server_time: Timestamp::new(now) })
}
