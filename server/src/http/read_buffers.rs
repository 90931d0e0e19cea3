//! How much memory the read buffers of all connections take together: few of them may be large at a time.
//!
//! The buffer of a connection grows to the longest head while one does not come to its end, and with each read that fills it.
//! It keeps its size until the connection ends. Who sends is not known by then, so this holds for all callers.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// A head of so many bytes, or a read, makes no buffer large.
const SMALL_MAX: usize = 16 << 10;
/// How much a connection reads at once that has no room for more: so little that its buffer does not grow.
const PIECE: usize = SMALL_MAX - 1;
/// One connection in so many may have a large buffer, and so many in any case.
const CONNECTIONS_PER_LARGE: usize = 10;
const LARGE_MIN: usize = 64;
/// Stands for the bytes of a head while a request is answered: what is read then belongs to its body.
const ANSWERING: usize = usize::MAX;

/// The large read buffers of all connections.
pub struct ReadBuffers {
    free: Arc<Semaphore>,
    /// So many are not for bodies, which can do without: heads cannot.
    kept_for_heads: usize,
}

impl ReadBuffers {
    /// Those of so many connections.
    #[must_use]
    pub fn new(connections_max: usize) -> Arc<Self> {
        let large = (connections_max / CONNECTIONS_PER_LARGE).max(LARGE_MIN);
        Arc::new(Self { free: Arc::new(Semaphore::new(large)), kept_for_heads: large / 2 })
    }
}

/// What a connection reads: at first the head of a request.
#[derive(Debug, Default)]
pub struct Phase(AtomicUsize);

impl Phase {
    /// A head has come to its end.
    pub fn begin_answer(&self) {
        self.0.store(ANSWERING, Ordering::Relaxed);
    }

    /// What is read from now on is the head of the next request.
    pub fn end_answer(&self) {
        self.0.store(0, Ordering::Relaxed);
    }

    /// So many bytes were read: how long the head is by now that is being read; none: it is a body.
    fn count(&self, bytes: usize) -> Option<usize> {
        let head = self.0.load(Ordering::Relaxed);
        if head == ANSWERING {
            return None;
        }
        let head = head.saturating_add(bytes).min(ANSWERING - 1);
        self.0.store(head, Ordering::Relaxed);
        Some(head)
    }
}

/// A head is long, and too many connections have large buffers.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("the heads of other requests take all the memory that there is for long ones")]
pub struct NoRoom;

/// The read buffer of one connection.
pub struct ReadBuffer {
    all: Arc<ReadBuffers>,
    /// Held from when the buffer becomes large to the end of the connection.
    large: Option<OwnedSemaphorePermit>,
    /// It would have become large, and there was no room.
    is_confined: bool,
}

impl ReadBuffer {
    /// A small one.
    #[must_use]
    pub fn new(all: &Arc<ReadBuffers>) -> Self {
        Self { all: Arc::clone(all), large: None, is_confined: false }
    }

    /// How much may be read at once; none: as much as fits.
    #[must_use]
    pub fn piece_max(&self) -> Option<usize> {
        self.is_confined.then_some(PIECE)
    }

    /// Notes that so many bytes were read.
    ///
    /// # Errors
    /// If they belong to a long head, and there is no room.
    pub fn note(&mut self, phase: &Phase, bytes: usize) -> Result<(), NoRoom> {
        let head = phase.count(bytes);
        if self.large.is_some() || (bytes < PIECE && head.unwrap_or_default() <= SMALL_MAX) {
            return Ok(());
        }
        let free = &self.all.free;
        if head.is_some() || free.available_permits() > self.all.kept_for_heads {
            self.large = Arc::clone(free).try_acquire_owned().ok();
        }
        self.is_confined = self.large.is_none();
        if self.is_confined && head.is_some_and(|head| head > SMALL_MAX) {
            metrics::counter!("tenure_limits_reached_total", "limit" => "heads").increment(1);
            return Err(NoRoom);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heads(all: &Arc<ReadBuffers>, bytes: usize) -> (ReadBuffer, Result<(), NoRoom>) {
        let mut buffer = ReadBuffer::new(all);
        let noted = buffer.note(&Phase::default(), bytes);
        (buffer, noted)
    }

    #[test]
    fn one_connection_in_ten_may_have_a_long_head_and_some_in_any_case() {
        for (connections, large) in [(8, 64), (640, 64), (10_000, 1_000)] {
            let all = ReadBuffers::new(connections);
            let taken: Vec<_> = (0..large).map(|_| heads(&all, SMALL_MAX + 1)).collect();
            assert!(taken.iter().all(|(_, noted)| noted.is_ok()), "{connections}");
            assert_eq!(heads(&all, SMALL_MAX + 1).1, Err(NoRoom), "{connections}");
            assert_eq!(heads(&all, SMALL_MAX).1, Ok(()), "{connections}");
            drop(taken);
            assert_eq!(heads(&all, SMALL_MAX + 1).1, Ok(()), "{connections}");
        }
    }

    #[test]
    fn a_head_is_counted_from_the_end_of_the_request_before_it() {
        let all = ReadBuffers::new(0);
        let _taken: Vec<_> = (0..LARGE_MIN).map(|_| heads(&all, SMALL_MAX + 1)).collect();
        let (mut buffer, phase) = (ReadBuffer::new(&all), Phase::default());
        for _ in 0..3 {
            assert_eq!(buffer.note(&phase, SMALL_MAX / 2), Ok(()));
            assert_eq!(buffer.note(&phase, SMALL_MAX / 2), Ok(()));
            phase.begin_answer();
            // It is never refused for its body.
            assert_eq!(buffer.note(&phase, SMALL_MAX * 2), Ok(()));
            phase.end_answer();
        }
        assert_eq!(buffer.note(&phase, SMALL_MAX / 2), Ok(()));
        assert_eq!(buffer.note(&phase, SMALL_MAX / 2 + 1), Err(NoRoom));
    }

    #[test]
    fn bodies_leave_half_of_the_room_to_heads_and_are_read_in_pieces_without_it() {
        let all = ReadBuffers::new(0);
        let phase = Phase::default();
        phase.begin_answer();
        let read = |bytes| {
            let mut buffer = ReadBuffer::new(&all);
            assert_eq!(buffer.note(&phase, bytes), Ok(()));
            buffer
        };
        assert_eq!(read(PIECE - 1).piece_max(), None);
        let mut taken: Vec<_> = (0..LARGE_MIN / 2).map(|_| read(PIECE)).collect();
        assert!(taken.iter().all(|buffer| buffer.piece_max().is_none()));
        let mut confined = read(PIECE);
        assert_eq!(confined.piece_max(), Some(PIECE));
        assert_eq!(heads(&all, SMALL_MAX + 1).1, Ok(()));
        // As soon as there is room, it is used.
        drop(taken.pop());
        assert_eq!(confined.note(&phase, PIECE), Ok(()));
        assert_eq!(confined.piece_max(), None);
    }
}
