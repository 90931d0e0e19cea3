//! Workers without sessions that hold eight runs each, and wait until one of them ends, which none does. Their first requests wait
//! for different times, so that the others are spread over the time that one waits.

use std::time::Duration;

use super::Mode;
use crate::BenchError;
use crate::lane::{Claim, Lane};

/// Runs of a worker.
const RUNS: usize = 8;
/// The longest that a request can wait.
const WAIT: Duration = Duration::from_secs(30);
/// The column of the only step.
const WATCH: usize = 0;

/// One worker.
pub(crate) struct Watches {
    claims: Vec<Claim>,
    started: bool,
}

impl Mode for Watches {
    const STEPS: &'static [&'static str] = &["watch"];
    const COUNTS: &'static str = "requests";

    async fn prepare(lane: &mut Lane) -> Result<Self, BenchError> {
        for _ in 0..RUNS {
            lane.create_task().await?;
        }
        // All lanes together have created as many as they claim.
        let mut claims = Vec::new();
        while claims.len() < RUNS {
            claims.extend(lane.claim(WATCH, (RUNS - claims.len()) as u8).await?);
        }
        Ok(Self { claims, started: false })
    }

    async fn turn(&mut self, lane: &mut Lane) -> Result<u64, BenchError> {
        let started = std::mem::replace(&mut self.started, true);
        let wait = if started { WAIT } else { WAIT.mul_f64(lane.place()) };
        lane.watch(WATCH, &self.claims, wait.as_secs()).await?;
        lane.count(1);
        Ok(0)
    }
}
