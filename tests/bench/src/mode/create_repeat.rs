//! Send createTask again for tasks that exist, as a storm of repeats after a 503 does.

use super::Mode;
use crate::BenchError;
use crate::lane::{Creation, Lane};

/// How many tasks each lane repeats.
const TASKS: usize = 50;

/// The requests, each of which was answered once.
pub(crate) struct CreateRepeat {
    creations: Vec<Creation>,
    next: usize,
}

impl Mode for CreateRepeat {
    const STEPS: &'static [&'static str] = &["repeat"];

    async fn prepare(lane: &mut Lane) -> Result<Self, BenchError> {
        let mut creations = Vec::with_capacity(TASKS);
        for _ in 0..TASKS {
            let creation = lane.new_creation();
            lane.send_creation(None, &creation).await?;
            creations.push(creation);
        }
        Ok(Self { creations, next: 0 })
    }

    async fn turn(&mut self, lane: &mut Lane) -> Result<u64, BenchError> {
        self.next = (self.next + 1) % self.creations.len();
        lane.send_creation(0, &self.creations[self.next]).await?;
        Ok(1)
    }
}
