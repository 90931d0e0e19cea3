//! Bounds the memory of the read buffers of all connections: only few of them may be large at a time.
//!
//! The buffer of a connection grows to the longest head while one does not come to its end, and with each read that fills it.
//! It keeps its size until the connection ends. The caller is not known by then, so this holds for all callers.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// So many bytes of a head, or of one read, make no buffer large.
const SMALL_MAX: usize = (16 << 10) - 1;
/// One connection in so many may have a large buffer, and so many in any case.
const CONNECTIONS_PER_LARGE: usize = 10;
const LARGE_MIN: usize = 64;
/// Stands for the bytes of a head while a request is answered: what is read then belongs to its body.
const ANSWERING: usize = usize::MAX;

/// The large read buffers of all connections.
pub struct ReadBuffers {
    free: Arc<Semaphore>,
    /// So many are for one long head each: not for bodies, which can do without, nor for connections that stay open.
    kept_for_heads: usize,
}

impl ReadBuffers {
    /// Those of so many connections.
    #[must_use]
    pub fn new(connections_max: usize) -> Arc<Self> {
        let large = (connections_max / CONNECTIONS_PER_LARGE).max(LARGE_MIN);
        Arc::new(Self { free: Arc::new(Semaphore::new(large)), kept_for_heads: large / 2 })
    }

    fn has_more_than_for_heads(&self) -> bool {
        self.free.available_permits() > self.kept_for_heads
    }

    fn take(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.free).try_acquire_owned().ok()
    }
}

/// What a connection reads: at first the head of a request.
#[derive(Debug, Default)]
pub struct Phase {
    head: AtomicUsize,
    is_last: AtomicBool,
}

impl Phase {
    /// A head has come to its end.
    pub fn begin_answer(&self) {
        self.head.store(ANSWERING, Ordering::Relaxed);
    }

    /// What is read from now on is the head of the next request.
    pub fn end_answer(&self) {
        self.head.store(0, Ordering::Relaxed);
    }

    /// Whether the connection is to end with its answer.
    #[must_use]
    pub fn is_last(&self) -> bool {
        self.is_last.load(Ordering::Relaxed)
    }

    /// How long the head is by now that is being read; none: it is a body.
    fn head(&self) -> Option<usize> {
        Some(self.head.load(Ordering::Relaxed)).filter(|head| *head != ANSWERING)
    }

    /// So many bytes were read.
    fn count(&self, bytes: usize) {
        if let Some(head) = self.head() {
            self.head.store(head.saturating_add(bytes).min(ANSWERING - 1), Ordering::Relaxed);
        }
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
}

impl ReadBuffer {
    /// A small one.
    #[must_use]
    pub fn new(all: &Arc<ReadBuffers>) -> Self {
        Self { all: Arc::clone(all), large: None }
    }

    /// How much may be read next; none: as much as fits. A small buffer takes in no more than makes it large, so only a head that
    /// is long, and not a body behind a short one, needs room.
    ///
    /// # Errors
    /// If there is none for the rest of a long head.
    pub fn next_max(&mut self, phase: &Phase) -> Result<Option<usize>, NoRoom> {
        if self.large.is_some() {
            return Ok(None);
        }
        let left = SMALL_MAX.saturating_sub(phase.head().unwrap_or_default());
        if left > 0 {
            return Ok(Some(left));
        }
        let may_stay = self.all.has_more_than_for_heads();
        self.large = self.all.take();
        if self.large.is_none() {
            metrics::counter!("tenure_limits_reached_total", "limit" => "heads").increment(1);
            return Err(NoRoom);
        }
        phase.is_last.store(!may_stay, Ordering::Relaxed);
        Ok(None)
    }

