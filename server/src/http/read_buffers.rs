//! Bounds the memory of all connections' read buffers by limiting the number of large ones.
//!
//! A connection's buffer grows up to the longest head while the head is incomplete, and with each
//! read that fills it. It never shrinks. The caller is still unknown, so the limit applies to all
//! callers.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Maximum bytes of a head, or of one read, that leave a buffer small.
const SMALL_MAX: usize = (16 << 10) - 1;
/// Connections per large buffer, and the minimum number of large buffers.
const CONNECTIONS_PER_LARGE: usize = 10;
const LARGE_MIN: usize = 64;
/// Head length while a response is pending: bytes read then belong to the body.
const ANSWERING: usize = usize::MAX;

/// Permits for large read buffers, shared by all connections.
pub struct ReadBuffers {
    free: Arc<Semaphore>,
    /// Large buffers reserved for one long head each. Neither bodies nor connections that stay open
    /// may take them.
    kept_for_heads: usize,
}

impl ReadBuffers {
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

/// Read state of a connection: the length of the current head, or a body.
#[derive(Debug, Default)]
pub struct Phase {
    head: AtomicUsize,
    is_last: AtomicBool,
}

impl Phase {
    /// The head is complete.
    pub fn begin_answer(&self) {
        self.head.store(ANSWERING, Ordering::Relaxed);
    }

    /// The next bytes belong to the next request's head.
    pub fn end_answer(&self) {
        self.head.store(0, Ordering::Relaxed);
    }

    /// True if the connection closes after its response.
    #[must_use]
    pub fn is_last(&self) -> bool {
        self.is_last.load(Ordering::Relaxed)
    }

    /// Bytes of the current head; none while a body is read.
    fn head(&self) -> Option<usize> {
        Some(self.head.load(Ordering::Relaxed)).filter(|head| *head != ANSWERING)
    }

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

/// Tracks the read buffer of one connection.
pub struct ReadBuffer {
    all: Arc<ReadBuffers>,
    /// Held from the buffer's growth to the end of the connection.
    large: Option<OwnedSemaphorePermit>,
}

impl ReadBuffer {
    /// Starts with a small buffer.
    #[must_use]
    pub fn new(all: &Arc<ReadBuffers>) -> Self {
        Self { all: Arc::clone(all), large: None }
    }

    /// Returns the limit of the next read; none means no limit. A small buffer never reads enough
    /// to become large, so only a long head needs a permit. A body behind a short head needs none.
    ///
    /// # Errors
    /// Returns an error if no permit is free for the rest of a long head.
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

    /// Records a read.
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

    /// Reads `bytes` in pieces, as the limits allow.
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
    fn long_heads_are_limited_to_a_tenth_of_connections() {
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
    fn long_head_closes_connection_below_half_the_permits() {
        let all = ReadBuffers::new(0);
        let taken: Vec<_> = (0..LARGE_MIN).map(|_| read_head(&all, SMALL_MAX + 1)).collect();
        let ends = taken.iter().filter(|(_, phase, _)| phase.is_last()).count();
        assert_eq!(ends, LARGE_MIN / 2);
        assert!(!read_head(&all, SMALL_MAX).1.is_last());
    }

    #[test]
    fn head_count_restarts_after_each_request() {
        let all = ReadBuffers::new(0);
        let _taken: Vec<_> = (0..LARGE_MIN).map(|_| read_head(&all, SMALL_MAX + 1)).collect();
        let (mut buffer, phase) = (ReadBuffer::new(&all), Phase::default());
        for _ in 0..3 {
            assert_eq!(read(&mut buffer, &phase, SMALL_MAX / 2), Ok(()));
            assert_eq!(read(&mut buffer, &phase, SMALL_MAX / 2), Ok(()));
            phase.begin_answer();
            // Bodies are never refused.
            assert_eq!(read(&mut buffer, &phase, SMALL_MAX * 2), Ok(()));
            phase.end_answer();
        }
        assert_eq!(read(&mut buffer, &phase, SMALL_MAX), Ok(()));
        assert_eq!(read(&mut buffer, &phase, 1), Err(NoRoom));
    }

    #[test]
    fn bodies_leave_half_the_permits_to_heads() {
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
        // A body that arrives with its head takes no permit either.
        assert!(read_head(&all, SMALL_MAX).0.large.is_none());
        assert_eq!(read_head(&all, SMALL_MAX + 1).2, Ok(()));
        // A freed permit is used at once.
        drop(taken.pop());
        assert_eq!(read(&mut confined, &phase, SMALL_MAX), Ok(()));
        assert_eq!(confined.next_max(&phase), Ok(None));
    }
}
