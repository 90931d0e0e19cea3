//! Headers of every response.

use axum::body::Body;
use http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN, ACCESS_CONTROL_MAX_AGE,
    ACCESS_CONTROL_REQUEST_METHOD, CACHE_CONTROL, CONTENT_SECURITY_POLICY, X_CONTENT_TYPE_OPTIONS,
};
use http::{HeaderName, HeaderValue, Request, Response};
use uuid::Uuid;

pub const METHODS: &str = "OPTIONS,GET,HEAD,POST,PUT,DELETE,TRACE,CONNECT";
const HEADERS: &str = "X-Requested-With,Content-Type,Authorization,Accept,Origin,Cache-Control";
const TRACE_IN: HeaderName = HeaderName::from_static("x-taskcluster-trace-id");
const TRACE_OUT: HeaderName = HeaderName::from_static("x-for-trace-id");
const REQUEST_OUT: HeaderName = HeaderName::from_static("x-for-request-id");
/// Longest trace id accepted from a caller.
const TRACE_MAX: usize = 100;

/// Ids of a request, for logs and the response's headers.
pub struct Trace {
    /// From the caller, or generated here.
    trace_id: HeaderValue,
    request_id: HeaderValue,
}

impl Trace {
    #[must_use]
    pub fn id(&self) -> &str {
        self.trace_id.to_str().unwrap_or("-")
    }

    pub(super) fn header(&self) -> HeaderValue {
        self.trace_id.clone()
    }
}

#[must_use]
pub fn trace_of<B>(request: &Request<B>) -> Trace {
    let mut text = Uuid::encode_buffer();
    let text = Uuid::new_v4().hyphenated().encode_lower(&mut text);
    let request_id = HeaderValue::from_str(text).unwrap_or(HeaderValue::from_static("-"));
    let given = request.headers().get(TRACE_IN).filter(|id| !id.is_empty() && id.len() <= TRACE_MAX);
    let trace_id = match given.filter(|id| id.to_str().is_ok()) {
        Some(id) => id.clone(),
        None => request_id.clone(),
    };
    Trace { trace_id, request_id }
}

/// Default policy: a browser that renders the response loads and runs nothing.
pub const POLICY: &str = "default-src 'none'";

#[must_use]
pub fn complete(mut response: Response<Body>, trace: Trace, for_browser: bool) -> Response<Body> {
    let headers = response.headers_mut();
    headers.entry(CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store no-cache must-revalidate"));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(TRACE_OUT, trace.trace_id);
    headers.insert(REQUEST_OUT, trace.request_id);
    // Pages have their own policy and serve no other site.
    let has_policy = headers.contains_key(CONTENT_SECURITY_POLICY);
    if !has_policy {
        headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
    }
    if for_browser && !has_policy {
        headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, HeaderValue::from_static("*"));
        headers.insert(ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static("900"));
        headers.insert(ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static(METHODS));
        headers.insert(ACCESS_CONTROL_REQUEST_METHOD, HeaderValue::from_static("*"));
        headers.insert(ACCESS_CONTROL_ALLOW_HEADERS, HeaderValue::from_static(HEADERS));
    }
    response
}
