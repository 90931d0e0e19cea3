//! `GET /metrics` of a worker, for Prometheus, and `GET /livez`, which tells that the process
//! responds. Both are open to everyone who reaches the port: they name the worker and its queue.

use std::convert::Infallible;
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use hyper::body::Incoming;
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::Settings;
use super::verdict::Outcome;
use tenure_client::CallCounts;

const CONNECTION_MAX: Duration = Duration::from_secs(10);
/// Others wait.
const CONNECTIONS_MAX: usize = 8;
/// After a failed accept, for example without free descriptors.
const ACCEPT_AGAIN_AFTER: Duration = Duration::from_millis(500);
const TEXT: &str = "text/plain; version=0.0.4";

/// Serves the worker's metrics while it runs.
#[derive(Debug)]
pub struct Metrics {
    listener: TcpListener,
    address: SocketAddr,
}

impl Metrics {
    /// Listens on this address; port 0 selects a free port.
    ///
    /// # Errors
    /// The address is in use, not of this machine, or not permitted.
    pub async fn listen(address: SocketAddr) -> std::io::Result<Self> {
        let listener = TcpListener::bind(address).await?;
        Ok(Self { address: listener.local_addr()?, listener })
    }

    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves the current result of `render` until dropped, with its connections.
    pub(super) async fn serve(self, render: impl Fn() -> String + Send + Sync + 'static) {
        let render: Arc<Render> = Arc::new(render);
        let mut connections = JoinSet::new();
        loop {
            while connections.try_join_next().is_some() {}
            if connections.len() >= CONNECTIONS_MAX {
                connections.join_next().await;
            }
            match self.listener.accept().await {
                Ok((socket, _)) => {
                    connections.spawn(timeout(CONNECTION_MAX, answer(socket, Arc::clone(&render))));
                }
                Err(error) => {
                    tracing::warn!(%error, "no connection can be accepted for metrics; trying again");
                    tokio::time::sleep(ACCEPT_AGAIN_AFTER).await;
                }
            }
        }
    }
}

type Render = dyn Fn() -> String + Send + Sync;

async fn answer(socket: TcpStream, render: Arc<Render>) {
    let service = service_fn(move |request: Request<Incoming>| {
        let (status, body) = reply(request.method(), request.uri().path(), &*render);
        let mut response = Response::new(body);
        *response.status_mut() = status;
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(TEXT));
        if status == StatusCode::METHOD_NOT_ALLOWED {
            response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET"));
        }
        std::future::ready(Ok::<_, Infallible>(response))
    });
    let connection = http1::Builder::new().keep_alive(false).serve_connection(TokioIo::new(socket), service);
    if let Err(error) = connection.await {
        tracing::debug!(%error, "a connection for metrics broke off");
    }
}

fn reply(method: &Method, path: &str, render: &Render) -> (StatusCode, String) {
    if !matches!(path, "/metrics" | "/livez") {
        return (StatusCode::NOT_FOUND, "the paths are /metrics and /livez\n".to_owned());
    }
    if method != Method::GET {
        return (StatusCode::METHOD_NOT_ALLOWED, "only GET is allowed\n".to_owned());
    }
    (StatusCode::OK, if path == "/livez" { "ok\n".to_owned() } else { render() })
}

/// Ended tasks by outcome. Clones share the counts.
#[derive(Debug, Clone, Default)]
pub(super) struct Outcomes(Arc<[AtomicU64; OUTCOMES.len()]>);

/// Values of the label `outcome`.
const OUTCOMES: [&str; 7] = ["completed", "failed", "retried", "exception", "no-space", "stopped", "lost"];

impl Outcomes {
    /// Counts an ended task; without an outcome, its run was lost.
    pub(super) fn count(&self, outcome: Option<Outcome>) {
        let place = match outcome {
            Some(Outcome::Completed) => 0,
            Some(Outcome::Failed) => 1,
            Some(Outcome::Retry) => 2,
            Some(Outcome::Exception(_)) => 3,
            Some(Outcome::NoSpace) => 4,
            Some(Outcome::Stopped) => 5,
            None => 6,
        };
        self.0[place].fetch_add(1, Ordering::Relaxed);
    }
}

/// Renders the metrics in Prometheus' text format. Names need no escaping.
pub(super) fn render(settings: &Settings, outcomes: &Outcomes, running: usize, calls: CallCounts) -> String {
    let Settings { queue, name, capacity, .. } = settings;
    let (group, id, version) = (&name.group, &name.id, env!("CARGO_PKG_VERSION"));
    let who = format!("{{task_queue=\"{queue}\",worker_group=\"{group}\",worker_id=\"{id}\",version=\"{version}\"}}");
    let alone = |value: String| vec![(String::new(), value)];
    let ended = OUTCOMES.iter().zip(outcomes.0.iter());
    let ended =
        ended.map(|(outcome, count)| (format!("{{outcome=\"{outcome}\"}}"), count.load(Ordering::Relaxed).to_string()));
    let families = [
        ("capacity", "gauge", "Maximum of concurrent tasks", alone(capacity.to_string())),
        (
            "failed_calls_total",
            "counter",
            "Calls of the server that failed, retries included",
            alone(calls.failed.to_string()),
        ),
        ("info", "gauge", "1, with the name and version of this worker", vec![(who, "1".to_owned())]),
        ("running_tasks", "gauge", "Tasks of this worker that have not ended", alone(running.to_string())),
        (
            "silence_seconds",
            "gauge",
            "Time since the last answer of the server",
            alone(calls.silent_for.as_secs_f64().to_string()),
        ),
        ("tasks_total", "counter", "Tasks that ended, by outcome", ended.collect()),
    ];
    let mut text = String::new();
    for (name, kind, about, samples) in families {
        let _ = writeln!(text, "# HELP tenure_worker_{name} {about}\n# TYPE tenure_worker_{name} {kind}");
        for (labels, value) in samples {
            let _ = writeln!(text, "tenure_worker_{name}{labels} {value}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_known_paths_are_answered() {
        for (method, path, status, body) in [
            ("GET", "/metrics", 200, "metrics"),
            ("GET", "/livez", 200, "ok\n"),
            ("POST", "/metrics", 405, "only GET is allowed\n"),
            ("GET", "/", 404, "the paths are /metrics and /livez\n"),
            ("GET", "/debug", 404, "the paths are /metrics and /livez\n"),
        ] {
            let answered = reply(&method.parse().unwrap(), path, &|| "metrics".to_owned());
            assert_eq!(answered, (StatusCode::from_u16(status).unwrap(), body.to_owned()), "{method} {path}");
        }
    }
}
