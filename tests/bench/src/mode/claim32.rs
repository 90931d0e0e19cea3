//! Claim as many as one request may, and report each. The tasks were created before; the run ends when they are used up.

use super::Mode;
use crate::BenchError;
use crate::lane::Lane;

/// The most that a claimWork may ask for.
const LIMIT: u8 = 32;

/// Nothing is kept between turns.
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
