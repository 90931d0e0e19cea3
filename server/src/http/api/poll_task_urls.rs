//! pollTaskUrls.

use std::sync::Arc;

use axum::response::Response;
use chrono::DateTime;
use serde::Serialize;
use tenure_api::dates::Timestamp;
use utoipa::ToSchema;

use super::ok;
use crate::domain::scopes::Expression;
use crate::http::app::App;
use crate::http::call::Call;
use crate::http::error::ApiError;

/// The URLs of one queue of messages.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = SignedUrls)]
struct Urls {
    /// Gets messages.
    signed_poll_url: String,
    /// Deletes one, with its id and its receipt put in.
    signed_delete_url: String,
}

/// The URLs of all priorities.
#[derive(Serialize, ToSchema)]
#[schema(as = PollTaskUrls)]
pub(in crate::http) struct Body {
    /// Highest priority first.
    queues: Vec<Urls>,
    /// Until when the URLs are good.
    expires: Timestamp,
}

/// `GET /poll-task-url/:provisionerId/:workerType`
pub async fn poll_task_urls(app: App, call: Arc<Call>) -> Result<Response, ApiError> {
    let queue = call.task_queue_text();
    call.authorize(&Expression::any_of([
        Expression::from(format!("queue:poll-task-urls:{queue}")),
        Expression::all_of(["queue:poll-task-urls".to_owned(), format!("assume:worker-type:{queue}")]),
    ]))?;
    let queue = call.task_queue_id()?;
    call.no_query()?;
    let key = app.engine.queues.make_key(&app.engine.pool, &queue).await?;
    let now = DateTime::from_timestamp_millis(app.now().await?.server_ms).unwrap_or_default();
    let (urls, expires) = app.poll_urls.sign(key, now);
    let queues =
        urls.into_iter().map(|urls| Urls { signed_poll_url: urls.poll, signed_delete_url: urls.delete }).collect();
    ok(&Body { queues, expires: Timestamp::new(expires) })
}
