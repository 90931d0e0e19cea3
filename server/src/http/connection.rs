//! Connections: accepting them, serving requests on them, knowing what has been flushed to them, and draining them.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use http::header::ALLOW;
use http::{HeaderValue, Request, Response, StatusCode};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::ServiceExt;

use super::compression::compress;
use super::headers;
use crate::batch::delivery::Delivery;

/// How long a peer may take to send the head of a request, and how long an idle connection is kept. Longer than the
/// keep-alive of the load balancers in front, as the contract asks.
const HEAD_PATIENCE: Duration = Duration::from_secs(95);
/// How long accepting pauses when the process is out of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// A handle to a connection.
#[derive(Clone, Default)]
pub struct Connection {
    unflushed: Arc<Mutex<Vec<Delivery>>>,
    cut: CancellationToken,
}

impl Connection {
    /// These claims are delivered when what was written so far, and what follows at once, is flushed.
    pub fn deliver_with_next_flush(&self, delivery: Delivery) {
        self.unflushed.lock().unwrap_or_else(PoisonError::into_inner).push(delivery);
    }

    /// Ends the connection at once, whatever was not written yet.
    pub fn cut(&self) {
        self.cut.cancel();
    }

    fn take(&self) -> Vec<Delivery> {
        std::mem::take(&mut *self.unflushed.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A stream that tells its connection what was flushed. The server calls `poll_flush` only when everything that it had
/// buffered was written.
struct Tracked {
    stream: TcpStream,
    connection: Connection,
}

impl Drop for Tracked {
    fn drop(&mut self) {
        // What was never flushed goes back.
        drop(self.connection.take());
    }
}

impl AsyncRead for Tracked {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Tracked {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(cx);
        if let Poll::Ready(Ok(())) = flushed {
            self.connection.take().into_iter().for_each(Delivery::delivered);
        }
        flushed
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// Accepts connections and serves them until it is told to drain; then each ends after the request in hand.
pub async fn serve(listener: TcpListener, router: Router, tasks: TaskTracker, drain: CancellationToken) {
    loop {
        let accepted = tokio::select! {
            () = drain.cancelled() => return,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, peer)) => {
                // Answers are small and written whole: waiting for more to send would only delay them.
                drop(stream.set_nodelay(true));
                tasks.spawn(serve_one(stream, peer, router.clone(), drain.clone()));
            }
            Err(error) => {
                tracing::warn!(error = %error, "a connection could not be accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn serve_one(stream: TcpStream, peer: SocketAddr, router: Router, drain: CancellationToken) {
    let connection = Connection::default();
    let io = TokioIo::new(Tracked { stream, connection: connection.clone() });
    let cut = connection.cut.clone();
    let service = service_fn(move |request| answer(request, router.clone(), connection.clone(), peer));
    let serving =
        http1::Builder::new().timer(TokioTimer::new()).header_read_timeout(HEAD_PATIENCE).serve_connection(io, service);
    tokio::pin!(serving);
    let gracefully = async {
        tokio::select! {
            result = serving.as_mut() => result,
            () = drain.cancelled() => {
                serving.as_mut().graceful_shutdown();
                serving.await
            }
        }
    };
    let result = tokio::select! {
        result = gracefully => result,
        () = cut.cancelled() => Ok(()),
    };
    if let Err(error) = result {
        tracing::debug!(peer.address = %peer, error = %error, "a connection ended early");
    }
}

async fn answer(
    mut request: Request<Incoming>,
    router: Router,
    connection: Connection,
    peer: SocketAddr,
) -> Result<Response<Body>, std::convert::Infallible> {
    let started = Instant::now();
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let trace = headers::trace_of(&request);
    let from_browser = request.headers().contains_key(http::header::ORIGIN);
    let encodings = request.headers().get(http::header::ACCEPT_ENCODING).cloned();
    let response = if method == http::Method::OPTIONS {
        preflight(request.uri(), router).await
    } else {
        request.extensions_mut().insert(connection);
        // A router's error type is uninhabited: it always answers.
        compress(encodings.as_ref(), router.oneshot(request).await.unwrap_or_default()).await
    };
    let response = headers::complete(response, &trace, from_browser || method == http::Method::OPTIONS);
    log_access(&method, &path, response.status(), started.elapsed(), peer, &trace);
    Ok(response)
}

/// The answer to OPTIONS, which is never refused: which methods the path has. A path that leads nowhere has any.
async fn preflight(uri: &http::Uri, router: Router) -> Response<Body> {
    // The router is asked, with nothing of the request but its path, so that no operation looks at it.
    let mut asked = Request::new(Body::empty());
    *asked.method_mut() = http::Method::OPTIONS;
    *asked.uri_mut() = uri.path().parse().unwrap_or_default();
    let refused = router.oneshot(asked).await.unwrap_or_default();
    let known = refused.headers().get(ALLOW).and_then(|methods| methods.to_str().ok());
    let methods = known.map_or_else(|| headers::METHODS.to_owned(), |methods| format!("OPTIONS,{methods}"));
    let mut response = Response::new(Body::empty());
    response
        .headers_mut()
        .insert(ALLOW, HeaderValue::from_str(&methods).unwrap_or(HeaderValue::from_static("OPTIONS")));
    response
}

fn log_access(
    method: &http::Method,
    path: &str,
    status: StatusCode,
    took: Duration,
    peer: SocketAddr,
    trace: &headers::Trace,
) {
    metrics::histogram!("http_request_duration_seconds").record(took);
    metrics::counter!("http_requests_total", "status" => headers::status_class(status)).increment(1);
    tracing::info!(
        target: "access",
        {
            http.method = %method,
            http.path = path,
            http.status = status.as_u16(),
            took_us = took.as_micros(),
            peer.address = %peer,
            trace.id = %trace.trace_id,
        },
        "request"
    );
}
