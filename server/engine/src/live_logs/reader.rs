//! One task that reads for all streams.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use sqlx::PgPool;
use tokio::sync::{Notify, mpsc};
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use tenure_domain::live_log::Cursor;
use tenure_store::live_logs::{self, Position};

/// Pieces of a stream that wait for its reader: 256 KiB.
pub(super) const PIECES_WAITING: usize = 2 * PIECES;
/// Chunks that are read for a stream at once. Each may come with a line before it.
const PIECES: usize = 4;
/// Streams of one statement.
const STREAMS_PER_READ: usize = 16;
/// How often all streams are looked at: another server may have stored something.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// The least time between two looks.
const LOOK_AT_MOST_EVERY: Duration = Duration::from_millis(20);
/// How long a look may take: the database may have gone silent.
const LOOK_MAX: Duration = Duration::from_secs(10);

/// A stream that is open.
pub(super) struct Stream {
    pub(super) position: Position,
    pub(super) cursor: Cursor,
    pub(super) follow: bool,
    pub(super) frames: mpsc::Sender<Bytes>,
}

pub(super) struct Reader {
    pool: PgPool,
    arriving: mpsc::UnboundedReceiver<Stream>,
    stored: Arc<Notify>,
    stop: CancellationToken,
    streams: Vec<Stream>,
}

impl Reader {
    pub(super) fn new(
        pool: PgPool,
        arriving: mpsc::UnboundedReceiver<Stream>,
        stored: Arc<Notify>,
        stop: CancellationToken,
    ) -> Self {
        Self { pool, arriving, stored, stop, streams: Vec::new() }
    }

    pub(super) async fn work(mut self) {
        let streams = metrics::gauge!("tenure_live_log_streams");
        streams.set(0.0);
        let mut looked = Instant::now();
        let mut more = false;
        while !self.stop.is_cancelled() {
            let idle = self.streams.is_empty();
            let look_at = looked + if more { LOOK_AT_MOST_EVERY } else { LOOK_EVERY };
            tokio::select! {
                stream = self.arriving.recv() => match stream {
                    Some(stream) => self.streams.push(stream),
                    None => return,
                },
                () = self.stored.notified(), if !idle => {}
                () = sleep_until(look_at), if !idle => {}
                () = self.stop.cancelled() => break,
            }
            // More arrives meanwhile, for the same statement.
            sleep_until(looked + LOOK_AT_MOST_EVERY).await;
            while let Ok(stream) = self.arriving.try_recv() {
                self.streams.push(stream);
            }
            looked = Instant::now();
            more = self.look().await;
            streams.set(self.streams.len() as f64);
        }
        // Their bodies end, and readers go on elsewhere.
        self.streams.clear();
        while self.arriving.recv().await.is_some() {}
    }

    /// Sends what there is to all streams whose readers have taken what was sent before; whether there may be more.
    async fn look(&mut self) -> bool {
        self.streams.retain(|stream| !stream.frames.is_closed());
        let is_ready = |stream: &Stream| stream.frames.capacity() == PIECES_WAITING;
        let ready: Vec<usize> = (0..self.streams.len()).filter(|n| is_ready(&self.streams[*n])).collect();
        let mut more = false;
        for part in ready.chunks(STREAMS_PER_READ) {
            match timeout(LOOK_MAX, self.send(part)).await.unwrap_or(Err(sqlx::Error::PoolTimedOut)) {
                Ok(sent) => more |= sent,
                Err(error) => tracing::debug!(error = %error, "live logs could not be read"),
            }
        }
        more
    }

    /// Sends what there is to these streams, and ends those that have had everything.
    async fn send(&mut self, part: &[usize]) -> Result<bool, sqlx::Error> {
        let positions: Vec<Position> = part.iter().map(|n| self.streams[*n].position).collect();
        let mut conn = self.pool.acquire().await?;
        // First: what is stored while a run is held is read by what comes after.
        let held = live_logs::are_held(&mut conn, &positions).await?;
        let pieces = live_logs::read(&mut conn, &positions, PIECES as i64).await?;
        drop(conn);
        let mut counts = vec![0; part.len()];
        for piece in &pieces {
            let Some(stream) = part.get(piece.reader).and_then(|n| self.streams.get_mut(*n)) else { continue };
            counts[piece.reader] += 1;
            let (line, bytes) = stream.cursor.take(piece.start.unsigned_abs(), &piece.bytes);
            let line = line.map(Bytes::from);
            for frame in line.into_iter().chain([Bytes::copy_from_slice(bytes)]) {
                // There is room for all of them.
                drop(stream.frames.try_send(frame));
            }
            stream.position.next = i64::try_from(stream.cursor.next).unwrap_or(i64::MAX);
        }
        let mut ended = Vec::new();
        for (n, (held, count)) in held.into_iter().zip(&counts).enumerate() {
            let follow = self.streams[part[n]].follow && held;
            if *count < PIECES && !follow {
                ended.push(part[n]);
            }
        }
        for n in ended {
            // A stream whose sender is gone ends when its reader has read what was sent.
            let (closed, _) = mpsc::channel(1);
            self.streams[n].frames = closed;
        }
        Ok(!pieces.is_empty())
    }
}
