//! One task that reads for all streams: for those of a log at once when this server has stored something of it, for all of them twice a
//! second.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use sqlx::PgPool;
use tokio::sync::{Notify, mpsc};
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use tenure_domain::live_log::{Cursor, End};
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
    pub(super) task: Uuid,
    pub(super) position: Position,
    pub(super) cursor: Cursor,
    /// Its log has been there.
    pub(super) has_log: bool,
    pub(super) follow: bool,
    pub(super) frames: mpsc::Sender<Bytes>,
    /// There may be something that it has not had.
    pub(super) due: bool,
}

impl Stream {
    /// The end of its log, which ends there now or is gone.
    fn end(&self, next: Option<i64>) -> End {
        match next {
            Some(next) => End::At(next.unsigned_abs()),
            None if self.has_log => End::Deleted,
            None => End::Unwritten,
        }
    }
}

/// The runs of whose logs this server has stored something since the last look.
#[derive(Default)]
pub(super) struct Stored {
    /// None while there is no stream.
    runs: Mutex<Option<HashSet<(Uuid, i16)>>>,
    notify: Notify,
}

impl Stored {
    /// Something of the log of a run is stored.
    pub(super) fn note(&self, task: Uuid, run: i16) {
        if let Some(runs) = &mut *self.lock() {
            runs.insert((task, run));
            self.notify.notify_one();
        }
    }

    /// The runs so far; the next ones are noted.
    fn take(&self) -> HashSet<(Uuid, i16)> {
        self.lock().replace(HashSet::new()).unwrap_or_default()
    }

    /// There is no stream, and none is noted until the next call of [`Stored::take`].
    fn rest(&self) {
        *self.lock() = None;
    }

    fn lock(&self) -> MutexGuard<'_, Option<HashSet<(Uuid, i16)>>> {
        self.runs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(super) struct Reader {
    pool: PgPool,
    arriving: mpsc::UnboundedReceiver<Stream>,
    stored: Arc<Stored>,
    stop: CancellationToken,
    streams: Vec<Stream>,
}

impl Reader {
    pub(super) fn new(
        pool: PgPool,
        arriving: mpsc::UnboundedReceiver<Stream>,
        stored: Arc<Stored>,
        stop: CancellationToken,
    ) -> Self {
        Self { pool, arriving, stored, stop, streams: Vec::new() }
    }

    pub(super) async fn work(mut self) {
        let streams = metrics::gauge!("tenure_live_log_streams");
        streams.set(0.0);
        let (mut looked, mut all_looked) = (Instant::now(), Instant::now());
        let mut more = false;
        while !self.stop.is_cancelled() {
            let idle = self.streams.is_empty();
            let look_at = if more { looked + LOOK_AT_MOST_EVERY } else { all_looked + LOOK_EVERY };
            tokio::select! {
                stream = self.arriving.recv() => match stream {
                    Some(stream) => self.streams.push(stream),
                    None => return,
                },
                () = self.stored.notify.notified(), if !idle => {}
                () = sleep_until(look_at), if !idle => {}
                () = self.stop.cancelled() => break,
            }
            // More arrives meanwhile, for the same statement.
            sleep_until(looked + LOOK_AT_MOST_EVERY).await;
            while let Ok(stream) = self.arriving.try_recv() {
                self.streams.push(stream);
            }
            looked = Instant::now();
            let stored = self.stored.take();
            if looked >= all_looked + LOOK_EVERY {
                all_looked = looked;
                self.streams.iter_mut().for_each(|stream| stream.due = true);
            } else {
                self.mark_due(&stored);
            }
            more = self.look().await;
            if self.streams.is_empty() {
                self.stored.rest();
            }
            streams.set(self.streams.len() as f64);
        }
        // Their bodies end, and readers go on elsewhere.
        self.streams.clear();
        while self.arriving.recv().await.is_some() {}
    }

    /// Of the logs of these runs there is something new.
    fn mark_due(&mut self, stored: &HashSet<(Uuid, i16)>) {
        for stream in &mut self.streams {
            stream.due |= stored.contains(&(stream.task, stream.position.run));
        }
    }

    /// The streams to read for: there may be something for them, and their readers have taken what was sent before.
    fn due(&self) -> Vec<usize> {
        let is_due = |stream: &Stream| stream.due && stream.frames.capacity() == PIECES_WAITING;
        (0..self.streams.len()).filter(|n| is_due(&self.streams[*n])).collect()
    }

    /// Sends what there is to the streams that are due; whether there may be more.
    async fn look(&mut self) -> bool {
        self.streams.retain(|stream| !stream.frames.is_closed());
        let mut more = false;
        for part in self.due().chunks(STREAMS_PER_READ) {
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
        let states = live_logs::states(&mut conn, &positions).await?;
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
        for (n, (state, count)) in states.into_iter().zip(&counts).enumerate() {
            let stream = &mut self.streams[part[n]];
            stream.due = *count > 0;
            let end = stream.end(state.next);
            stream.has_log |= state.next.is_some() || *count > 0;
            if *count < PIECES && !(stream.follow && state.held) {
                if let Some(line) = stream.cursor.end(end) {
                    drop(stream.frames.try_send(Bytes::from(line)));
                }
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

#[cfg(test)]
mod tests {
    use super::*;

    /// The task of a stream, and what of it was stored.
    fn run(task: u128) -> (Uuid, i16) {
        (Uuid::from_u128(task), 0)
    }

    fn stream(task: u128) -> (Stream, mpsc::Receiver<Bytes>) {
        let (frames, pieces) = mpsc::channel(PIECES_WAITING);
        let position = Position { seq: 1, run: 0, next: 0 };
        let cursor = Cursor { next: 0 };
        (Stream { task: run(task).0, position, cursor, has_log: false, follow: true, frames, due: false }, pieces)
    }

    #[tokio::test]
    async fn a_chunk_is_read_for_the_streams_of_its_log_whose_readers_take_it_and_for_no_other() {
        let pool = sqlx::postgres::PgPoolOptions::new().connect_lazy("postgres://nowhere.invalid").unwrap();
        let (_opened, arriving) = mpsc::unbounded_channel();
        let mut reader = Reader::new(pool, arriving, Arc::default(), CancellationToken::new());
        let (streams, mut pieces): (Vec<_>, Vec<_>) = [1, 2, 1].map(stream).into_iter().unzip();
        reader.streams = streams;
        reader.streams[2].frames.try_send(Bytes::from_static(b"not taken yet")).unwrap();
        reader.mark_due(&HashSet::from([run(3), (run(2).0, 1)]));
        assert!(reader.due().is_empty());
        reader.mark_due(&HashSet::from([run(1)]));
        assert_eq!(reader.due(), [0]);
        pieces[2].try_recv().unwrap();
        assert_eq!(reader.due(), [0, 2], "what it could not take is not forgotten");
    }

    #[test]
    fn what_is_stored_is_noted_while_there_are_streams() {
        let stored = Stored::default();
        stored.note(run(1).0, 0);
        assert!(stored.take().is_empty());
        stored.note(run(2).0, 0);
        stored.note(run(2).0, 0);
        assert_eq!(stored.take(), HashSet::from([run(2)]));
        stored.rest();
        stored.note(run(3).0, 0);
        assert!(stored.take().is_empty());
    }
}
