//! This process's real time, for timestamps of clients and for display. Stored times, and times
//! compared with them, come from the database (invariant I3).

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use chrono::{DateTime, TimeDelta, Utc};

#[expect(clippy::disallowed_methods, reason = "the one place where the process' clock is read")]
pub fn real_now() -> DateTime<Utc> {
    DateTime::<Utc>::from(std::time::SystemTime::now())
}

/// How far the database's clock was ahead at the last measurement; zero before the first. Clones
/// share it.
#[derive(Debug, Clone, Default)]
pub struct ClockSkew {
    millis: Arc<AtomicI64>,
}

impl ClockSkew {
    pub fn set(&self, ahead: TimeDelta) {
        self.millis.store(ahead.num_milliseconds(), Ordering::Relaxed);
    }

    /// Milliseconds to add to this process's clock.
    pub fn millis(&self) -> i64 {
        self.millis.load(Ordering::Relaxed)
    }
}
