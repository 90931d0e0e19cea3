//! Liveness, version and health of the server.

use axum::response::IntoResponse;
use http::StatusCode;
use http::header::CONTENT_TYPE;

use crate::http::api::prelude::*;

const NO_PARAMETERS: &str = "there is a query parameter";

/// The process is alive.
#[derive(Serialize, ToSchema)]
struct Alive {
    /// Always true.
    alive: bool,
    /// Seconds since the start of the server.
    uptime: f64,
}

/// Version information in Dockerflow format.
#[derive(Serialize, ToSchema)]
struct Version {
    /// Release number.
    version: &'static str,
    /// Source commit, if the build was given one.
    commit: &'static str,
    /// Name of the program.
    source: &'static str,
    /// Name of the build, if it was given one.
    build: &'static str,
}

pub fn ping() -> Endpoint {
    Endpoint::get("ping", answer_ping).no_pool().described(
        "service",
        "Check that the process responds",
        |operation, _| {
            operation
                .answers::<Alive>("It does", &json!({"alive": true, "uptime": 12.5}))
                .refuses(ErrorCode::InvalidRequestArguments, NO_PARAMETERS)
        },
    )
}

pub fn lbheartbeat() -> Endpoint {
    let summary = "Check that the process responds, for load balancers";
    Endpoint::get("lbheartbeat", answer_lbheartbeat).no_pool().described("service", summary, describe_heartbeat)
}

pub fn livez() -> Endpoint {
    let summary = "Check that the process responds, for supervisors that restart it";
    Endpoint::get("livez", answer_lbheartbeat).no_pool().described("service", summary, describe_heartbeat)
}

/// Checks that this server takes requests.
pub fn readyz() -> Endpoint {
    let summary = "Check that the database commits writes and this server is not stopping";
    Endpoint::get("readyz", answer_readyz).no_pool().described("service", summary, describe_heartbeat)
}

/// Checks that the database commits writes.
pub fn heartbeat() -> Endpoint {
    let summary = "Check that the database commits writes";
    Endpoint::get("heartbeat", answer_heartbeat).no_pool().described("service", summary, describe_heartbeat)
}

fn describe_heartbeat(operation: Operation, _: &Sample) -> Operation {
    let empty = json!({"type": "object", "maxProperties": 0});
    operation
        .answers_with(200, "It does", "application/json", &empty, &json!({}))
        .refuses(ErrorCode::InvalidRequestArguments, NO_PARAMETERS)
}

/// `GET /__version__`
pub fn version() -> Endpoint {
    Endpoint::get("version", answer_version).no_pool().described(
        "service",
        "The version of the server",
        |operation, _| {
            let example = json!({"version": "0.1.0", "commit": "unknown", "source": "tenure", "build": "unknown"});
            operation
                .answers::<Version>("The version", &example)
                .refuses(ErrorCode::InvalidRequestArguments, NO_PARAMETERS)
        },
    )
}

/// `GET /robots.txt`
pub fn robots() -> Endpoint {
    Endpoint::get("robots", answer_robots).no_pool().described(
        "service",
        "Exclude all pages from search engines",
        |operation, _| {
            operation.answers_with(
                200,
                "The file",
                "text/plain",
                &json!({"type": "string"}),
                &json!("User-agent: *\nDisallow: /\n"),
            )
        },
    )
}

async fn answer_ping(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    call.no_query()?;
    ok(&Alive { alive: true, uptime: app.started.elapsed().as_secs_f64() })
}

async fn answer_lbheartbeat(_: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    call.no_query()?;
    ok(&json!({}))
}

async fn answer_heartbeat(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    call.no_query()?;
    app.engine.heartbeat.beat().await?;
    ok(&json!({}))
}

async fn answer_readyz(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    call.no_query()?;
    tokio::select! {
        biased;
        () = app.stopping.cancelled() => Err(ApiError::unavailable("this server is stopping; use another one")),
        committed = app.engine.heartbeat.beat() => match committed {
            Ok(()) => ok(&json!({})),
            Err(_) => Err(ApiError::unavailable("the database commits no writes")),
        },
    }
}

async fn answer_version(_: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    call.no_query()?;
    ok(&Version {
        version: env!("CARGO_PKG_VERSION"),
        commit: env!("TENURE_COMMIT"),
        source: "tenure",
        build: option_env!("TENURE_BUILD").unwrap_or("unknown"),
    })
}

async fn answer_robots(_: Api, _: Arc<Call>) -> Result<Response, ApiError> {
    Ok((StatusCode::OK, [(CONTENT_TYPE, "text/plain")], "User-agent: *\nDisallow: /\n").into_response())
}
