//! The whole life of tasks at a given rate, however slow the answers are. Requests refused with 503
//! are counted by kind and not repeated. A turn whose connection is still busy is skipped and
//! counted too.

use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use super::Mode;
use crate::BenchError;
use crate::lane::Lane;

const SHED: u16 = 503;

pub(crate) struct Overload {
    period: Duration,
    next: Option<Instant>,
}

impl Mode for Overload {
    const STEPS: &'static [&'static str] = &["create", "claim", "report"];

    async fn prepare(lane: &mut Lane) -> Result<Self, BenchError> {
        Ok(Self { period: lane.run().period(), next: None })
    }

    async fn turn(&mut self, lane: &mut Lane) -> Result<u64, BenchError> {
        let mut begin = self.next.unwrap_or_else(|| Instant::now() + self.period.mul_f64(lane.place()));
        while begin + self.period < Instant::now() {
            lane.note_failed("a turn was left out: its connection was busy".to_owned());
            begin += self.period;
        }
        self.next = Some(begin + self.period);
        sleep_until(begin).await;
        match one_life(lane).await {
            Err(BenchError::Refused { what, status: SHED, .. }) => {
                lane.note_failed(format!("{what} was answered with {SHED}"));
                Ok(0)
            }
            other => other,
        }
    }
}

async fn one_life(lane: &mut Lane) -> Result<u64, BenchError> {
    lane.create(0).await?;
    let claims = lane.claim(1, 1).await?;
    for claim in &claims {
        lane.complete(2, claim).await?;
    }
    Ok(claims.len() as u64)
}
