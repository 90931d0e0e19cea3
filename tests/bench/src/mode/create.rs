//! Creates tasks and leaves them pending.

use super::Mode;
use crate::BenchError;
use crate::lane::Lane;

pub(crate) struct Create;

impl Mode for Create {
    const STEPS: &'static [&'static str] = &["create"];

    async fn prepare(_lane: &mut Lane) -> Result<Self, BenchError> {
        Ok(Self)
    }

    async fn turn(&mut self, lane: &mut Lane) -> Result<u64, BenchError> {
        lane.create(0).await?;
        Ok(1)
    }
}
