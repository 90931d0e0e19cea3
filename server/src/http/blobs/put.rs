//! Uploads.

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, ETAG};
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue};

use super::error::{Code, Refused};
use super::select::tag_of;
use super::state::StoredBytes;
use super::url::signature;
use crate::http::access::Access;
use crate::http::body::{discard, pass_over};
use crate::http::declaration::{Declaration, Method};
use crate::http::docs::operation::Operation;
use tenure_engine::blobs::{BlobError, BlobName, NewBytes};

/// In bytes.
const ENCODING_MAX: usize = 256;

/// `PUT /artifacts/:artifact`
pub fn upload_artifact() -> Declaration {
    Declaration::new(Method::Put, "uploadArtifact", Access::ArtifactUrl).described(
        "queue",
        "Upload the bytes of an artifact",
        |operation, _| signature(describe(operation)),
    )
}

fn describe(operation: Operation) -> Operation {
    operation
        .about(
            "By a URL from createArtifact. The Content-Type must be the one given there. A Content-Encoding is \
             stored unchanged. The bytes replace earlier ones only after all of them have arrived. The URL can be \
             used again until it expires or its run ends: after the report of the run, uploads get 403, even if they \
             began earlier. After an exception the URL is valid for 25 minutes, like createArtifact. The URL of an \
             object is valid until its upload is finished.",
        )
        .takes_bytes()
        .answers_empty(200, "Stored", &[("ETag", "The SHA-256 of the bytes, and their encoding if any, in quotes")])
        .refuses_artifact(Code::PartialUpload, "the request has a Content-Range; send the complete body without it")
        .refuses_artifact(
            Code::IncompleteBody,
            "the body is incomplete, too slow, or stalled for a minute; send it again",
        )
        .refuses_artifact(Code::TooLarge, "the body is over `--artifact-size-max`")
        .refuses_artifact(Code::Deleted, "the artifact was deleted during the upload")
}

pub(super) async fn put(app: &StoredBytes, name: BlobName, parts: &Parts, body: Body) -> Result<Response, Refused> {
    let checked = match described(app, name, parts) {
        Ok(new) => app.engine.blobs.check_open(&app.engine.pool, &new.name).await.map(|()| new).map_err(Refused::from),
        Err(refused) => Err(refused),
    };
    let new = match checked {
        Ok(new) => new,
        Err(refused) => {
            pass_over(&parts.headers, body).await;
            return Ok(refused.closing());
        }
    };
    let (blobs, pool) = (app.engine.blobs.clone(), app.engine.pool.clone());
    // The task outlives a disconnect and undoes an incomplete upload.
    let storing = app.tasks.spawn(async move {
        let mut body = body.into_data_stream();
        let stored = blobs.upload(&pool, &new, &mut body).await;
        if !matches!(stored, Ok(_) | Err(BlobError::Cut | BlobError::Stalled(_) | BlobError::Slow(_))) {
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

fn described(app: &StoredBytes, name: BlobName, parts: &Parts) -> Result<NewBytes, Refused> {
    let announced = text(&parts.headers, CONTENT_LENGTH).and_then(|length| length.parse::<u64>().ok());
    if announced.is_some_and(|length| length > app.engine.blobs.size_max()) {
        return Err(BlobError::TooLarge(app.engine.blobs.size_max()).into());
    }
    // Storing a part as the whole would lose the rest.
    if parts.headers.contains_key(CONTENT_RANGE) {
        return Err(Refused::new(Code::PartialUpload, "the body must be complete: send it without Content-Range"));
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

fn text(headers: &HeaderMap, name: HeaderName) -> Option<&str> {
    headers.get(name)?.to_str().ok()
}
