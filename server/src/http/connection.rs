//! Connections: accept up to a limit, serve requests, drain.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use futures_util::StreamExt as _;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use http::header::{ALLOW, CONNECTION};
use http::{HeaderValue, Request, Response};
use http_body::Body as _;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::{Service as _, ServiceExt as _};

use super::access_log::{self, Line};
use super::answers;
use super::budget::Budget;
use super::compression::compress;
use super::error;
use super::headers;
use super::heavy::Heavy;
use super::read_buffers::{ReadBuffer, ReadBuffers};
use super::request_metrics::{self, RequestMetrics};
pub use super::stream::Connection;
use super::stream::Tracked;
use tenure_engine::traces::EndedRequest;

/// Time limit for a request's head and for an idle connection. The contract requires more than the
/// load balancers' keep-alive.
const HEAD_TIMEOUT: Duration = Duration::from_secs(95);
/// TCP keep-alive: idle time before the first probe, probe interval, and probes until the
/// connection ends.
const KEEP_ALIVE_AFTER: Duration = Duration::from_secs(60);
const KEEP_ALIVE_EVERY: Duration = Duration::from_secs(15);
const KEEP_ALIVE_PROBES: u32 = 4;
/// Pause when the process is out of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Read-ahead and longest head of a request, in bytes.
const READ_AHEAD_MAX: usize = 128 << 10;
/// Connections beyond the limit that receive a 503; further ones are just closed.
pub const REFUSED_MAX: usize = 32;
const REFUSING_MAX: Duration = Duration::from_secs(1);
const NOTED_EVERY: Duration = Duration::from_secs(60);

pub struct Front {
    pub router: Router,
    /// The drain waits for these tasks.
    pub tasks: TaskTracker,
    /// Stops accepting; connections end after their current request.
    pub drain: CancellationToken,
    pub heavy: Heavy,
    pub answers: Arc<Budget>,
    /// Maximum time without progress of a write.
    pub write_timeout: Duration,
    pub connections_max: usize,
    pub metrics: RequestMetrics,
}

struct Places {
    served: Arc<Semaphore>,
    refused: Arc<Semaphore>,
    read_buffers: Arc<ReadBuffers>,
    all_taken: Noted,
}

/// Rate limit of a log line that callers can cause at will.
#[derive(Default)]
struct Noted(Mutex<Option<Instant>>);

impl Noted {
    fn is_due(&self, now: Instant) -> bool {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_due = last.is_none_or(|last| now.saturating_duration_since(last) >= NOTED_EVERY);
        if is_due {
            *last = Some(now);
        }
        is_due
    }
}

/// Serves connections until the drain. Then each ends after its current request.
pub async fn serve(listener: TcpListener, front: Front) {
    let places = Places {
        served: Arc::new(Semaphore::new(front.connections_max)),
        refused: Arc::new(Semaphore::new(REFUSED_MAX)),
        read_buffers: ReadBuffers::new(front.connections_max),
        all_taken: Noted::default(),
    };
    let (front, not_accepted) = (Arc::new(front), Noted::default());
    loop {
        let accepted = tokio::select! {
            () = front.drain.cancelled() => return,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, peer)) => admit(&front, &places, stream, peer),
            Err(error) => {
                if not_accepted.is_due(Instant::now()) {
                    tracing::warn!(error = %error, "a connection could not be accepted");
                }
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Detects peers that were switched off: they would keep their permits for connections and streams
/// for ever.
fn keep_alive(stream: &TcpStream) -> std::io::Result<()> {
    let questions = TcpKeepalive::new().with_time(KEEP_ALIVE_AFTER).with_interval(KEEP_ALIVE_EVERY);
    SockRef::from(stream).set_tcp_keepalive(&questions.with_retries(KEEP_ALIVE_PROBES))
}

/// Serves or refuses a connection in the background, so that accepting never waits.
fn admit(front: &Arc<Front>, places: &Places, stream: TcpStream, peer: SocketAddr) {
    // Responses are small and written whole, so Nagle's algorithm would only add latency.
    drop(stream.set_nodelay(true));
    drop(keep_alive(&stream));
    if let Ok(place) = Arc::clone(&places.served).try_acquire_owned() {
        let buffer = ReadBuffer::new(&places.read_buffers);
        front.tasks.spawn(serve_one(stream, peer, Arc::clone(front), buffer, place));
        return;
    }
    metrics::counter!("tenure_limits_reached_total", "limit" => "connections").increment(1);
    if places.all_taken.is_due(Instant::now()) {
        let connections = front.connections_max;
        tracing::warn!(connections, "all connections are in use; further ones are refused: raise --connections-max");
    }
    if let Ok(place) = Arc::clone(&places.refused).try_acquire_owned() {
        front.tasks.spawn(async move {
            let _elapsed = tokio::time::timeout(REFUSING_MAX, refuse(stream)).await;
            drop(place);
        });
    }
}

async fn refuse(mut stream: TcpStream) -> std::io::Result<()> {
    stream.write_all(error::too_many_connections().as_bytes()).await?;
    stream.shutdown().await?;
    // Closing with unread bytes resets the connection and may lose the response.
    let mut unread = [0; 4096];
    while stream.read(&mut unread).await? > 0 {}
    Ok(())
}

enum Stop {
    /// End after the current request.
    Drain,
    Cut,
}

/// Futures that stop a connection from outside. A connection is polled several times per request,
/// and polling a token takes a lock that all connections share. So these are polled only after a
/// wake-up.
fn stops(drain: CancellationToken, connection: Connection) -> FuturesUnordered<BoxFuture<'static, Stop>> {
    let drained: BoxFuture<'static, Stop> = Box::pin(async move {
        drain.cancelled().await;
        Stop::Drain
    });
    let cut: BoxFuture<'static, Stop> = Box::pin(async move {
        connection.is_cut().await;
        Stop::Cut
    });
    [drained, cut].into_iter().collect()
}

