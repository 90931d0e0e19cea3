//! Claims as many tasks as one request may, and reports each. Either the tasks were created before
//! and the run ends with the last one, or each lane creates as many as it takes.

use super::Mode;
use super::work::CREATED_AT_ONCE;
use crate::BenchError;
use crate::lane::Lane;

/// Maximum of a claimWork.
const LIMIT: u8 = 32;

pub(crate) struct Claim32;

impl Mode for Claim32 {
    const STEPS: &'static [&'static str] = &["claim", "report"];

    async fn prepare(_lane: &mut Lane) -> Result<Self, BenchError> {
        Ok(Self)
    }

    async fn turn(&mut self, lane: &mut Lane) -> Result<u64, BenchError> {
        let claims = lane.claim(0, LIMIT).await?;
        for claim in &claims {
            lane.complete(1, claim).await?;
            lane.count(1);
        }
        lane.run().note_claimed(claims.len() as u64);
        Ok(0)
    }
}

pub(crate) struct Single32 {
    ahead: usize,
}

impl Mode for Single32 {
    const STEPS: &'static [&'static str] = &["create", "claim", "report"];

    async fn prepare(_lane: &mut Lane) -> Result<Self, BenchError> {
        Ok(Self { ahead: 0 })
    }

    async fn turn(&mut self, lane: &mut Lane) -> Result<u64, BenchError> {
        if self.ahead < usize::from(LIMIT) {
            lane.create_many(0, CREATED_AT_ONCE).await?;
            self.ahead += CREATED_AT_ONCE;
        }
        let claims = lane.claim(1, LIMIT).await?;
        for claim in &claims {
            lane.complete(2, claim).await?;
            lane.count(1);
        }
        self.ahead = self.ahead.saturating_sub(claims.len());
        Ok(0)
    }
}
