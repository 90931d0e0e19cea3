//! Whether the server lives, what it is, and how it does.

use std::sync::Arc;
use std::time::Duration;

use axum::response::{IntoResponse, Response};
use http::StatusCode;
use http::header::CONTENT_TYPE;
use serde::Serialize;
use serde_json::json;
use utoipa::ToSchema;

use super::ok;
use crate::http::app::App;
use crate::http::call::Call;
use crate::http::error::ApiError;
use crate::store::clock;

/// A database that does not answer for so long counts as away.
const HEARTBEAT_MAX: Duration = Duration::from_secs(5);

/// The process answers.
#[derive(Serialize, ToSchema)]
pub(in crate::http) struct Alive {
    /// Always true.
    alive: bool,
    /// Seconds since the server began.
    uptime: f64,
}

/// What this is, in the form of Dockerflow.
#[derive(Serialize, ToSchema)]
pub(in crate::http) struct Version {
    /// The release.
    version: &'static str,
    /// The commit that it was built from, if that was told.
    commit: &'static str,
    /// The name of the program.
    source: &'static str,
    /// Which build it is, if that was told.
    build: &'static str,
}

/// `GET /ping`: the process answers.
pub async fn ping(app: App, _: Arc<Call>) -> Result<Response, ApiError> {
    ok(&Alive { alive: true, uptime: app.started.elapsed().as_secs_f64() })
}

/// `GET /__lbheartbeat__`: the process answers.
pub async fn lbheartbeat(_: App, _: Arc<Call>) -> Result<Response, ApiError> {
    ok(&json!({}))
}

/// `GET /__heartbeat__`: the database answers too.
pub async fn heartbeat(app: App, _: Arc<Call>) -> Result<Response, ApiError> {
    let asking = async {
        let mut conn = app.engine.pool.acquire().await?;
        clock::get_real_now(&mut conn).await
    };
    let asked = tokio::time::timeout(HEARTBEAT_MAX, asking).await;
    asked.unwrap_or(Err(sqlx::Error::PoolTimedOut))?;
    ok(&json!({}))
}

/// `GET /__version__`
pub async fn version(_: App, _: Arc<Call>) -> Result<Response, ApiError> {
    ok(&Version {
        version: env!("CARGO_PKG_VERSION"),
        commit: env!("TENURE_COMMIT"),
        source: "tenure",
        build: option_env!("TENURE_BUILD").unwrap_or("unknown"),
    })
}

/// `GET /metrics`, in the text format of Prometheus.
pub async fn metrics(app: App, _: Arc<Call>) -> Result<Response, ApiError> {
    Ok((StatusCode::OK, [(CONTENT_TYPE, "text/plain; version=0.0.4")], app.metrics.render()).into_response())
}

/// `GET /robots.txt`
pub async fn robots(_: App, _: Arc<Call>) -> Result<Response, ApiError> {
    Ok((StatusCode::OK, [(CONTENT_TYPE, "text/plain")], "User-agent: *\nDisallow: /\n").into_response())
}
