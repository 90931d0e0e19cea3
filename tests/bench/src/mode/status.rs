//! Reads the status of one of many tasks.

use tenure_api::ids::SlugId;

use super::Mode;
use crate::BenchError;
use crate::lane::Lane;

const TASKS: usize = 50;

pub(crate) struct Status {
    tasks: Vec<SlugId>,
}

impl Mode for Status {
    const STEPS: &'static [&'static str] = &["status"];

    async fn prepare(lane: &mut Lane) -> Result<Self, BenchError> {
        let mut tasks = Vec::with_capacity(TASKS);
        for _ in 0..TASKS {
            tasks.push(lane.create_task().await?);
        }
        Ok(Self { tasks })
    }

    async fn turn(&mut self, lane: &mut Lane) -> Result<u64, BenchError> {
        if let Some(task) = lane.random().pick(&self.tasks) {
            lane.status(0, *task).await?;
        }
        Ok(1)
    }
}
