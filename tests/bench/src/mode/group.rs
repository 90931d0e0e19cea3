//! Creates tasks in one group, to find contention on the group's row.

use super::Mode;
use crate::BenchError;
use crate::lane::Lane;

pub(crate) struct Group;

impl Mode for Group {
    const STEPS: &'static [&'static str] = &["create"];

    async fn prepare(lane: &mut Lane) -> Result<Self, BenchError> {
        lane.use_the_common_group();
        Ok(Self)
    }

    async fn turn(&mut self, lane: &mut Lane) -> Result<u64, BenchError> {
        lane.create(0).await?;
        lane.run().note_claimed(1);
        Ok(1)
    }
}
