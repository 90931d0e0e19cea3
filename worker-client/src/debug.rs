//! A status page for callers on the worker's machine: `GET /debug` returns JSON. Only requests to
//! the loopback address by that name are answered, so no web page can read it under another host
//! name.

use std::convert::Infallible;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::header::{ALLOW, CONTENT_TYPE, HOST, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{HeaderMap, Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde::Serialize;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::Error;
use crate::error::chain;

const PATH: &str = "/debug";
const CONNECTION_MAX: Duration = Duration::from_secs(10);
/// Others wait.
const CONNECTIONS_MAX: usize = 8;
/// After a failed accept, for example without free descriptors.
const ACCEPT_AGAIN_AFTER: Duration = Duration::from_millis(500);

/// Serves `GET /debug` while [`serve`](Debug::serve) runs.
///
/// ```no_run
/// # async fn example(handle: tenure_client::consumer::ConsumerHandle) -> Result<(), tenure_client::Error> {
/// let debug = tenure_client::debug::Debug::listen(8090).await?;
/// println!("http://{}/debug", debug.address());
/// debug.serve(move || handle.status()).await;
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Debug {
    listener: TcpListener,
    address: SocketAddr,
}

impl Debug {
    /// Listens on this port of 127.0.0.1; 0 selects a free port.
    ///
    /// # Errors
    /// The port is in use or not permitted.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tenure_client::Error> {
    /// let debug = tenure_client::debug::Debug::listen(0).await?;
    /// assert!(debug.address().ip().is_loopback());
    /// # Ok(()) }
    /// ```
    pub async fn listen(port: u16) -> Result<Self, Error> {
        let wanted = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port);
        let failed = || Error::of_file(format!("the debug port {port} cannot be listened on; choose another one"));
        let listener = TcpListener::bind(wanted).await.map_err(failed())?;
        let address = listener.local_addr().map_err(failed())?;
        Ok(Self { listener, address })
    }

    /// Returns the address with the selected port.
    ///
    /// ```
    /// # fn example(debug: &tenure_client::debug::Debug) {
    /// println!("http://{}/debug", debug.address());
    /// # }
    /// ```
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves the current result of `status` until dropped, with its connections.
    ///
    /// ```no_run
    /// # async fn example(debug: tenure_client::debug::Debug) {
    /// let started = std::time::Instant::now();
    /// debug.serve(move || serde_json::json!({"seconds": started.elapsed().as_secs()})).await;
    /// # }
    /// ```
    pub async fn serve<S: Serialize>(self, status: impl Fn() -> S + Send + Sync + 'static) {
        let status: Arc<Status> = Arc::new(move || serde_json::to_string(&status()));
        let mut connections = JoinSet::new();
        loop {
            while connections.try_join_next().is_some() {}
            if connections.len() >= CONNECTIONS_MAX {
                connections.join_next().await;
            }
            match self.listener.accept().await {
                Ok((socket, _)) => {
                    connections.spawn(timeout(CONNECTION_MAX, answer(socket, Arc::clone(&status))));
                }
                Err(error) => {
                    warning!(error = chain(&error), "no connection can be accepted on the debug port; trying again");
                    tokio::time::sleep(ACCEPT_AGAIN_AFTER).await;
                }
            }
        }
    }
}

type Status = dyn Fn() -> Result<String, serde_json::Error> + Send + Sync;

async fn answer(socket: TcpStream, status: Arc<Status>) {
    let service = service_fn(move |request: Request<Incoming>| {
        let (status, body) = reply(request.method(), request.uri().path(), request.headers(), &*status);
        let kind = if status == StatusCode::OK { "application/json" } else { "text/plain" };
        let mut response = Response::new(body);
        *response.status_mut() = status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
        if status == StatusCode::METHOD_NOT_ALLOWED {
            headers.insert(ALLOW, HeaderValue::from_static("GET"));
        }
        std::future::ready(Ok::<_, Infallible>(response))
    });
    let connection = http1::Builder::new().keep_alive(false).serve_connection(TokioIo::new(socket), service);
    if let Err(error) = connection.await {
        tracing::debug!(%error, "a connection to the debug port broke off");
    }
}

fn reply(method: &Method, path: &str, headers: &HeaderMap, status: &Status) -> (StatusCode, String) {
    let refused = |status, line: &str| (status, format!("{line}\n"));
    if !names_loopback(headers) {
        return refused(StatusCode::FORBIDDEN, "use the host 127.0.0.1 or localhost: other hosts are refused");
    }
    if path != PATH {
        return refused(StatusCode::NOT_FOUND, "the only path is /debug");
    }
    if method != Method::GET {
        return refused(StatusCode::METHOD_NOT_ALLOWED, "only GET is allowed");
    }
    status().map_or_else(
        |_| refused(StatusCode::INTERNAL_SERVER_ERROR, "the status is not JSON"),
        |body| (StatusCode::OK, body),
    )
}

/// True if `Host` is the loopback address. Other names may resolve to it too.
fn names_loopback(headers: &HeaderMap) -> bool {
    let host = headers.get(HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
    let name = host.rsplit_once(':').map_or(host, |(name, _port)| name);
    name.eq_ignore_ascii_case("localhost") || name == Ipv4Addr::LOCALHOST.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_loopback_host_is_answered() {
        let status = || Ok("{}".to_owned());
        for (method, path, host, expected) in [
            ("GET", "/debug", Some("127.0.0.1:8090"), 200),
            ("GET", "/debug", Some("localhost:8090"), 200),
            ("GET", "/debug", Some("LocalHost"), 200),
            ("GET", "/debug", Some("127.0.0.1"), 200),
            ("GET", "/debug", Some("evil.example:8090"), 403),
            ("GET", "/debug", Some("127.0.0.1.evil.example"), 403),
            ("GET", "/debug", Some(""), 403),
            ("GET", "/debug", None, 403),
            ("GET", "/", Some("localhost"), 404),
            ("GET", "/debug/", Some("localhost"), 404),
            ("POST", "/debug", Some("localhost"), 405),
            ("DELETE", "/debug", Some("evil.example"), 403),
        ] {
            let mut headers = HeaderMap::new();
            if let Some(host) = host {
                headers.insert(HOST, host.parse().unwrap());
            }
            let (answered, body) = reply(&method.parse().unwrap(), path, &headers, &status);
            assert_eq!(answered, expected, "{method} {path} {host:?}");
            assert!(answered == 200 && body == "{}" || answered != 200 && body.ends_with('\n'), "{body:?}");
        }
    }
}
