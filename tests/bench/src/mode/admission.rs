//! The life of a task in a queue with limits: a claim decides which waiting run it gets. Measures
//! the decided and claimed runs per second, and the cost of the decision for a claim.

use super::{Lifecycle, Mode};
use crate::BenchError;
use crate::lane::Lane;

const KEYS: u64 = 1_000;
/// Limits that are checked for each run and rarely delay one.
const POLICY: &str = r#"{"concurrency":{"total":10000,"perKey":100},"fair":true}"#;

/// A lane reports its claims, as in the mode without limits.
pub(crate) struct Admission;

impl Mode for Admission {
    const STEPS: &'static [&'static str] = Lifecycle::STEPS;

    async fn prepare(lane: &mut Lane) -> Result<Self, BenchError> {
        lane.put_policy(POLICY).await?;
        lane.use_keys(KEYS);
        Ok(Self)
    }

    async fn turn(&mut self, lane: &mut Lane) -> Result<u64, BenchError> {
        Lifecycle.turn(lane).await
    }
}
