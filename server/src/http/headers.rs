//! Headers of every response.

use std::sync::Arc;

use axum::body::Body;
use http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN, ACCESS_CONTROL_MAX_AGE,
    ACCESS_CONTROL_REQUEST_METHOD, CACHE_CONTROL, CONTENT_SECURITY_POLICY, X_CONTENT_TYPE_OPTIONS,
};
use http::{HeaderName, HeaderValue, Request, Response};
use tenure_domain::traces::SpanContext;
use tenure_engine::traces::{self, RequestSpan};
use uuid::Uuid;

pub const METHODS: &str = "OPTIONS,GET,HEAD,POST,PUT,DELETE,TRACE,CONNECT";
const HEADERS: &str = "X-Requested-With,Content-Type,Authorization,Accept,Origin,Cache-Control";
const TRACE_IN: HeaderName = HeaderName::from_static("x-taskcluster-trace-id");
const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
const TRACE_OUT: HeaderName = HeaderName::from_static("x-for-trace-id");
const REQUEST_OUT: HeaderName = HeaderName::from_static("x-for-request-id");
/// Longest trace id accepted from a caller.
const TRACE_MAX: usize = 100;

/// Ids of a request, for logs and the response's headers.
pub struct Trace {
    /// From the caller, or generated here.
    trace_id: HeaderValue,
    request_id: HeaderValue,
    span: Option<Arc<RequestSpan>>,
}

impl Trace {
    #[must_use]
    pub fn id(&self) -> &str {
        self.trace_id.to_str().unwrap_or("-")
    }

    pub(super) fn header(&self) -> HeaderValue {
        self.trace_id.clone()
    }

    /// None if the request leaves nothing in a trace.
    pub(super) fn span(&self) -> Option<Arc<RequestSpan>> {
        self.span.clone()
    }
}

#[must_use]
pub fn trace_of<B>(request: &Request<B>) -> Trace {
    let (id, mut text) = (Uuid::new_v4(), Uuid::encode_buffer());
    let text = id.hyphenated().encode_lower(&mut text);
    let request_id = HeaderValue::from_str(text).unwrap_or(HeaderValue::from_static("-"));
    let given = request.headers().get(TRACE_IN).filter(|id| !id.is_empty() && id.len() <= TRACE_MAX);
    let given = given.filter(|id| id.to_str().is_ok());
    if traces::is_on() {
        return recorded(request, id, given, request_id);
    }
    let trace_id = given.cloned().unwrap_or_else(|| request_id.clone());
    Trace { trace_id, request_id, span: None }
}

/// The trace of a request is the trace of the caller's span. Otherwise it is the caller's trace id if
/// that is a UUID, or a new one. The logs have the same id, unless the caller gave another text.
fn recorded<B>(request: &Request<B>, id: Uuid, given: Option<&HeaderValue>, request_id: HeaderValue) -> Trace {
    let caller = request.headers().get(TRACEPARENT);
    let caller = caller.and_then(|header| SpanContext::from_traceparent(header.to_str().ok()?));
    let given_uuid = given.and_then(|header| Uuid::try_parse(header.to_str().ok()?).ok()).filter(|id| !id.is_nil());
    let trace = caller.map(|caller| caller.trace).or(given_uuid).unwrap_or(id);
    let mut own = Uuid::encode_buffer();
    let own = HeaderValue::from_str(trace.simple().encode_lower(&mut own)).unwrap_or(HeaderValue::from_static("-"));
    Trace { trace_id: given.cloned().unwrap_or(own), request_id, span: RequestSpan::begin(trace, caller, id) }
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
