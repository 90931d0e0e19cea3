//! Sends spans to the collector: in batches, once, and in the background. A collector that does not
//! answer costs the spans of that time, and nothing else.

use std::time::{Duration, Instant};

use metrics::Counter;
use prost::Message as _;
use reqwest::Client;
use reqwest::header::CONTENT_TYPE;
use reqwest::redirect::Policy;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::otlp::{ExportTraceServiceRequest, Resource, Span};
use super::{WAITING_MAX, counter};
use crate::http_client::{describe, provide_cryptography};

/// Between two rounds. With the number of batches in a round it limits the rate of spans.
const PAUSE: Duration = Duration::from_secs(1);
const BATCH_MAX: usize = 512;
/// Of one round: all spans that can wait.
const BATCHES_MAX: usize = WAITING_MAX / BATCH_MAX;
/// Of one batch.
const ANSWER_MAX: Duration = Duration::from_secs(10);
/// Between two warnings.
const WARNED_EVERY: Duration = Duration::from_secs(60);

/// The task that sends spans.
pub struct Exporter {
    tasks: TaskTracker,
    stop: CancellationToken,
}

impl Exporter {
    pub(super) fn start(url: String, server: &str, inbox: mpsc::Receiver<Span>) -> Self {
        let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
        let worker = Worker {
            inbox,
            url,
            client: None,
            resource: Resource::new(server),
            sent: counter("sent"),
            failed: counter("failed"),
            warned: None,
        };
        tasks.spawn(worker.work(stop.clone()));
        tasks.close();
        Self { tasks, stop }
    }

    /// Sends the waiting spans and ends. Later spans are dropped.
    pub async fn end(self) {
        self.stop.cancel();
        self.tasks.wait().await;
    }
}

struct Worker {
    inbox: mpsc::Receiver<Span>,
    url: String,
    /// Made for the first batch: certificates take time and memory.
    client: Option<Client>,
    resource: Resource,
    sent: Counter,
    failed: Counter,
    warned: Option<Instant>,
}

impl Worker {
    async fn work(mut self, stop: CancellationToken) {
        loop {
            let is_last = tokio::time::timeout(PAUSE, stop.cancelled()).await.is_ok();
            for _ in 0..BATCHES_MAX {
                let batch: Vec<Span> = std::iter::from_fn(|| self.inbox.try_recv().ok()).take(BATCH_MAX).collect();
                if batch.is_empty() {
                    break;
                }
                self.send(batch).await;
            }
            if is_last {
                return;
            }
        }
    }

    async fn send(&mut self, batch: Vec<Span>) {
        let spans = batch.len() as u64;
        let body = ExportTraceServiceRequest::new(self.resource.clone(), batch).encode_to_vec();
        match self.post(body).await {
            Ok(()) => self.sent.increment(spans),
            Err(error) => {
                self.failed.increment(spans);
                if self.warned.is_none_or(|last| last.elapsed() >= WARNED_EVERY) {
                    self.warned = Some(Instant::now());
                    tracing::warn!(error = %error, "spans could not be sent to the collector of --otlp-endpoint; they are lost");
                }
            }
        }
    }

    async fn post(&mut self, body: Vec<u8>) -> Result<(), String> {
        let client = match self.client.take() {
            Some(client) => client,
            None => new_client(self.url.starts_with("https:"))?,
        };
        let client = self.client.insert(client);
        let request = client.post(&self.url).header(CONTENT_TYPE, "application/x-protobuf").body(body);
        let status = request.send().await.map_err(describe)?.status();
        if status.is_success() { Ok(()) } else { Err(format!("the collector answered {}", status.as_u16())) }
    }
}

fn new_client(is_encrypted: bool) -> Result<Client, String> {
    provide_cryptography();
    let builder = Client::builder()
        .redirect(Policy::none())
        .no_proxy()
        .http1_only()
        .timeout(ANSWER_MAX)
        .user_agent(concat!("tenure/", env!("CARGO_PKG_VERSION")));
    // Without encryption it needs no certificates, which a bare container lacks.
    let builder = if is_encrypted { builder } else { builder.tls_certs_only([]) };
    builder.build().map_err(describe)
}
