//! Pauses between repetitions of work, to bound its share of the time.
//!
//! No other code may compute a pause from a measured time; `scripts/layers` checks that. A
//! notification ends the pause early.

use std::time::Duration;

/// Computes pauses as a multiple of the preceding work's duration, within limits.
#[derive(Debug, Clone, Copy)]
pub struct DutyCycle {
    times: u32,
    least: Duration,
    most: Duration,
}

impl DutyCycle {
    /// `most` bounds the delay after a stall.
    pub const fn new(times: u32, least: Duration, most: Duration) -> Self {
        Self { times, least, most }
    }

    /// Returns the pause after work of this duration. Pass `None` after failures and retries: their
    /// time was spent waiting.
    pub fn pause_after(&self, took: Option<Duration>) -> Duration {
        took.map_or(self.least, |took| took.saturating_mul(self.times)).max(self.least).min(self.most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn pause_grows_with_work_within_limits() {
        let cycle = DutyCycle::new(4, MS * 100, MS * 1_000);
        for (took, pause) in [
            (Duration::ZERO, 100),
            (MS * 10, 100),
            (MS * 100, 400),
            (MS * 250, 1_000),
            (MS * 8_000, 1_000),
            (Duration::MAX, 1_000),
        ] {
            assert_eq!(cycle.pause_after(Some(took)), MS * pause, "{took:?}");
        }
    }

    #[test]
    fn failed_work_does_not_count() {
        assert_eq!(DutyCycle::new(4, MS * 100, MS * 1_000).pause_after(None), MS * 100);
    }

    #[test]
    fn pause_never_exceeds_most() {
        let cycle = DutyCycle::new(10, MS * 20, MS * 10);
        assert_eq!([None, Some(MS * 3_000)].map(|took| cycle.pause_after(took)), [MS * 10; 2]);
    }
}