async fn serve_one(
    stream: TcpStream,
    peer: SocketAddr,
    front: Arc<Front>,
    buffer: ReadBuffer,
    place: OwnedSemaphorePermit,
) {
    let connection = Connection::new(peer);
    let io = TokioIo::new(Tracked::new(stream, connection.clone(), buffer, front.write_timeout));
    let timer = connection.timer().clone();
    let mut stops = stops(front.drain.clone(), connection.clone());
    let service = service_fn(move |request| {
        // A part of the body may be read before `answer` runs.
        connection.phase().begin_answer();
        answer(request, Arc::clone(&front), connection.clone())
    });
    let serving = http1::Builder::new()
        .timer(timer)
        .header_read_timeout(HEAD_TIMEOUT)
        .max_buf_size(READ_AHEAD_MAX)
        .serve_connection(io, service);
    tokio::pin!(serving);
    let result = loop {
        tokio::select! {
            biased;
            result = serving.as_mut() => break result,
            Some(stop) = stops.next() => match stop {
                Stop::Drain => serving.as_mut().graceful_shutdown(),
                Stop::Cut => break Ok(()),
            },
        }
    };
    if let Err(error) = result {
        tracing::debug!(peer.address = %peer, error = %error, "a connection ended early");
    }
    drop(place);
}

async fn answer(
    mut request: Request<Incoming>,
    front: Arc<Front>,
    connection: Connection,
) -> Result<Response<Body>, std::convert::Infallible> {
    let started = Instant::now();
    let reading = connection.clone();
    let (method, peer) = (request.method().clone(), connection.peer());
    let logged = access_log::is_on().then(|| request.uri().path().to_owned());
    let trace = headers::trace_of(&request);
    connection.begin_request(trace.header());
    let span = trace.span();
    let trace_id = logged.is_some().then(|| trace.id().to_owned());
    let from_browser = request.headers().contains_key(http::header::ORIGIN);
    let encodings = request.headers().get(http::header::ACCEPT_ENCODING).cloned();
    let mut noted = None;
    let response = if method == http::Method::OPTIONS {
        preflight(request.uri(), front.router.clone()).await
    } else {
        request.extensions_mut().insert(connection);
        // A router is always ready, and its error type is uninhabited.
        let answering = front.router.clone().call(request);
        let answered = match &span {
            Some(span) => span.scope(answering).await,
            None => answering.await,
        };
        let mut response = answered.unwrap_or_default();
        noted = response.extensions_mut().remove();
        // Counted while it waits for compression, too.
        let held = answers::hold(&front.answers, response);
        let share = answers::share_of(&held);
        let (response, made) = compress(&front.heavy, share, encodings.as_ref(), held).await;
        if made { answers::hold(&front.answers, response) } else { response }
    };
    let took = started.elapsed();
    let served = reading.take_served();
    front.metrics.count(&served, response.status(), took);
    if let Some(span) = span {
        span.end(EndedRequest {
            operation: served.operation.unwrap_or(request_metrics::OTHER),
            method: method.as_str(),
            status: response.status().as_u16(),
            took,
            waited: served.waited,
        });
    }
    if let Some((path, trace_id)) = logged.zip(trace_id) {
        let (status, bytes) = (response.status(), response.body().size_hint().exact());
        let (method, path, trace_id) = (&method, path.as_str(), trace_id.as_str());
        access_log::log(Line { method, path, noted, status, bytes, took, peer, trace_id });
    }
    reading.phase().end_answer();
    let mut response = headers::complete(response, trace, from_browser || method == http::Method::OPTIONS);
    if reading.phase().is_last() {
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    Ok(response)
}

/// Returns the response to OPTIONS: the path's methods, or all methods for an unknown path. Never
/// refuses.
async fn preflight(uri: &http::Uri, router: Router) -> Response<Body> {
    // The router receives only the path, so that no operation runs.
    let mut request = Request::new(Body::empty());
    *request.method_mut() = http::Method::OPTIONS;
    *request.uri_mut() = uri.path().parse().unwrap_or_default();
    let refused = router.oneshot(request).await.unwrap_or_default();
    let allowed = refused.headers().get(ALLOW).and_then(|methods| methods.to_str().ok());
    let methods = allowed.map_or_else(|| headers::METHODS.to_owned(), |methods| format!("OPTIONS,{methods}"));
    let mut response = Response::new(Body::empty());
    response
        .headers_mut()
        .insert(ALLOW, HeaderValue::from_str(&methods).unwrap_or(HeaderValue::from_static("OPTIONS")));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limited_line_is_logged_once_a_minute() {
        let (noted, begin) = (Noted::default(), Instant::now());
        let at = |seconds| noted.is_due(begin + Duration::from_secs(seconds));
        assert_eq!([0, 0, 1, 59, 60, 61, 119, 120].map(at), [true, false, false, false, true, false, false, true]);
    }
}
