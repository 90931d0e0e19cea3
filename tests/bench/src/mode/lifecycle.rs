//! Create, claim one, report completed: the whole life of a task in three requests.

use super::Mode;
use crate::BenchError;
use crate::lane::Lane;

/// Nothing is kept between turns. A lane reports what it has claimed, which may be another lane's task; since every
/// lane creates before it claims, there is always one for each.
pub(crate) struct Lifecycle;

impl Mode for Lifecycle {
    const STEPS: &'static [&'static str] = &["create", "claim", "report"];

    async fn prepare(lane: &mut Lane) -> Result<Self, BenchError> {
        if lane.run().task_queues() > 1 {
            lane.share_task_queues();
        }
        Ok(Self)
    }

    async fn turn(&mut self, lane: &mut Lane) -> Result<u64, BenchError> {
        lane.create(0).await?;
        let claims = lane.claim(1, 1).await?;
        for claim in &claims {
            lane.complete(2, claim).await?;
        }
        Ok(claims.len() as u64)
    }
}
