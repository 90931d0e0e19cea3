//! One HTTP/1.1 connection, kept alive, with one request at a time.
//!
//! It replaces an HTTP library for two reasons. The load generator shares its cores with the
//! measured server, so a request must be cheap. And fault tests must close the socket in the middle
//! of an exchange. No TLS, no redirects, no trailers.

use std::io;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

pub const JSON: &str = "application/json";
/// Maximum length of a reply, to protect the machine from a faulty server.
const REPLY_MAX: usize = 64 << 20;
const CLOSED_WITHIN: Duration = Duration::from_secs(60);
const READ_STEP: usize = 16 << 10;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    pub host: String,
    /// Port, 80 by default.
    pub port: u16,
    pub prefix: String,
    /// Value of the Host header.
    pub authority: String,
}

impl Target {
    /// Parses `http://host[:port][/prefix]`.
    pub fn parse(root_url: &str) -> Result<Self, WireError> {
        let malformed = || WireError::RootUrl(root_url.to_owned());
        let rest = root_url.strip_prefix("http://").ok_or_else(malformed)?;
        let (authority, prefix) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        // A colon inside brackets belongs to an IPv6 address.
        let (host, port) = match authority.rsplit_once(':') {
            Some((host, port)) if !port.ends_with(']') => (host, port.parse().map_err(|_| malformed())?),
            _ => (authority, 80),
        };
        if host.is_empty() {
            return Err(malformed());
        }
        let prefix = prefix.trim_end_matches('/').to_owned();
        Ok(Self { host: host.to_owned(), port, prefix, authority: authority.to_owned() })
    }
}

/// Why an exchange gave no reply. After each error but the first, the server may have acted on the
/// request.
#[derive(Debug, thiserror::Error)]
pub enum WireError {
    /// Nothing was sent.
    #[error("{0:?} is not a root URL of the form http://host[:port]")]
    RootUrl(String),
    #[error("the connection failed")]
    Io(#[from] io::Error),
    #[error("the connection was closed before the reply was complete")]
    Closed,
    #[error("the reply is not HTTP/1.1: {0}")]
    Malformed(&'static str),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reply {
    pub status: u16,
    /// Decoded from chunks if it came in chunks.
    pub body: Vec<u8>,
    /// Seconds of the Retry-After header.
    pub retry_after: Option<u64>,
}

#[derive(Debug)]
pub struct Connection {
    stream: TcpStream,
    inbox: Vec<u8>,
    reusable: bool,
}

impl Connection {
    pub async fn open(target: &Target) -> Result<Self, WireError> {
        let host = target.host.trim_start_matches('[').trim_end_matches(']');
        let stream = TcpStream::connect((host, target.port)).await?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, inbox: Vec::with_capacity(READ_STEP), reusable: true })
    }

    #[must_use]
    pub fn is_reusable(&self) -> bool {
        self.reusable
    }

    pub async fn send(&mut self, request: &[u8]) -> Result<(), WireError> {
        self.reusable = false;
        Ok(self.stream.write_all(request).await?)
    }

    /// Shuts down the sending side, and waits until the server has closed its side.
    pub async fn close(mut self) -> io::Result<()> {
        self.stream.shutdown().await?;
        tokio::time::timeout(CLOSED_WITHIN, async {
            while self.stream.read(&mut [0; 1024]).await? > 0 {}
            Ok(())
        })
        .await?
    }

    /// Waits for the reply to the request that was sent.
    pub async fn receive(&mut self) -> Result<Reply, WireError> {
        let head_length = loop {
            if let Some(end) = find(&self.inbox, b"\r\n\r\n") {
                break end + 4;
            }
            self.fill().await?;
        };
        let head = Head::parse(&self.inbox[..head_length])?;
        self.inbox.drain(..head_length);
        let body = match head.length {
            Length::Exactly(length) => self.take(length).await?,
            Length::Chunked => self.take_chunks().await?,
        };
        self.reusable = head.keep_alive;
        Ok(Reply { status: head.status, body, retry_after: head.retry_after })
    }

