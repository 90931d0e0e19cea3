//! A connection's stream: it reports what was flushed, and ends when its reader stops reading.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};
use tokio_util::sync::CancellationToken;

use tenure_engine::batch::delivery::Delivery;

/// A handle to a connection.
#[derive(Clone)]
pub struct Connection(Arc<State>);

struct State {
    peer: SocketAddr,
    unflushed: Mutex<Vec<Delivery>>,
    cut: CancellationToken,
}

impl Connection {
    /// A connection to this address.
    #[must_use]
    pub fn new(peer: SocketAddr) -> Self {
        Self(Arc::new(State { peer, unflushed: Mutex::default(), cut: CancellationToken::new() }))
    }

    /// The address of the other side: behind a proxy, the proxy's.
    #[must_use]
    pub fn peer(&self) -> SocketAddr {
        self.0.peer
    }

    /// These claims are delivered when what was written so far, and what follows at once, is flushed.
    pub fn deliver_with_next_flush(&self, delivery: Delivery) {
        self.0.unflushed.lock().unwrap_or_else(PoisonError::into_inner).push(delivery);
    }

    /// Ends the connection at once, whatever was not written yet.
    pub fn cut(&self) {
        self.0.cut.cancel();
    }

    /// Waits until the connection is ended.
    pub(super) async fn is_cut(&self) {
        self.0.cut.cancelled().await;
    }

    fn take(&self) -> Vec<Delivery> {
        std::mem::take(&mut *self.0.unflushed.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A stream that reports to its connection what was flushed. The server calls `poll_flush` only when everything that it
/// had buffered was written. A write that makes no progress for too long is an error, with which the connection ends.
pub(super) struct Tracked<S> {
    stream: S,
    connection: Connection,
    write_timeout: Duration,
    /// Runs while a write waits for the reader.
    stalled: Option<Pin<Box<Sleep>>>,
}

impl<S> Tracked<S> {
    pub(super) fn new(stream: S, connection: Connection, write_timeout: Duration) -> Self {
        Self { stream, connection, write_timeout, stalled: None }
    }

    fn watch(&mut self, cx: &mut Context<'_>, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if written.is_ready() {
            self.stalled = None;
            return written;
        }
        let limit = self.write_timeout;
        let stalled = self.stalled.get_or_insert_with(|| Box::pin(sleep(limit)));
        std::task::ready!(stalled.as_mut().poll(cx));
        metrics::counter!("tenure_limits_reached_total", "limit" => "writes").increment(1);
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the reader does not read")))
    }
}

impl<S> Drop for Tracked<S> {
    fn drop(&mut self) {
        // What was never flushed is requeued.
        drop(self.connection.take());
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Tracked<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Tracked<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.watch(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.watch(cx, written)
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

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};

    use super::*;

    /// Enough for a busy machine to read a byte in.
    const LIMIT: Duration = Duration::from_secs(2);

    #[tokio::test]
    async fn a_write_without_progress_ends_in_an_error_and_one_with_progress_does_not() {
        let (ours, mut reader) = duplex(64);
        let mut stream = Tracked::new(ours, Connection::new(([127, 0, 0, 1], 1).into()), LIMIT);
        let slow = async {
            // Each byte comes in time, all of them together do not.
            for _ in 0..60 {
                tokio::time::sleep(LIMIT / 20).await;
                reader.read_u8().await.unwrap();
            }
        };
        let (written, ()) = tokio::join!(stream.write_all(&[0; 124]), slow);
        written.unwrap();
        let error = stream.write_all(&[0; 1]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }
}
