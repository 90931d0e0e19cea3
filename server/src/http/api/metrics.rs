//! `GET /metrics`, in Prometheus' text format.

use http::HeaderValue;
use http::header::WWW_AUTHENTICATE;

use crate::http::api::prelude::*;
use crate::http::files::{File, Life};

/// Minimum interval between renderings, because many queues mean megabytes of metrics.
const LIFE_MS: i64 = 1_000;
const CONTENT_TYPE: &str = "text/plain; version=0.0.4";

/// `GET /metrics`
pub fn endpoint() -> Endpoint {
    Endpoint::get("metrics", answer).no_pool().described("service", "Measurements", |operation, _| {
        operation
            .about(
                "Rendered at most once a second. A server with `--metrics-token` requires that token as \
                 `Authorization: Bearer <token>`.",
            )
            .answers_with(
                200,
                "In the text format of Prometheus",
                "text/plain",
                &json!({"type": "string"}),
                &json!("queue_pending_tasks{taskQueueId=\"acme/linux\"} 1\n"),
            )
            .refuses(ErrorCode::AuthenticationFailed, "the server has a metrics token, and the request lacks it")
    })
}

async fn answer(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    if !app.metrics.admits(call.header("authorization")) {
        let message = "metrics need the server's metrics token; send it as Authorization: Bearer <token>";
        let mut response = call.refuse(ApiError::new(ErrorCode::AuthenticationFailed, message));
        response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        return Ok(response);
    }
    // Also tells whether the database commits writes, within three seconds.
    let is_up = app.engine.heartbeat.beat().await.is_ok();
    metrics::gauge!("tenure_database_up").set(f64::from(u8::from(is_up)));
    let now = i64::try_from(app.started.elapsed().as_millis()).unwrap_or(i64::MAX);
    let files = app.files.clone();
    let make = move || Ok(Some(File::new(CONTENT_TYPE, app.metrics.render(&app.passes))));
    match files.get("/metrics".to_owned(), Life::Milliseconds { life: life_ms(), now }, make).await? {
        Some(file) => Ok(file.response()),
        None => Err(ApiError::internal("metrics could not be rendered")),
    }
}

#[cfg(feature = "test-util")]
fn life_ms() -> i64 {
    tenure_store::breakage::metrics_life_ms(LIFE_MS)
}

#[cfg(not(feature = "test-util"))]
fn life_ms() -> i64 {
    LIFE_MS
}
