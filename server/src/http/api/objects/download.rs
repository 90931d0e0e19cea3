//! download.

use std::sync::Arc;

use axum::response::Response;
use serde_json::json;
use tenure_api::objects::ObjectRedirect;

use super::{READING, example_url, get_url, read, reading};
use crate::http::api::see_other;
use crate::http::api::state::{Api, Endpoint};
use crate::http::call::Call;
use crate::http::docs::operation::Operation;
use crate::http::docs::sample::Sample;
use crate::http::error::ApiError;

/// `GET /download/:name`
pub fn endpoint() -> Endpoint {
    Endpoint::get("download", download).scopes(READING).described("object", "Download an object", describe)
}

fn describe(operation: Operation, _: &Sample) -> Operation {
    reading(operation).moves::<ObjectRedirect<'_>>("Where it is", &json!({"url": example_url()}), &[])
}

async fn download(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    let found = read(&app, &call).await?;
    let (url, _) = get_url(&app, call.object_name()?.as_str(), &found);
    see_other(&url, &ObjectRedirect { url: &url })
}