    async fn take(&mut self, length: usize) -> Result<Vec<u8>, WireError> {
        if length > REPLY_MAX {
            return Err(WireError::Malformed("the body is too long"));
        }
        while self.inbox.len() < length {
            self.fill().await?;
        }
        let rest = self.inbox.split_off(length);
        Ok(std::mem::replace(&mut self.inbox, rest))
    }

    async fn take_chunks(&mut self) -> Result<Vec<u8>, WireError> {
        let mut body = Vec::new();
        loop {
            let line_end = loop {
                if let Some(end) = find(&self.inbox, b"\r\n") {
                    break end;
                }
                self.fill().await?;
            };
            let line = std::str::from_utf8(&self.inbox[..line_end]).unwrap_or_default();
            let size = line.split(';').next().unwrap_or_default().trim();
            let size = usize::from_str_radix(size, 16).map_err(|_| WireError::Malformed("a chunk without a size"))?;
            self.inbox.drain(..line_end + 2);
            let chunk = self.take(size.saturating_add(2)).await?;
            if size == 0 {
                return Ok(body);
            }
            body.extend_from_slice(&chunk[..size]);
            if body.len() > REPLY_MAX {
                return Err(WireError::Malformed("the body is too long"));
            }
        }
    }

    async fn fill(&mut self) -> Result<(), WireError> {
        self.inbox.reserve(READ_STEP);
        if self.stream.read_buf(&mut self.inbox).await? == 0 { Err(WireError::Closed) } else { Ok(()) }
    }
}

/// Writes a request into a reusable buffer. The path is sent unchanged; a body comes with its
/// content type.
pub fn write_request(
    out: &mut Vec<u8>,
    target: &Target,
    method: &str,
    resource: &str,
    authorization: Option<&str>,
    body: Option<(&str, &[u8])>,
) {
    out.clear();
    for part in [method, " ", resource, " HTTP/1.1\r\nHost: ", &target.authority, "\r\n"] {
        out.extend_from_slice(part.as_bytes());
    }
    if let Some(authorization) = authorization {
        for part in ["Authorization: ", authorization, "\r\n"] {
            out.extend_from_slice(part.as_bytes());
        }
    }
    let Some((content_type, body)) = body else {
        // Some proxies and servers want a length on a POST or PUT without a body.
        out.extend_from_slice(if method == "GET" { b"\r\n" } else { b"Content-Length: 0\r\n\r\n" });
        return;
    };
    for part in ["Content-Type: ", content_type, "\r\nContent-Length: ", &body.len().to_string(), "\r\n\r\n"] {
        out.extend_from_slice(part.as_bytes());
    }
    out.extend_from_slice(body);
}

#[derive(Debug, PartialEq, Eq)]
enum Length {
    Exactly(usize),
    Chunked,
}

struct Head {
    status: u16,
    length: Length,
    keep_alive: bool,
    retry_after: Option<u64>,
}

impl Head {
    fn parse(head: &[u8]) -> Result<Self, WireError> {
        let text = std::str::from_utf8(head).map_err(|_| WireError::Malformed("a header that is not text"))?;
        let mut lines = text.split("\r\n");
        let status_line = lines.next().unwrap_or_default();
        let status = status_line
            .strip_prefix("HTTP/1.1 ")
            .and_then(|rest| rest.get(..3))
            .and_then(|digits| digits.parse().ok())
            .ok_or(WireError::Malformed("no status line"))?;
        let mut parsed = Self { status, length: Length::Exactly(0), keep_alive: true, retry_after: None };
        for (name, value) in lines.filter_map(|line| line.split_once(':')) {
            let value = value.trim();
            if name.eq_ignore_ascii_case("content-length") {
                parsed.length = Length::Exactly(value.parse().map_err(|_| WireError::Malformed("a bad length"))?);
            } else if name.eq_ignore_ascii_case("transfer-encoding") {
                parsed.length = Length::Chunked;
            } else if name.eq_ignore_ascii_case("connection") && value.eq_ignore_ascii_case("close") {
                parsed.keep_alive = false;
            } else if name.eq_ignore_ascii_case("retry-after") {
                parsed.retry_after = value.parse().ok();
            }
        }
        Ok(parsed)
    }
}

