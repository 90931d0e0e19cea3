//! Creates, claims one and reports it completed: the whole life of a task in three requests.

use super::Mode;
use crate::BenchError;
use crate::lane::Lane;

/// A lane reports its claim, which may be another lane's task. Every lane creates before it claims,
/// so each finds a task.
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
