//! Stored bytes by signed URLs: uploads, and downloads as HTTP knows them.
//!
//! Callers show no credentials: a URL is a capability. Its signature is checked in memory, before anything else is looked
//! at, so that a URL that was tampered with learns nothing but that.

mod error;
mod get;
mod put;
mod select;

use axum::extract::{OriginalUri, Request, State};
use axum::response::Response;
use http::header::{
    ACCESS_CONTROL_ALLOW_ORIGIN, ACCESS_CONTROL_EXPOSE_HEADERS, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE,
    ORIGIN,
};
use http::request::Parts;
use http::{HeaderValue, Method, StatusCode};
use tenure_api::blob_url::Access;

use self::error::Refused;
pub use self::error::{BlobErrorBody, Code};
use super::app::App;
use super::body::pass_over;
use crate::blobs::{BlobName, StoredBlob};

/// Where stored bytes are below the root URL.
pub const PATH: &str = "/artifacts";
/// What is uploaded was made by tasks, which nobody vouches for: no script of it runs, and it belongs to no origin.
const POLICY: HeaderValue = HeaderValue::from_static("default-src 'none'; style-src 'unsafe-inline'; sandbox");
/// For whom the answer is, and that a stored one is good only as long as its tag is.
const CACHING: HeaderValue = HeaderValue::from_static("private, no-cache");
/// What scripts of other sites may read of an answer.
const EXPOSED: HeaderValue =
    HeaderValue::from_static("Accept-Ranges, Content-Encoding, Content-Length, Content-Range, ETag, Last-Modified");

/// `/artifacts/{name}`, whatever the method.
pub async fn serve(State(app): State<App>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let from_browser = parts.headers.contains_key(ORIGIN);
    let operation = if parts.method == Method::PUT { "put" } else { "get" };
    let answered = match verified(&app, &parts).await {
        Ok(name) if operation == "put" => put::put(&app, name, &parts, body).await,
        Ok(name) => get::get(&app, &name, &parts).await,
        Err(refused) => {
            pass_over(&parts.headers, body).await;
            Err(refused)
        }
    };
    let mut response = answered.unwrap_or_else(Refused::response);
    count(operation, response.status());
    let headers = response.headers_mut();
    headers.insert(CONTENT_SECURITY_POLICY, POLICY);
    headers.entry(CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    if from_browser {
        headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, HeaderValue::from_static("*"));
        headers.insert(ACCESS_CONTROL_EXPOSE_HEADERS, EXPOSED);
    }
    response
}

/// The name that a request may use as it does.
async fn verified(app: &App, parts: &Parts) -> Result<BlobName, Refused> {
    let content_type = parts.headers.get(CONTENT_TYPE).map_or(Ok(""), HeaderValue::to_str);
    let access = match (&parts.method, content_type) {
        (&Method::PUT, Ok(content_type)) => Access::Put { content_type },
        (&Method::GET | &Method::HEAD, _) => Access::Get,
        (&Method::PUT, Err(_)) => return Err(Refused::denied("the Content-Type is not text")),
        (method, _) => return Err(Refused::denied(format!("a signed URL does not allow {method}"))),
    };
    let uri = parts.extensions.get::<OriginalUri>().map_or(&parts.uri, |original| &original.0);
    let name =
        BlobName::of_path(uri.path()).ok_or_else(|| Refused::denied("the URL's path is not one of this server"))?;
    let now = app.now().await?;
    app.blobs
        .verify(access, &name, uri.query().unwrap_or_default(), now.server_ms)
        .map_err(|error| Refused::denied(error.to_string()))?;
    Ok(name)
}

fn count(operation: &'static str, status: StatusCode) {
    let outcome = match status.as_u16() {
        ..=399 => "done",
        400..=499 => "refused",
        500.. => "failed",
    };
    metrics::counter!("tenure_artifact_requests_total", "operation" => operation, "outcome" => outcome).increment(1);
}

/// The tag of bytes, which is their digest.
fn tag_of(blob: &StoredBlob) -> String {
    blob.sha256.iter().map(|byte| format!("{byte:02x}")).collect()
}
