//! download.

use tenure_api::objects::ObjectRedirect;

use super::{READING, example_url, get_url, read, reading};
use crate::http::api::prelude::*;
use crate::http::api::see_other;

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