fn find(haystack: &[u8], needle: &[u8]) -> Option<usize> {
    haystack.windows(needle.len()).position(|window| window == needle)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::net::TcpListener;

    /// Answers one connection with these bytes, in two pieces, after a request has arrived; then
    /// closes it.
    async fn exchange(answer: &'static [u8]) -> (Result<Reply, WireError>, Connection) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let target = Target::parse(&format!("http://{}", listener.local_addr().unwrap())).unwrap();
        let server = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = [0; 1024];
            assert!(stream.read(&mut request).await.unwrap() > 0);
            let (first, second) = answer.split_at(answer.len() / 2);
            stream.write_all(first).await.unwrap();
            tokio::task::yield_now().await;
            stream.write_all(second).await.unwrap();
        };
        let client = async {
            let mut connection = Connection::open(&target).await.unwrap();
            let mut request = Vec::new();
            write_request(&mut request, &target, "POST", "/x", None, Some((JSON, b"{}")));
            connection.send(&request).await.unwrap();
            (connection.receive().await, connection)
        };
        tokio::join!(client, server).0
    }

    #[tokio::test]
    async fn a_reply_with_a_length_is_read_to_its_end() {
        let (reply, connection) = exchange(b"HTTP/1.1 200 OK\r\ncontent-LENGTH: 5\r\n\r\nhello").await;
        assert_eq!(reply.unwrap(), Reply { status: 200, body: b"hello".to_vec(), retry_after: None });
        assert!(connection.is_reusable());
    }

    #[tokio::test]
    async fn a_reply_in_chunks_is_put_together() {
        let (reply, _) = exchange(
            b"HTTP/1.1 503 No\r\nRetry-After: 5\r\nTransfer-Encoding: chunked\r\n\r\n3;x=y\r\nabc\r\nA\r\n0123456789\r\n0\r\n\r\n",
        )
        .await;
        assert_eq!(reply.unwrap(), Reply { status: 503, body: b"abc0123456789".to_vec(), retry_after: Some(5) });
    }

    #[tokio::test]
    async fn a_connection_that_ends_too_early_is_an_error() {
        let (reply, connection) = exchange(b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nhello").await;
        assert!(matches!(reply, Err(WireError::Closed)));
        assert!(!connection.is_reusable());
        let (reply, _) = exchange(b"SSH-2.0-OpenSSH\r\n\r\n").await;
        assert!(matches!(reply, Err(WireError::Malformed(_))));
    }

    #[tokio::test]
    async fn a_connection_that_the_server_closes_is_not_used_again() {
        let (reply, connection) = exchange(b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n").await;
        assert_eq!(reply.unwrap().status, 204);
        assert!(!connection.is_reusable());
    }

    #[test]
    fn a_root_url_is_taken_apart() {
        let target = Target::parse("http://[::1]:8080/tc/").unwrap();
        assert_eq!((target.host.as_str(), target.port, target.prefix.as_str()), ("[::1]", 8080, "/tc"));
        let target = Target::parse("http://queue.test").unwrap();
        assert_eq!((target.host.as_str(), target.port, target.prefix.as_str()), ("queue.test", 80, ""));
        for bad in ["https://queue.test", "queue.test", "http://", "http://x:port"] {
            assert!(Target::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_request_has_the_length_of_its_body() {
        let target = Target::parse("http://h:1").unwrap();
        let mut out = Vec::new();
        write_request(&mut out, &target, "PUT", "/a%2Fb?c", Some("Hawk x"), Some((JSON, b"{}")));
        let expected = "PUT /a%2Fb?c HTTP/1.1\r\nHost: h:1\r\nAuthorization: Hawk x\r\n\
                        Content-Type: application/json\r\nContent-Length: 2\r\n\r\n{}";
        assert_eq!(std::str::from_utf8(&out).unwrap(), expected);
        write_request(&mut out, &target, "GET", "/", None, None);
        assert_eq!(out, b"GET / HTTP/1.1\r\nHost: h:1\r\n\r\n");
    }
}
