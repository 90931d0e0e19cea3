//! The OpenAPI document and its user interface, both from the program itself.

use std::sync::{Arc, LazyLock};

use axum::response::{IntoResponse, Response};
use chrono::DateTime;
use http::header::{CONTENT_SECURITY_POLICY, CONTENT_TYPE, LOCATION};
use http::{HeaderValue, StatusCode};
use tenure_api::errors::ErrorCode;
use tenure_api::ids::TaskId;
use utoipa_swagger_ui::{Config, serve};
use uuid::Uuid;

use super::ok;
use crate::http::app::App;
use crate::http::call::Call;
use crate::http::docs::{Sample, document};
use crate::http::error::ApiError;

/// What the interface's pages may do: run and show what came with them, and call this server. Styles are set in attributes.
const POLICY: HeaderValue = HeaderValue::from_static(
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; \
     connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
);

/// Relative, so that it works below any root URL. Access tokens are not kept by the browser.
static SETTINGS: LazyLock<Arc<Config<'static>>> = LazyLock::new(|| {
    let config = Config::new(["../openapi.json"]);
    Arc::new(
        config
            .use_base_layout()
            .try_it_out_enabled(true)
            .display_request_duration(true)
            .filter(true)
            .validator_url("none"),
    )
});

/// `GET /openapi.json`: with examples that work today.
pub async fn openapi(app: App, call: Arc<Call>) -> Result<Response, ApiError> {
    call.no_query()?;
    let now = DateTime::from_timestamp_millis(app.now().await?.server_ms).unwrap_or_default();
    ok(&document(&Sample { now, task: TaskId::from_random(Uuid::new_v4().into_bytes()) }))
}

/// `GET /docs`: the interface's files are found relative to `/docs/`.
pub async fn docs(_: App, _: Arc<Call>) -> Result<Response, ApiError> {
    Ok((StatusCode::PERMANENT_REDIRECT, [(LOCATION, "docs/")]).into_response())
}

/// `GET /docs/:file`
pub async fn docs_file(_: App, call: Arc<Call>) -> Result<Response, ApiError> {
    let name = call.params.first().map_or("", |(_, name)| name.as_str());
    let file = serve(name, Arc::clone(&SETTINGS)).map_err(|error| ApiError::internal(&error.to_string()))?;
    let Some(file) = file else {
        return Err(ApiError::new(ErrorCode::ResourceNotFound, format!("the documentation has no file {name:?}")));
    };
    let headers = [(CONTENT_TYPE, file.content_type)];
    Ok(([(CONTENT_SECURITY_POLICY, POLICY)], headers, file.bytes.into_owned()).into_response())
}
