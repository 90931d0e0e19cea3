//! Stored bytes: uploads by signed URLs, and downloads by signed and plain ones as HTTP knows them.
//!
//! Callers show no credentials: a signed URL is a capability. Its signature is checked in memory, before anything else
//! is read, so that a URL that was tampered with reveals nothing else. A plain URL gives what anonymous callers may read.

mod error;
mod get;
mod plain;
mod put;
mod select;

use axum::extract::{Request, State};
use axum::response::Response;
use http::header::{
    ACCESS_CONTROL_ALLOW_ORIGIN, ACCESS_CONTROL_EXPOSE_HEADERS, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE,
    ORIGIN,
};
use http::request::Parts;
use http::{HeaderValue, Method, StatusCode};
use serde_json::{Value, json};
use tenure_api::blob_url::Access;

use self::error::Refused;
pub use self::error::{BlobErrorBody, Code};
pub use self::get::{Downloads, download_artifact};
pub use self::put::upload_artifact;
use super::app::App;
use super::body::pass_over;
use super::budget::Share;
use super::docs::operation::Operation;
use tenure_engine::blobs::{BlobName, StoredBlob};
use tenure_engine::ops::objects::hex;

/// Where stored bytes are below the root URL.
pub const PATH: &str = "/artifacts";
/// What is uploaded was made by tasks, which are not trusted: no script of it runs, and it belongs to no origin.
const POLICY: HeaderValue = HeaderValue::from_static("default-src 'none'; style-src 'unsafe-inline'; sandbox");
/// What scripts of other sites may read of an answer.
const EXPOSED: HeaderValue =
    HeaderValue::from_static("Accept-Ranges, Content-Encoding, Content-Length, Content-Range, ETag, Last-Modified");

/// By which kind of URL stored bytes are requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// One that is signed: for the client that it was issued to.
    Signed,
    /// One without a signature, the same for all callers.
    Plain,
}

impl Way {
    /// Whose part of the read slots a request uses. A signed URL was issued to a caller that may read the bytes.
    fn share(self) -> Share {
        match self {
            Self::Signed => Share::Authenticated,
            Self::Plain => Share::Anonymous,
        }
    }

    /// For whom the answer is, and that a stored one is good only as long as its tag is: whether it may be read is
    /// checked with each request.
    fn caching(self) -> HeaderValue {
        HeaderValue::from_static(match self {
            Self::Signed => "private, no-cache",
            Self::Plain => "public, no-cache",
        })
    }
}

/// The parameters that were signed.
fn signature(operation: Operation) -> Operation {
    let text = json!({"type": "string"});
    operation.query("Credential", "What the URL is for: `put` or `get`", &text, &Value::Null).query(
        "expires",
        "Until when it is good, in milliseconds since 1970",
        &text,
        &Value::Null,
    )
}

/// `/artifacts/{name}`, whatever the method.
pub async fn serve(State(app): State<App>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let way = way(&parts);
    // A cache gives the answer for one site to another one.
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

/// Only reads go without a signature.
fn way(parts: &Parts) -> Way {
    let unsigned = parts.uri.query().is_none_or(str::is_empty);
    if unsigned && matches!(parts.method, Method::GET | Method::HEAD) { Way::Plain } else { Way::Signed }
}

/// The name that a request may use as it does.
async fn open(app: &App, parts: &Parts, way: Way) -> Result<BlobName, Refused> {
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
    let now = app.now().await?;
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

/// The tag of bytes, which is their digest, and their encoding if they have one: the same bytes mean something else
/// then, and caches must see the difference.
fn tag_of(blob: &StoredBlob) -> String {
    let mut tag = hex(&blob.sha256);
    if let Some(encoding) = &blob.content_encoding {
        tag.push('-');
        tag.extend(
            encoding.chars().map(|char| if char.is_ascii_alphanumeric() { char.to_ascii_lowercase() } else { '.' }),
        );
    }
    tag
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_bytes_and_other_encodings_have_other_tags_that_a_list_can_hold() {
        let tag = |byte: u8, encoding: Option<&str>| {
            let content_encoding = encoding.map(str::to_owned);
            tag_of(&StoredBlob { size: 1, sha256: [byte; 32], content_type: String::new(), content_encoding })
        };
        assert_eq!(tag(1, None), "01".repeat(32));
        let all = [tag(1, None), tag(2, None), tag(1, Some("gzip")), tag(1, Some("br")), tag(1, Some("gzip, \"br\""))];
        for (n, one) in all.iter().enumerate() {
            assert!(!all[..n].contains(one), "{one}");
            assert!(one.chars().all(|char| char.is_ascii_alphanumeric() || matches!(char, '-' | '.')), "{one}");
        }
    }
}
