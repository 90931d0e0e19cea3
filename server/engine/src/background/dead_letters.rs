//! Publishes the numbers of dead letters. Without any, it reads one row of an index.

use std::collections::HashMap;
use std::time::Instant;

use super::PassReport;
use crate::engine::Engine;
use crate::gauges::{Metric, QueueGauges};
use tenure_store::{dead_letters, page};

pub const METRICS: [Metric; 1] =
    [("tenure_queue_dead_letters", "Failed tasks of a task queue that wait to be run again, counted up to 10,000")];

#[derive(Debug)]
pub struct DeadLettersPass {
    pub gauges: QueueGauges<{ METRICS.len() }>,
}

impl Default for DeadLettersPass {
    fn default() -> Self {
        Self { gauges: QueueGauges::new(METRICS) }
    }
}

impl DeadLettersPass {
    pub async fn run(&self, engine: &Engine) -> Result<PassReport, sqlx::Error> {
        let mut conn = page::begin(&engine.background_pool).await?;
        let counted = dead_letters::count(&mut conn).await?;
        conn.commit().await?;
        let (number, now) = (counted.len(), Instant::now());
        engine.shown_queues.admit(counted.iter().map(|(queue, _)| queue.as_str()), now);
        let found: HashMap<_, _> = counted.into_iter().map(|(queue, letters)| (queue, [letters as f64])).collect();
        self.gauges.replace(found, now);
        Ok(PassReport { found: number, done: number, ..PassReport::default() })
    }
}
