//! Report what is done and take what is next, in one request. Every lane creates as many tasks as it takes, so there is
//! always something to take.

use super::Mode;
use crate::BenchError;
use crate::lane::{Claim, Lane};

/// How many tasks one request creates for those that take many.
pub(super) const CREATED_AT_ONCE: usize = 100;

/// Takes up to this many at once. One at a time is created by createTask, more are created by 100.
pub(crate) struct Work<const LIMIT: usize> {
    /// Claimed, and reported in the next turn.
    held: Vec<Claim>,
    /// Created and not claimed yet.
    ahead: usize,
}

impl<const LIMIT: usize> Mode for Work<LIMIT> {
    const STEPS: &'static [&'static str] = &["create", "work"];

    async fn prepare(_lane: &mut Lane) -> Result<Self, BenchError> {
        Ok(Self { held: Vec::new(), ahead: 0 })
    }

    async fn turn(&mut self, lane: &mut Lane) -> Result<u64, BenchError> {
        if self.ahead < LIMIT {
            if LIMIT == 1 {
                lane.create(0).await?;
                self.ahead += 1;
            } else {
                lane.create_many(0, CREATED_AT_ONCE).await?;
                self.ahead += CREATED_AT_ONCE;
            }
        }
        // After a failure they are reported once more, which is harmless.
        let claims = lane.work(1, &self.held, LIMIT).await?;
        let done = std::mem::replace(&mut self.held, claims).len();
        self.ahead = self.ahead.saturating_sub(self.held.len());
        Ok(done as u64)
    }
}
