//! Access lines: one for each request, if `TENURE_LOG` has `access=info`.

use std::net::SocketAddr;
use std::time::Duration;

use axum::body::Body;
use http::{Method, Response, StatusCode};

/// Response extension: the operation, and who called it.
#[derive(Clone)]
pub struct Noted {
    operation: &'static str,
    client_id: Option<String>,
}

#[must_use]
pub fn is_on() -> bool {
    tracing::enabled!(target: "access", tracing::Level::INFO)
}

/// Call only if [`is_on`]: it allocates.
pub fn note(response: &mut Response<Body>, operation: &'static str, client_id: Option<&str>) {
    response.extensions_mut().insert(Noted { operation, client_id: client_id.map(str::to_owned) });
}

pub struct Line<'a> {
    pub method: &'a Method,
    /// Without the query, which may have a signature.
    pub path: &'a str,
    pub noted: Option<Noted>,
    pub status: StatusCode,
    /// Of the response's body; none for streams.
    pub bytes: Option<u64>,
    pub took: Duration,
    pub peer: SocketAddr,
    pub trace_id: &'a str,
}

pub fn log(line: Line<'_>) {
    let Line { method, path, noted, status, bytes, took, peer, trace_id } = line;
    // JSON would carry a u128 as text.
    let took_us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
    tracing::info!(
        target: "access",
        {
            http.method = %method,
            http.path = path,
            http.status = status.as_u16(),
            operation = noted.as_ref().map(|noted| noted.operation),
            client.id = noted.as_ref().and_then(|noted| noted.client_id.as_deref()),
            bytes,
            took_us,
            peer.address = %peer,
            trace.id = trace_id,
        },
        "request"
    );
}
