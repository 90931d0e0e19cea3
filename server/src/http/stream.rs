//! A connection's stream: reports flushes and fails when the reader stalls.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use http::HeaderValue;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};
use tokio_util::sync::CancellationToken;

use super::read_buffers::{Phase, ReadBuffer};
use super::timer::ConnectionTimer;
use tenure_engine::batch::delivery::Delivery;

#[derive(Clone)]
pub struct Connection(Arc<State>);

struct State {
    peer: SocketAddr,
    unflushed: Mutex<Vec<Delivery>>,
    cut: CancellationToken,
    phase: Phase,
    timer: ConnectionTimer,
    /// Requests of a connection do not overlap.
    served: Mutex<Served>,
}

/// Facts about the current request.
#[derive(Debug, Default)]
pub(super) struct Served {
    trace_id: Option<HeaderValue>,
    /// None if no route matched.
    pub(super) operation: Option<&'static str>,
    /// Time that the caller asked to wait.
    pub(super) waited: Duration,
}

impl Connection {
    #[must_use]
    pub fn new(peer: SocketAddr) -> Self {
        let (unflushed, cut, phase) = (Mutex::default(), CancellationToken::new(), Phase::default());
        let (timer, served) = (ConnectionTimer::default(), Mutex::default());
        Self(Arc::new(State { peer, unflushed, cut, phase, timer, served }))
    }

    pub(super) fn begin_request(&self, trace_id: HeaderValue) {
        *self.served() = Served { trace_id: Some(trace_id), ..Served::default() };
    }

    /// Returns the trace id of the current request.
    #[must_use]
    pub fn trace_id(&self) -> Option<String> {
        self.served().trace_id.as_ref().and_then(|trace_id| trace_id.to_str().ok()).map(str::to_owned)
    }

    /// Behind a proxy, the proxy's address.
    #[must_use]
    pub fn peer(&self) -> SocketAddr {
        self.0.peer
    }

    /// The claims are delivered by the next flush of everything written so far and right after.
    pub fn deliver_with_next_flush(&self, delivery: Delivery) {
        self.0.unflushed.lock().unwrap_or_else(PoisonError::into_inner).push(delivery);
    }

    /// Unwritten bytes are lost.
    pub fn cut(&self) {
        self.0.cut.cancel();
    }

    pub(super) async fn is_cut(&self) {
        self.0.cut.cancelled().await;
    }

    pub(super) fn phase(&self) -> &Phase {
        &self.0.phase
    }

    /// For the connection's successive waits.
    pub(super) fn timer(&self) -> &ConnectionTimer {
        &self.0.timer
    }

    pub(super) fn note_operation(&self, name: &'static str) {
        self.served().operation = Some(name);
    }

    pub(super) fn note_wait(&self, waited: Duration) {
        self.served().waited += waited;
    }

    /// Takes the facts about the request that ends.
    pub(super) fn take_served(&self) -> Served {
        std::mem::take(&mut *self.served())
    }

    fn served(&self) -> MutexGuard<'_, Served> {
        self.0.served.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self) -> Vec<Delivery> {
        std::mem::take(&mut *self.0.unflushed.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Reports flushes to its connection. The server calls `poll_flush` only after writing everything
/// it buffered. A stalled write, or a long head without a permit, is an error that ends the
/// connection.
pub(super) struct Tracked<S> {
    stream: S,
    connection: Connection,
    buffer: ReadBuffer,
    write_timeout: Duration,
    /// Runs while a write waits for the reader.
    stalled: Option<Pin<Box<Sleep>>>,
}

impl<S> Tracked<S> {
    pub(super) fn new(stream: S, connection: Connection, buffer: ReadBuffer, write_timeout: Duration) -> Self {
        Self { stream, connection, buffer, write_timeout, stalled: None }
    }

    fn note_progress(&mut self, cx: &mut Context<'_>, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
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
        // Unflushed claims are requeued.
        drop(self.connection.take());
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Tracked<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let phase = this.connection.phase();
        let max = this.buffer.next_max(phase).map_err(io::Error::other)?;
        let before = buf.filled().len();
        let stream = Pin::new(&mut this.stream);
        std::task::ready!(match max.filter(|max| *max < buf.remaining()) {
            None => stream.poll_read(cx, buf),
            Some(max) => poll_read_piece(stream, cx, buf, max),
        })?;
        this.buffer.note(phase, buf.filled().len() - before);
        Poll::Ready(Ok(()))
    }
}

/// Reads up to `max` bytes into a larger buffer.
fn poll_read_piece<S: AsyncRead>(
    stream: Pin<&mut S>,
    cx: &mut Context<'_>,
    buf: &mut ReadBuf<'_>,
    max: usize,
) -> Poll<io::Result<()>> {
    let mut piece = ReadBuf::new(buf.initialize_unfilled_to(max));
    std::task::ready!(stream.poll_read(cx, &mut piece))?;
    let read = piece.filled().len();
    buf.advance(read);
    Poll::Ready(Ok(()))
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Tracked<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.note_progress(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.note_progress(cx, written)
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

    use super::super::read_buffers::ReadBuffers;
    use super::*;

    fn tracked<S>(stream: S, buffer: ReadBuffer) -> Tracked<S> {
        Tracked::new(stream, Connection::new(([127, 0, 0, 1], 1).into()), buffer, LIMIT)
    }

    /// Long enough for a busy machine to read one byte.
    const LIMIT: Duration = Duration::from_secs(2);

    #[tokio::test]
    async fn only_a_stalled_write_times_out() {
        let (ours, mut reader) = duplex(64);
        let mut stream = tracked(ours, ReadBuffer::new(&ReadBuffers::new(1)));
        let slow = async {
            // Each byte is in time, all bytes together are not.
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

    #[tokio::test]
    async fn body_is_read_in_pieces_without_large_buffers() {
        const BODY: usize = 1 << 18;
        let all = ReadBuffers::new(1);
        let sent: Vec<u8> = (0..BODY).map(|at| at.to_le_bytes()[at % 2]).collect();
        let mut large = Vec::new();
        loop {
            let (ours, mut writer) = duplex(BODY);
            let mut stream = tracked(ours, ReadBuffer::new(&all));
            stream.connection.phase().begin_answer();
            writer.write_all(&sent).await.unwrap();
            drop(writer);
            let (mut read, mut buffer, mut largest) = (Vec::new(), vec![0; BODY], 0);
            loop {
                let bytes = stream.read(&mut buffer).await.unwrap();
                if bytes == 0 {
                    break;
                }
                largest = largest.max(bytes);
                read.extend_from_slice(&buffer[..bytes]);
            }
            assert!(read == sent, "{largest}");
            if largest < 16 << 10 {
                break;
            }
            large.push(stream);
            assert!(large.len() < 64, "bodies take all permits");
        }
        assert!(!large.is_empty());
    }
}
