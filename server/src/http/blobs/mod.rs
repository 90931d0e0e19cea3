//! Stored bytes: uploads by signed URLs, downloads by signed and plain ones.
//!
//! A signed URL is a capability without credentials. Its signature is verified before any lookup,
//! so a forged URL reveals nothing. A plain URL serves public content.

pub mod downloads;
pub(super) mod error;
pub(super) mod get;
mod plain;
pub(super) mod put;
mod select;
pub mod state;
mod url;

use axum::extract::{Request, State};
use axum::response::Response;
use http::header::{
    ACCESS_CONTROL_ALLOW_ORIGIN, ACCESS_CONTROL_EXPOSE_HEADERS, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE,
    ORIGIN,
};
use http::request::Parts;
use http::{HeaderValue, Method, StatusCode};
use tenure_api::blob_url::Access;

use self::error::Refused;
use self::state::StoredBytes;
use self::url::{Way, way};
use super::body::pass_over;
use tenure_engine::blobs::BlobName;

/// Below the root URL.
pub const PATH: &str = "/artifacts";
/// Uploads come from untrusted tasks: no scripts, no origin.
const POLICY: HeaderValue = HeaderValue::from_static("default-src 'none'; style-src 'unsafe-inline'; sandbox");
/// Headers visible to scripts of other sites.
const EXPOSED: HeaderValue =
    HeaderValue::from_static("Accept-Ranges, Content-Encoding, Content-Length, Content-Range, ETag, Last-Modified");

pub async fn serve(State(app): State<StoredBytes>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let way = way(&parts);
    // A cache may serve one site's response to another.
    let from_browser = parts.headers.contains_key(ORIGIN) || way == Way::Plain;
    let operation = if parts.method == Method::PUT { "put" } else { "get" };
    let answered = match open(&app, &parts, way).await {
        Ok(name) if operation == "put" => put::put(&app, name, &parts, body).await,
        Ok(name) => get::get(&app, &name, &parts, way).await,
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

async fn open(app: &StoredBytes, parts: &Parts, way: Way) -> Result<BlobName, Refused> {
    let content_type = parts.headers.get(CONTENT_TYPE).map_or(Ok(""), HeaderValue::to_str);
    let access = match (&parts.method, content_type) {
        (&Method::PUT, Ok(content_type)) => Access::Put { content_type },
        (&Method::GET | &Method::HEAD, _) => Access::Get,
        (&Method::PUT, Err(_)) => return Err(Refused::denied("the Content-Type is not text")),
        (method, _) => return Err(Refused::denied(format!("a signed URL does not allow {method}"))),
    };
    let uri = &parts.uri;
    let name =
        BlobName::of_path(uri.path()).ok_or_else(|| Refused::denied("the URL's path is not one of this server"))?;
    if way == Way::Plain {
        return plain::open(app, &name).await;
    }
    let now = app.intake.now().await?;
    app.engine
        .blobs
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
