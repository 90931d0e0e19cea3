//! Uploads.

use std::time::Duration;

use axum::body::{Body, BodyDataStream};
use axum::response::{IntoResponse, Response};
use futures_util::StreamExt as _;
use http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, ETAG, EXPECT};
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue};

use super::error::{Code, Refused};
use super::tag_of;
use crate::blobs::{BlobError, BlobName, NewBytes};
use crate::http::app::App;

/// The longest Content-Encoding that is kept, in bytes.
const ENCODING_MAX: usize = 256;
/// How much of a body that nobody wants is read before its sender is told, and for how long: one whose connection is closed
/// while it sends sees a broken connection instead of the answer.
const UNWANTED_MAX: usize = 64 << 20;
const UNWANTED_PATIENCE: Duration = Duration::from_secs(5);

/// Stores the body.
pub(super) async fn put(app: &App, name: BlobName, parts: &Parts, body: Body) -> Result<Response, Refused> {
    let checked = match described(app, name, parts) {
        Ok(new) => app.blobs.check_open(&app.pool, &new.name).await.map(|()| new).map_err(Refused::from),
        Err(refused) => Err(refused),
    };
    let new = match checked {
        Ok(new) => new,
        Err(refused) => {
            pass_over(parts, body).await;
            return Ok(refused.closing());
        }
    };
    let (blobs, pool) = (app.blobs.clone(), app.pool.clone());
    // In a task of its own, which goes on when the caller has hung up, and takes back what it began.
    let storing = app.tasks.spawn(async move {
        let mut body = body.into_data_stream();
        let stored = blobs.upload(&pool, &new, &mut body).await;
        if !matches!(stored, Ok(_) | Err(BlobError::Cut | BlobError::Stalled(_))) {
            discard(body).await;
        }
        stored
    });
    match storing.await {
        Ok(Ok(stored)) => {
            let tag = HeaderValue::from_str(&format!("\"{}\"", tag_of(&stored)));
            Ok(([(ETAG, tag.unwrap_or(HeaderValue::from_static("-")))], Body::empty()).into_response())
        }
        Ok(Err(error)) => Ok(Refused::from(error).closing()),
        Err(_) => Ok(Refused::new(Code::Unavailable, "the server is stopping; send the request again").closing()),
    }
}

/// What the headers say of the body.
fn described(app: &App, name: BlobName, parts: &Parts) -> Result<NewBytes, Refused> {
    let announced = text(&parts.headers, CONTENT_LENGTH).and_then(|length| length.parse::<u64>().ok());
    if announced.is_some_and(|length| length > app.blobs.size_max()) {
        return Err(BlobError::TooLarge(app.blobs.size_max()).into());
    }
    let content_encoding = match parts.headers.get(CONTENT_ENCODING).map(HeaderValue::to_str) {
        Some(Ok(encoding)) if encoding.len() > ENCODING_MAX => {
            return Err(Refused::denied("the Content-Encoding is too long"));
        }
        Some(Err(_)) => return Err(Refused::denied("the Content-Encoding is not text")),
        Some(Ok(encoding)) => Some(encoding.trim().to_owned()).filter(|encoding| !encoding.is_empty()),
        None => None,
    };
    let content_type = text(&parts.headers, CONTENT_TYPE).unwrap_or_default().trim().to_owned();
    Ok(NewBytes { name, content_type, content_encoding })
}

/// Lets the sender of a body that is refused come to its end; one that waits for 100-continue has not begun.
pub(super) async fn pass_over(parts: &Parts, body: Body) {
    if !parts.headers.contains_key(EXPECT) {
        discard(body.into_data_stream()).await;
    }
}

async fn discard(mut body: BodyDataStream) {
    let reading = async {
        let mut read = 0;
        while let Some(Ok(piece)) = body.next().await
            && read <= UNWANTED_MAX
        {
            read += piece.len();
        }
    };
    // Whether or not it came to its end, the answer follows.
    let _elapsed = tokio::time::timeout(UNWANTED_PATIENCE, reading).await;
}

fn text(headers: &HeaderMap, name: HeaderName) -> Option<&str> {
    headers.get(name)?.to_str().ok()
}
