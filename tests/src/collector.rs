//! A collector of OpenTelemetry: accepts spans by OTLP over HTTP and keeps them.

use std::sync::{Arc, Mutex};

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// A span and the server that sent it.
#[derive(Debug, Clone)]
pub struct Collected {
    pub server: String,
    pub span: Span,
}

impl Collected {
    /// The trace id in hexadecimal digits.
    pub fn trace(&self) -> String {
        hex(&self.span.trace_id)
    }

    /// Value of an attribute; empty without it.
    pub fn attribute(&self, key: &str) -> String {
        text_of(&self.span.attributes, key)
    }

    /// Ids of the spans that this one links to.
    pub fn links(&self) -> Vec<Vec<u8>> {
        self.span.links.iter().map(|link| link.span_id.clone()).collect()
    }
}

pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn text_of(attributes: &[KeyValue], key: &str) -> String {
    let attribute = attributes.iter().find(|attribute| attribute.key == key);
    match attribute.and_then(|attribute| attribute.value.clone()?.value) {
        Some(Value::StringValue(text)) => text,
        Some(Value::IntValue(number)) => number.to_string(),
        Some(other) => format!("{other:?}"),
        None => String::new(),
    }
}

type Spans = Arc<Mutex<Vec<Collected>>>;

pub struct Collector {
    port: u16,
    spans: Spans,
    acceptor: JoinHandle<()>,
}

impl Drop for Collector {
    fn drop(&mut self) {
        self.acceptor.abort();
    }
}

impl Collector {
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
        let port = listener.local_addr().expect("it listens").port();
        let spans = Spans::default();
        let kept = Arc::clone(&spans);
        let acceptor = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, Arc::clone(&kept)));
            }
        });
        Self { port, spans, acceptor }
    }

    /// For `--otlp-endpoint`.
    pub fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    pub fn spans(&self) -> Vec<Collected> {
        self.spans.lock().expect("no panic").clone()
    }
}

/// Handles one request.
async fn serve(mut stream: TcpStream, spans: Spans) -> Option<()> {
    let mut buffer = Vec::new();
    let end = loop {
        if let Some(end) = buffer.windows(4).position(|window| window == b"\r\n\r\n") {
            break end + 4;
        }
        if stream.read_buf(&mut buffer).await.ok()? == 0 {
            return None;
        }
    };
    let head = String::from_utf8(buffer.drain(..end).collect()).ok()?.to_ascii_lowercase();
    let length: usize = head.lines().find_map(|line| line.strip_prefix("content-length: "))?.parse().ok()?;
    while buffer.len() < length {
        if stream.read_buf(&mut buffer).await.ok()? == 0 {
            return None;
        }
    }
    let is_export = head.starts_with("post /v1/traces ") && head.contains("content-type: application/x-protobuf");
    let status = match ExportTraceServiceRequest::decode(&buffer[..length]) {
        Ok(request) if is_export => {
            keep(request, &spans);
            "200 OK"
        }
        Ok(_) | Err(_) => "400 Bad Request",
    };
    let answer = format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
    stream.write_all(answer.as_bytes()).await.ok()
}

fn keep(request: ExportTraceServiceRequest, spans: &Spans) {
    let mut kept = spans.lock().expect("no panic");
    for group in request.resource_spans {
        let attributes = group.resource.map(|resource| resource.attributes).unwrap_or_default();
        let server = text_of(&attributes, "service.instance.id");
        let own = group.scope_spans.into_iter().flat_map(|scope| scope.spans);
        kept.extend(own.map(|span| Collected { server: server.clone(), span }));
    }
}
