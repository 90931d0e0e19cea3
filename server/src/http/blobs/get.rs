//! Downloads.

use std::io;
use std::ops::Range;
use std::time::Duration;

use async_compression::tokio::bufread::GzipDecoder;
use axum::body::Body;
use axum::response::Response;
use bytes::{Bytes, BytesMut};
use http::header::{
    ACCEPT_RANGES, CACHE_CONTROL, CONTENT_DISPOSITION, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE,
    ETAG, LAST_MODIFIED, VARY,
};
use http::request::Parts;
use http::{HeaderName, HeaderValue, Method, StatusCode};
use serde_json::json;
use tokio::io::{AsyncReadExt as _, BufReader};
use tokio::sync::mpsc;

use super::downloads::Download;
use super::error::{Code, Refused};
use super::select::{Selected, accepts_gzip, has_tag, select_range, tag_of};
use super::state::StoredBytes;
use super::url::{Way, signature};
use crate::http::access::Access;
use crate::http::connection::Connection;
use crate::http::declaration::{self, Declaration};
use crate::http::docs::operation::Operation;
use tenure_engine::blobs::{BlobName, Generation, Reader};

/// Time limit for one frame. Longer than a busy machine needs.
const READER_TIMEOUT: Duration = Duration::from_secs(120);
/// Sent if the stored type is no valid header.
const UNKNOWN_TYPE: HeaderValue = HeaderValue::from_static("application/octet-stream");

/// `GET /artifacts/:artifact`
pub fn download_artifact() -> Declaration {
    Declaration::new(declaration::Method::Get, "downloadArtifact", Access::PlainArtifactUrl).described(
        "queue",
        "Download the bytes of an artifact",
        |operation, _| signature(describe(operation)),
    )
}

fn describe(operation: Operation) -> Operation {
    let headers = [
        ("ETag", "Identifies the bytes"),
        ("Last-Modified", "Time of the upload"),
        ("Cache-Control", "Who may store the response; it must be revalidated by its ETag"),
    ];
    let [tag, modified, caching] = headers;
    operation
        .about(
            "By a URL from getArtifact. If anonymous callers may read the artifact, its URL is plain: it has no \
             parameters and never changes. Each read checks again that the role `anonymous` has \
             `queue:get-artifact:<name>`, so caches can keep the bytes and revalidate by ETag. Other URLs are \
             signed, and expire. HEAD does the same without the bytes. Bytes uploaded with `Content-Encoding: gzip` \
             are sent as gzip, or decoded if the caller's Accept-Encoding lacks gzip; decoded, they have no length \
             and no ranges. Pages (HTML, SVG, XML) are sent as attachments.",
        )
        .header("Range", "One range of bytes", &json!({"type": "string"}))
        .header("If-Range", "The ETag of the bytes that the range refers to", &json!({"type": "string"}))
        .header("If-None-Match", "ETags of bytes that the caller has cached", &json!({"type": "string"}))
        .header("Accept-Encoding", "Encodings that the caller accepts", &json!({"type": "string"}))
        .answers_bytes(200, "The bytes", &headers)
        .answers_bytes(206, "The requested range", &[tag, modified, caching, ("Content-Range", "Which part")])
        .answers_empty(304, "The caller's copy is current", &headers)
        .refuses_artifact(Code::NotFound, "no bytes are stored under this name: not uploaded yet, or deleted")
        .refuses_artifact(Code::Expired, "by a plain URL: the artifact has expired and is not removed yet")
        .refuses_artifact(Code::InvalidRange, "the range begins after the end")
}

enum Form {
    Stored,
    /// For a client that does not accept gzip.
    Decoded,
}

pub(super) async fn get(app: &StoredBytes, name: &BlobName, parts: &Parts, way: Way) -> Result<Response, Refused> {
    let generation = {
        let _slot = app.intake.read_slots.take(way.share()).await?;
        app.engine.blobs.current(&app.engine.pool, name).await?.ok_or_else(Refused::nothing_stored)?
    };
    let blob = &generation.blob;
    let size = u64::try_from(blob.size).unwrap_or_default();
    let gzip = blob.content_encoding.as_deref().is_some_and(is_gzip);
    let form = if gzip && !accepts_gzip(&parts.headers) { Form::Decoded } else { Form::Stored };
    let tag = match form {
        Form::Stored => format!("\"{}\"", tag_of(blob)),
        // Different bytes need a different tag.
        Form::Decoded => format!("\"{}-decoded\"", tag_of(blob)),
    };
    let since = generation.since.format("%a, %d %b %Y %H:%M:%S GMT").to_string();
    let mut answer = Answer(Response::new(Body::empty()));
    answer.set(ETAG, &tag).set(LAST_MODIFIED, &since);
    answer.0.headers_mut().insert(CACHE_CONTROL, way.caching());
    if gzip {
        answer.set(VARY, "Accept-Encoding");
    }
    if has_tag(&parts.headers, &tag) {
        *answer.0.status_mut() = StatusCode::NOT_MODIFIED;
        return Ok(answer.0);
    }
    answer.describe(&generation, &form);
    match form {
        Form::Decoded if parts.method == Method::HEAD => Ok(answer.0),
        Form::Decoded => decoded(app, &generation, size, parts, answer).await,
        Form::Stored => {
            let selected = select_range(&parts.method, &parts.headers, size, &tag);
            stored(app, &generation, size, selected, parts, answer).await
        }
    }
}

