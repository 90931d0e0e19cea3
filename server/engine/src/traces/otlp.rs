//! The messages of OTLP that carry spans: `opentelemetry/proto/collector/trace/v1` and its imports,
//! version 1. Fields that Tenure does not send are left out.

use chrono::{DateTime, Utc};
use prost::Message;
use tenure_domain::traces::SpanContext;

/// `SPAN_KIND_INTERNAL` and `SPAN_KIND_SERVER`.
const INTERNAL: i32 = 1;
const SERVER: i32 = 2;
/// `STATUS_CODE_ERROR`.
const ERROR: i32 = 2;

#[derive(Clone, PartialEq, Message)]
pub(super) struct ExportTraceServiceRequest {
    #[prost(message, repeated, tag = "1")]
    resource_spans: Vec<ResourceSpans>,
}

impl ExportTraceServiceRequest {
    pub(super) fn new(resource: Resource, spans: Vec<Span>) -> Self {
        let scope = Some(Scope { name: "tenure".to_owned(), version: env!("CARGO_PKG_VERSION").to_owned() });
        let scope_spans = vec![ScopeSpans { scope, spans }];
        Self { resource_spans: vec![ResourceSpans { resource: Some(resource), scope_spans }] }
    }
}

#[derive(Clone, PartialEq, Message)]
struct ResourceSpans {
    #[prost(message, optional, tag = "1")]
    resource: Option<Resource>,
    #[prost(message, repeated, tag = "2")]
    scope_spans: Vec<ScopeSpans>,
}

/// The server.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Resource {
    #[prost(message, repeated, tag = "1")]
    attributes: Vec<KeyValue>,
}

impl Resource {
    pub(super) fn new(server: &str) -> Self {
        let attributes = [
            ("service.name", "tenure"),
            ("service.version", env!("CARGO_PKG_VERSION")),
            ("service.instance.id", server),
        ];
        Self { attributes: attributes.into_iter().map(|(key, value)| KeyValue::new(key, value.to_owned())).collect() }
    }
}

#[derive(Clone, PartialEq, Message)]
struct ScopeSpans {
    #[prost(message, optional, tag = "1")]
    scope: Option<Scope>,
    #[prost(message, repeated, tag = "2")]
    spans: Vec<Span>,
}

#[derive(Clone, PartialEq, Message)]
struct Scope {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    version: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Span {
    #[prost(bytes = "vec", tag = "1")]
    trace_id: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    span_id: Vec<u8>,
    /// Empty for the root of a trace.
    #[prost(bytes = "vec", tag = "4")]
    parent_span_id: Vec<u8>,
    #[prost(string, tag = "5")]
    name: String,
    #[prost(int32, tag = "6")]
    kind: i32,
    #[prost(fixed64, tag = "7")]
    start_time_unix_nano: u64,
    #[prost(fixed64, tag = "8")]
    end_time_unix_nano: u64,
    #[prost(message, repeated, tag = "9")]
    attributes: Vec<KeyValue>,
    #[prost(message, repeated, tag = "13")]
    links: Vec<Link>,
    #[prost(message, optional, tag = "15")]
    status: Option<Status>,
}

impl Span {
    /// A span without a parent, for work within a server.
    pub(super) fn new(context: SpanContext, name: impl Into<String>, start: DateTime<Utc>, end: DateTime<Utc>) -> Self {
        Self {
            trace_id: trace_id(context),
            span_id: span_id(context),
            parent_span_id: Vec::new(),
            name: name.into(),
            kind: INTERNAL,
            start_time_unix_nano: nanos(start),
            // The database's clock may have been set back.
            end_time_unix_nano: nanos(end.max(start)),
            attributes: Vec::new(),
            links: Vec::new(),
            status: None,
        }
    }

    pub(super) fn child_of(self, parent: SpanContext) -> Self {
        Self { parent_span_id: span_id(parent), ..self }
    }

    /// Marks the span of a request.
    pub(super) fn of_request(self) -> Self {
        Self { kind: SERVER, ..self }
    }

    pub(super) fn failed(self, message: String) -> Self {
        Self { status: Some(Status { message, code: ERROR }), ..self }
    }

