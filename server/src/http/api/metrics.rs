//! `GET /metrics`, in the text format of Prometheus.

use std::sync::Arc;

use axum::response::Response;
use http::HeaderValue;
use http::header::WWW_AUTHENTICATE;
use metrics_exporter_prometheus::PrometheusHandle;
use serde_json::json;
use subtle::ConstantTimeEq as _;
use tenure_api::errors::ErrorCode;

use crate::http::app::App;
use crate::http::call::Call;
use crate::http::endpoint::Endpoint;
use crate::http::error::ApiError;
use crate::http::files::{File, Life};
use tenure_engine::background::registry::Passes;

/// Metrics are rendered once in this many milliseconds at most: a database with many queues has megabytes of them.
const LIFE_MS: i64 = 1_000;
const CONTENT_TYPE: &str = "text/plain; version=0.0.4";

/// The metrics of one server.
pub struct Metrics {
    recorded: PrometheusHandle,
    /// Without this token as `Authorization: Bearer` they are refused; none: they are open.
    token: Option<String>,
}

impl Metrics {
    /// Metrics of this recorder.
    #[must_use]
    pub fn new(recorded: PrometheusHandle, token: Option<String>) -> Self {
        Self { recorded, token }
    }

    fn admits(&self, authorization: Option<&str>) -> bool {
        let Some(token) = &self.token else { return true };
        let given = authorization.and_then(|text| text.split_once(' '));
        given.is_some_and(|(scheme, given)| {
            scheme.eq_ignore_ascii_case("bearer") && given.trim().as_bytes().ct_eq(token.as_bytes()).into()
        })
    }

    fn render(&self, passes: &Passes) -> String {
        let Passes { engine, counters, worker_counts, .. } = passes;
        let mut text = self.recorded.render();
        counters.gauges.render(&mut text);
        engine.notifiers.resolutions().render(&mut text);
        worker_counts.gauges.render(&mut text);
        engine.schedulers.terms.render(&mut text);
        text
    }
}

/// `GET /metrics`
pub fn endpoint() -> Endpoint {
    Endpoint::get("metrics", answer).no_pool().described("service", "Measurements", |operation, _| {
        operation
            .about(
                "Rendered at most once a second. A server with `--metrics-token` wants that token as \
                 `Authorization: Bearer <token>`.",
            )
            .answers_with(
                200,
                "In the text format of Prometheus",
                "text/plain",
                &json!({"type": "string"}),
                &json!("queue_pending_tasks{taskQueueId=\"acme/linux\"} 1\n"),
            )
            .refuses(
                ErrorCode::AuthenticationFailed,
                "the server has a metrics token, and the request does not have it",
            )
    })
}

async fn answer(app: App, call: Arc<Call>) -> Result<Response, ApiError> {
    if !app.metrics.admits(call.header("authorization")) {
        let message = "metrics need the server's metrics token; send it as Authorization: Bearer <token>";
        let mut response = ApiError::new(ErrorCode::AuthenticationFailed, message).response(&call);
        response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        return Ok(response);
    }
    let now = i64::try_from(app.started.elapsed().as_millis()).unwrap_or(i64::MAX);
    let files = app.files.clone();
    let make = move || Ok(Some(File::new(CONTENT_TYPE, app.metrics.render(&app.passes))));
    match files.get("/metrics".to_owned(), Life::Milliseconds { life: life_ms(), now }, make).await? {
        Some(file) => Ok(file.response()),
        None => Err(ApiError::internal("metrics were not rendered")),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_with_a_token_are_refused_without_it() {
        let recorded = || metrics_exporter_prometheus::PrometheusBuilder::new().build_recorder().handle();
        let metrics = Metrics::new(recorded(), Some("s3cret".to_owned()));
        for admitted in ["Bearer s3cret", "bearer  s3cret"] {
            assert!(metrics.admits(Some(admitted)), "{admitted}");
        }
        for refused in
            [None, Some("s3cret"), Some("Bearer"), Some("Bearer s3cre"), Some("Basic s3cret"), Some("Bearer ")]
        {
            assert!(!metrics.admits(refused), "{refused:?}");
        }
        assert!(Metrics::new(recorded(), None).admits(None));
    }
}
