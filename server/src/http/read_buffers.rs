//! Bounds the memory of read buffers by limiting the number of large ones.
//!
//! A buffer grows while a head is incomplete, and with each read that fills it; it never shrinks.
//! The caller is still unknown, so the limit applies to all.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// A longer head, or a longer read, makes a buffer large.
const SMALL_MAX: usize = (16 << 10) - 1;
/// Connections per large buffer, and the minimum of large buffers.
const CONNECTIONS_PER_LARGE: usize = 10;
const LARGE_MIN: usize = 64;
/// Marks that bytes belong to a body.
const ANSWERING: usize = usize::MAX;

/// Permits for large buffers.
pub struct ReadBuffers {
    free: Arc<Semaphore>,
    /// Reserved for one long head each, not for bodies or connections that stay open.
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

#[derive(Debug, Default)]
pub struct Phase {
    head: AtomicUsize,
    is_last: AtomicBool,
}

impl Phase {
    pub fn begin_answer(&self) {
        self.head.store(ANSWERING, Ordering::Relaxed);
    }

    pub fn end_answer(&self) {
        self.head.store(0, Ordering::Relaxed);
    }

    /// True if the connection closes after its response.
    #[must_use]
    pub fn is_last(&self) -> bool {
        self.is_last.load(Ordering::Relaxed)
    }

    /// None while a body is read.
    fn head(&self) -> Option<usize> {
        Some(self.head.load(Ordering::Relaxed)).filter(|head| *head != ANSWERING)
    }

    fn count(&self, bytes: usize) {
        if let Some(head) = self.head() {
            self.head.store(head.saturating_add(bytes).min(ANSWERING - 1), Ordering::Relaxed);
        }
    }
}

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("the heads of other requests use all memory for long heads")]
pub struct NoRoom;

pub struct ReadBuffer {
    all: Arc<ReadBuffers>,
    /// Held until the connection ends.
    large: Option<OwnedSemaphorePermit>,
}

impl ReadBuffer {
    #[must_use]
    pub fn new(all: &Arc<ReadBuffers>) -> Self {
        Self { all: Arc::clone(all), large: None }
    }

    /// Returns the limit of the next read, if any. Fails if a long head needs a permit and none is
    /// free. A small buffer never reads enough to become large, so a body behind a short head needs
    /// no permit.
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
        assert!(read_head(&all, SMALL_MAX).0.large.is_none());
        assert_eq!(read_head(&all, SMALL_MAX + 1).2, Ok(()));
        drop(taken.pop());
        assert_eq!(read(&mut confined, &phase, SMALL_MAX), Ok(()));
        assert_eq!(confined.next_max(&phase), Ok(None));
    }
}