async fn stored(
    app: &StoredBytes,
    generation: &Generation,
    size: u64,
    selected: Selected,
    parts: &Parts,
    mut answer: Answer,
) -> Result<Response, Refused> {
    let range = match selected {
        Selected::All => 0..size,
        Selected::Part(range) => {
            *answer.0.status_mut() = StatusCode::PARTIAL_CONTENT;
            answer.set(CONTENT_RANGE, &format!("bytes {}-{}/{size}", range.start, range.end - 1));
            range
        }
        Selected::Beyond => return Err(Refused::range(size)),
    };
    answer.set(ACCEPT_RANGES, "bytes").set(CONTENT_LENGTH, &(range.end - range.start).to_string());
    if parts.method != Method::HEAD {
        *answer.0.body_mut() = read(app, generation, range, parts).await?;
    }
    Ok(answer.0)
}

async fn read(app: &StoredBytes, generation: &Generation, range: Range<u64>, parts: &Parts) -> Result<Body, Refused> {
    let reader = app.engine.blobs.read(generation, range).await?;
    Ok(stream(app, app.downloads.enter(), reader, Bytes::new(), parts))
}

/// Decodes the bytes; falls back to the stored ones if their declared encoding is wrong.
async fn decoded(
    app: &StoredBytes,
    generation: &Generation,
    size: u64,
    parts: &Parts,
    mut answer: Answer,
) -> Result<Response, Refused> {
    let stored = app.engine.blobs.read(generation, 0..size).await?;
    let download = app.downloads.enter();
    let mut decoder = GzipDecoder::new(BufReader::with_capacity(download.frame(), stored));
    decoder.multiple_members(true);
    let mut reader: Reader = Box::new(decoder);
    let mut first = BytesMut::with_capacity(download.frame());
    if reader.read_buf(&mut first).await.is_err() {
        answer.describe(generation, &Form::Stored);
        answer.set(CONTENT_LENGTH, &size.to_string());
        *answer.0.body_mut() = read(app, generation, 0..size, parts).await?;
        return Ok(answer.0);
    }
    *answer.0.body_mut() = stream(app, download, reader, first.freeze(), parts);
    Ok(answer.0)
}

/// Reads at most two frames ahead. A reader that stalls for too long loses its connection.
fn stream(app: &StoredBytes, download: Download, reader: Reader, first: Bytes, parts: &Parts) -> Body {
    let (frames, received) = mpsc::channel(1);
    let connection = parts.extensions.get::<Connection>().cloned();
    app.tasks.spawn(async move {
        if send(&download, reader, first, frames).await.is_err()
            && let Some(connection) = connection
        {
            connection.cut();
        }
    });
    Body::from_stream(futures_util::stream::unfold(received, |mut received| async move {
        received.recv().await.map(|frame| (frame, received))
    }))
}

struct Stuck;

async fn send(
    download: &Download,
    mut reader: Reader,
    first: Bytes,
    frames: mpsc::Sender<io::Result<Bytes>>,
) -> Result<(), Stuck> {
    let mut frame = Ok(first);
    loop {
        let end = frame.is_err();
        if let Ok(bytes) = &frame {
            metrics::counter!("tenure_artifact_bytes_total", "direction" => "out").increment(bytes.len() as u64);
        }
        match tokio::time::timeout(READER_TIMEOUT, frames.send(frame)).await {
            Err(_) => return Err(Stuck),
            // Disconnected, or ended with an error.
            Ok(Err(_)) => return Ok(()),
            Ok(Ok(())) if end => return Ok(()),
            Ok(Ok(())) => {}
        }
        let mut bytes = BytesMut::with_capacity(download.frame());
        frame = match reader.read_buf(&mut bytes).await {
            Ok(0) => return Ok(()),
            Ok(_) => Ok(bytes.freeze()),
            Err(error) => {
                tracing::warn!(
                    error = %error,
                    "a download broke off: the artifact store failed, or the stored bytes are not valid gzip"
                );
                Err(error)
            }
        };
    }
}

struct Answer(Response);

impl Answer {
    fn set(&mut self, name: HeaderName, value: &str) -> &mut Self {
        if let Ok(value) = HeaderValue::from_str(value) {
            self.0.headers_mut().insert(name, value);
        }
        self
    }

    fn describe(&mut self, generation: &Generation, form: &Form) {
        let blob = &generation.blob;
        let content_type = HeaderValue::from_str(&blob.content_type).ok().filter(|value| !value.is_empty());
        self.0.headers_mut().insert(CONTENT_TYPE, content_type.unwrap_or(UNKNOWN_TYPE));
        if let (Form::Stored, Some(encoding)) = (form, &blob.content_encoding) {
            self.set(CONTENT_ENCODING, encoding);
        }
        if runs_in_browsers(&blob.content_type) {
            self.set(CONTENT_DISPOSITION, "attachment");
        }
    }
}

fn is_gzip(encoding: &str) -> bool {
    encoding.eq_ignore_ascii_case("gzip") || encoding.eq_ignore_ascii_case("x-gzip")
}

/// True for types that could run scripts: browsers must save them. Of a list of types, browsers use
/// the last one.
fn runs_in_browsers(content_type: &str) -> bool {
    content_type.split(',').any(|one| {
        let essence = one.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
        essence.ends_with("+xml")
            || matches!(
                essence.as_str(),
                "text/html" | "text/xml" | "application/xml" | "text/xsl" | "multipart/x-mixed-replace"
            )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn active_content_is_saved_by_browsers() {
        for kept in ["text/html", "TEXT/HTML; charset=utf-8", "image/svg+xml", "application/xhtml+xml", "text/xml ;a=b"]
        {
            assert!(runs_in_browsers(kept), "{kept}");
        }
        for kept in ["text/plain, text/html", "text/plain;a=b,Image/svg+xml;c", "text/html,text/plain"] {
            assert!(runs_in_browsers(kept), "{kept}");
        }
        for shown in ["text/plain", "image/png", "application/json", "", "text/html5", "a;text/html"] {
            assert!(!runs_in_browsers(shown), "{shown}");
        }
    }
}