    pub(super) fn with(mut self, key: &str, value: impl Into<AnyValue>) -> Self {
        self.attributes.push(KeyValue::new(key, value));
        self
    }

    pub(super) fn linked(mut self, to: impl IntoIterator<Item = SpanContext>) -> Self {
        self.links.extend(to.into_iter().map(|to| Link { trace_id: trace_id(to), span_id: span_id(to) }));
        self
    }
}

#[derive(Clone, PartialEq, Message)]
struct Link {
    #[prost(bytes = "vec", tag = "1")]
    trace_id: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    span_id: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
struct Status {
    #[prost(string, tag = "2")]
    message: String,
    #[prost(int32, tag = "3")]
    code: i32,
}

#[derive(Clone, PartialEq, Message)]
struct KeyValue {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(message, optional, tag = "2")]
    value: Option<AnyValue>,
}

impl KeyValue {
    fn new(key: &str, value: impl Into<AnyValue>) -> Self {
        Self { key: key.to_owned(), value: Some(value.into()) }
    }
}

/// At most one field is set: a `oneof` on the wire.
#[derive(Clone, PartialEq, Message)]
pub(super) struct AnyValue {
    #[prost(string, optional, tag = "1")]
    text: Option<String>,
    #[prost(int64, optional, tag = "3")]
    number: Option<i64>,
    #[prost(double, optional, tag = "4")]
    seconds: Option<f64>,
}

impl From<String> for AnyValue {
    fn from(text: String) -> Self {
        Self { text: Some(text), ..Self::default() }
    }
}

impl From<&str> for AnyValue {
    fn from(text: &str) -> Self {
        text.to_owned().into()
    }
}

impl From<i64> for AnyValue {
    fn from(number: i64) -> Self {
        Self { number: Some(number), ..Self::default() }
    }
}

impl From<f64> for AnyValue {
    fn from(seconds: f64) -> Self {
        Self { seconds: Some(seconds), ..Self::default() }
    }
}

fn trace_id(context: SpanContext) -> Vec<u8> {
    context.trace.as_bytes().to_vec()
}

fn span_id(context: SpanContext) -> Vec<u8> {
    context.span.to_be_bytes().to_vec()
}

/// Since 1970; 0 for times that do not fit.
fn nanos(at: DateTime<Utc>) -> u64 {
    at.timestamp_nanos_opt().and_then(|nanos| u64::try_from(nanos).ok()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest as Received;
    use opentelemetry_proto::tonic::trace::v1::Span as ReceivedSpan;
    use uuid::Uuid;

    use super::*;

    #[test]
    fn others_decode_what_is_sent() {
        let (own, parent) =
            (SpanContext { trace: Uuid::from_u128(7), span: 8 }, SpanContext { trace: Uuid::from_u128(7), span: 9 });
        let (start, end) = (DateTime::from_timestamp_nanos(1_000), DateTime::from_timestamp_nanos(3_000));
        let span =
            Span::new(own, "claim", start, end).child_of(parent).of_request().with("runs", 3_i64).linked([parent]);
        let sent = ExportTraceServiceRequest::new(Resource::new("s1"), vec![span.failed("gone".to_owned())]);
        let received = Received::decode(sent.encode_to_vec().as_slice()).unwrap();
        let resource = &received.resource_spans[0];
        assert_eq!(resource.resource.as_ref().unwrap().attributes.len(), 3);
        assert_eq!(resource.scope_spans[0].scope.as_ref().unwrap().name, "tenure");
        let ReceivedSpan { trace_id, span_id, parent_span_id, name, kind, links, attributes, status, .. } =
            &resource.scope_spans[0].spans[0];
        assert_eq!(
            (trace_id, span_id, parent_span_id),
            (&self::trace_id(own), &self::span_id(own), &self::span_id(parent))
        );
        assert_eq!((name.as_str(), *kind, links.len(), attributes[0].key.as_str()), ("claim", SERVER, 1, "runs"));
        assert_eq!(status.as_ref().unwrap().message, "gone");
    }
}
