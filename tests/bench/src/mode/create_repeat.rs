//! Repeats createTask for existing tasks, as clients do after a 503.

use super::Mode;
use crate::BenchError;
use crate::lane::{Creation, Lane};

const TASKS: usize = 50;

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
