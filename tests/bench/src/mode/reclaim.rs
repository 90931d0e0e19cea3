//! Renews a claim repeatedly. Each lane holds one task all the time.

use super::Mode;
use crate::BenchError;
use crate::lane::{Claim, Lane};

const RECLAIM: usize = 0;

pub(crate) struct Reclaim {
    claim: Claim,
}

impl Mode for Reclaim {
    const STEPS: &'static [&'static str] = &["reclaim"];

    async fn prepare(lane: &mut Lane) -> Result<Self, BenchError> {
        lane.create_task().await?;
        // The window is not open yet, so this claim is not measured.
        let claim = lane.claim(RECLAIM, 1).await?.pop();
        let reason = "no task, although one was created".to_owned();
        Ok(Self { claim: claim.ok_or(BenchError::Answer { what: "claimWork", reason })? })
    }

    async fn turn(&mut self, lane: &mut Lane) -> Result<u64, BenchError> {
        lane.renew(RECLAIM, &mut self.claim).await?;
        Ok(1)
    }
}
