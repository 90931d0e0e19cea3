//! Reads logs for all streams of this server.

use bytes::Bytes;
use sqlx::PgPool;
use tokio::sync::mpsc;
use uuid::Uuid;

use crate::parked::{self, Due, GiveUp, Parked};
use tenure_domain::live_log::{Cursor, End};
use tenure_store::live_logs::{self, Position};

/// Pieces buffered per stream: 256 KiB.
pub(super) const PIECES_WAITING: usize = 2 * PIECES;
/// Chunks read per stream at once. Each may come with a line before it.
const PIECES: usize = 4;
const STREAMS_PER_READ: usize = 16;

pub(super) type RunKey = (Uuid, i16);

pub(super) struct Stream {
    pub(super) position: Position,
    pub(super) cursor: Cursor,
    pub(super) has_log: bool,
    pub(super) follow: bool,
    pub(super) frames: mpsc::Sender<Bytes>,
    /// There may be chunks to read.
    pub(super) due: bool,
    pub(super) ended: bool,
}

impl Stream {
    fn end(&self, next: Option<i64>) -> End {
        match next {
            Some(next) => End::At(next.unsigned_abs()),
            None if self.has_log => End::Deleted,
            None => End::Unwritten,
        }
    }

    /// True if there may be chunks, and the reader has taken all pieces so far.
    fn is_due(&self) -> bool {
        self.due && self.frames.capacity() == PIECES_WAITING
    }
}

impl parked::Waiter for Stream {
    fn is_closed(&self) -> bool {
        self.frames.is_closed()
    }

    /// Ends the body; its reader continues at another server.
    fn give_up(self, _: GiveUp) {}
}

pub(super) struct Reader {
    pool: PgPool,
}

impl parked::Source for Reader {
    type Key = RunKey;
    type Waiter = Stream;
    const GAUGE: &'static str = "tenure_live_log_streams";

    async fn poll(&mut self, parked: &mut Parked<Self>, due: &Due<RunKey>) -> Result<bool, sqlx::Error> {
        for key in &due.notified {
            parked.get_mut(*key).for_each(|stream| stream.due = true);
        }
        if due.all {
            parked.values_mut().for_each(|stream| stream.due = true);
        }
        let mut streams: Vec<&mut Stream> = parked.values_mut().filter(|stream| stream.is_due()).collect();
        let mut more = false;
        for part in streams.chunks_mut(STREAMS_PER_READ) {
            more |= self.send(part).await?;
        }
        parked.retain(|stream| !stream.ended && !stream.frames.is_closed());
        Ok(more)
    }
}

impl Reader {
    pub(super) fn new(pool: PgPool) -> Self {
        Self { pool }
    }

    /// Sends new chunks to these streams, and marks ended streams. Returns true if there may be
    /// more chunks.
    async fn send(&self, streams: &mut [&mut Stream]) -> Result<bool, sqlx::Error> {
        let positions: Vec<Position> = streams.iter().map(|stream| stream.position).collect();
        let mut conn = self.pool.acquire().await?;
        // First: the second statement then sees every chunk stored while the run was held.
        let states = live_logs::states(&mut conn, &positions).await?;
        let pieces = live_logs::read(&mut conn, &positions, PIECES as i64).await?;
        drop(conn);
        let mut counts = vec![0; streams.len()];
        for piece in &pieces {
            let Some(stream) = streams.get_mut(piece.reader) else { continue };
            counts[piece.reader] += 1;
            let (line, bytes) = stream.cursor.take(piece.start.unsigned_abs(), &piece.bytes);
            let line = line.map(Bytes::from);
            for frame in line.into_iter().chain([Bytes::copy_from_slice(bytes)]) {
                // The channel has capacity.
                drop(stream.frames.try_send(frame));
            }
            stream.position.next = i64::try_from(stream.cursor.next).unwrap_or(i64::MAX);
        }
        for ((stream, state), count) in streams.iter_mut().zip(states).zip(counts) {
            stream.due = count > 0;
            let end = stream.end(state.next);
            stream.has_log |= state.next.is_some() || count > 0;
            if count < PIECES && !(stream.follow && state.held) {
                if let Some(line) = stream.cursor.end(end) {
                    drop(stream.frames.try_send(Bytes::from(line)));
                }
                stream.ended = true;
            }
        }
        Ok(!pieces.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stream_is_read_once_its_reader_has_taken_all_pieces() {
        let (frames, mut pieces) = mpsc::channel(PIECES_WAITING);
        let position = Position { seq: 1, run: 0, next: 0 };
        let cursor = Cursor { next: 0 };
        let stream = Stream { position, cursor, has_log: false, follow: true, frames, due: true, ended: false };
        stream.frames.try_send(Bytes::from_static(b"not taken yet")).unwrap();
        assert!(!stream.is_due());
        pieces.try_recv().unwrap();
        assert!(stream.is_due());
    }
}