    /// Notes that so many bytes were read.
    pub fn note(&mut self, phase: &Phase, bytes: usize) {
        phase.count(bytes);
        if bytes >= SMALL_MAX && self.large.is_none() && self.all.has_more_than_for_heads() {
            self.large = self.all.take();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads so many bytes, as far as there is room for them.
    fn read(buffer: &mut ReadBuffer, phase: &Phase, bytes: usize) -> Result<(), NoRoom> {
        let mut left = bytes;
        while left > 0 {
            let piece = buffer.next_max(phase)?.unwrap_or(left).min(left);
            buffer.note(phase, piece);
            left -= piece;
        }
        Ok(())
    }

    fn read_head(all: &Arc<ReadBuffers>, bytes: usize) -> (ReadBuffer, Phase, Result<(), NoRoom>) {
        let (mut buffer, phase) = (ReadBuffer::new(all), Phase::default());
        let done = read(&mut buffer, &phase, bytes);
        (buffer, phase, done)
    }

    #[test]
    fn one_connection_in_ten_may_have_a_long_head_and_some_in_any_case() {
        for (connections, large) in [(8, 64), (640, 64), (10_000, 1_000)] {
            let all = ReadBuffers::new(connections);
            let taken: Vec<_> = (0..large).map(|_| read_head(&all, SMALL_MAX + 1)).collect();
            assert!(taken.iter().all(|(_, _, done)| done.is_ok()), "{connections}");
            assert_eq!(read_head(&all, SMALL_MAX + 1).2, Err(NoRoom), "{connections}");
            assert_eq!(read_head(&all, SMALL_MAX).2, Ok(()), "{connections}");
            drop(taken);
            assert_eq!(read_head(&all, SMALL_MAX + 1).2, Ok(()), "{connections}");
        }
    }

    #[test]
    fn a_connection_with_a_long_head_stays_open_only_while_half_of_the_room_is_left() {
        let all = ReadBuffers::new(0);
        let taken: Vec<_> = (0..LARGE_MIN).map(|_| read_head(&all, SMALL_MAX + 1)).collect();
        let ends = taken.iter().filter(|(_, phase, _)| phase.is_last()).count();
        assert_eq!(ends, LARGE_MIN / 2);
        assert!(!read_head(&all, SMALL_MAX).1.is_last());
    }

    #[test]
    fn a_head_is_counted_from_the_end_of_the_request_before_it() {
        let all = ReadBuffers::new(0);
        let _taken: Vec<_> = (0..LARGE_MIN).map(|_| read_head(&all, SMALL_MAX + 1)).collect();
        let (mut buffer, phase) = (ReadBuffer::new(&all), Phase::default());
        for _ in 0..3 {
            assert_eq!(read(&mut buffer, &phase, SMALL_MAX / 2), Ok(()));
            assert_eq!(read(&mut buffer, &phase, SMALL_MAX / 2), Ok(()));
            phase.begin_answer();
            // It is never refused for its body.
            assert_eq!(read(&mut buffer, &phase, SMALL_MAX * 2), Ok(()));
            phase.end_answer();
        }
        assert_eq!(read(&mut buffer, &phase, SMALL_MAX), Ok(()));
        assert_eq!(read(&mut buffer, &phase, 1), Err(NoRoom));
    }

    #[test]
    fn bodies_leave_half_of_the_room_to_heads_and_are_read_in_pieces_without_it() {
        let all = ReadBuffers::new(0);
        let phase = Phase::default();
        phase.begin_answer();
        let with_body = |bytes| {
            let mut buffer = ReadBuffer::new(&all);
            assert_eq!(read(&mut buffer, &phase, bytes), Ok(()));
            buffer
        };
        assert!(with_body(SMALL_MAX - 1).large.is_none());
        let mut taken: Vec<_> = (0..LARGE_MIN / 2).map(|_| with_body(SMALL_MAX)).collect();
        assert!(taken.iter_mut().all(|buffer| buffer.next_max(&phase) == Ok(None)));
        let mut confined = with_body(SMALL_MAX * 2);
        assert_eq!(confined.next_max(&phase), Ok(Some(SMALL_MAX)));
        // Nor does a body take more that comes with its head.
        assert!(read_head(&all, SMALL_MAX).0.large.is_none());
        assert_eq!(read_head(&all, SMALL_MAX + 1).2, Ok(()));
        // As soon as there is room, it is used.
        drop(taken.pop());
        assert_eq!(read(&mut confined, &phase, SMALL_MAX), Ok(()));
        assert_eq!(confined.next_max(&phase), Ok(None));
    }
}
