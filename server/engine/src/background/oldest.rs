//! Publishes the ages of the oldest pending runs of the fullest queues. If they cannot be read in
//! time, as during a long transaction, the last ones stay.

use std::collections::HashMap;
use std::time::Instant;

use chrono::{DateTime, Utc};

use super::PassReport;
use crate::engine::Engine;
use crate::gauges::{Metric, QueueGauges};
use tenure_store::clock;
use tenure_store::page::{self, Asked, Oldest};

pub const METRICS: [Metric; 2] = [
    (
        "tenure_oldest_runnable_seconds",
        "Age of the oldest run that limits allow to start, given a worker; 0 without one",
    ),
    (
        "tenure_oldest_held_seconds",
        "Age of the oldest run that waits for a limit, or for its session to accept it; 0 without one",
    ),
];

#[derive(Debug)]
pub struct OldestPass {
    pub gauges: QueueGauges<{ METRICS.len() }>,
}

impl Default for OldestPass {
    fn default() -> Self {
        Self { gauges: QueueGauges::new(METRICS) }
    }
}

impl OldestPass {
    pub async fn run(&self, engine: &Engine) -> Result<PassReport, sqlx::Error> {
        let mut conn = page::begin(&engine.background_pool).await?;
        let now = clock::get_now(&mut conn).await?;
        let queues = page::list_queues(&mut conn, engine.sequencer.reached(), None).await?;
        let asked: HashMap<i32, Asked> = queues
            .iter()
            .filter(|queue| queue.pending > 0)
            .map(|queue| (queue.key, queue.asked(engine.low_water_marks.peek(queue.key))))
            .collect();
        let oldest = if asked.is_empty() { Some(HashMap::new()) } else { page::list_oldest(&mut conn, &asked).await? };
        conn.commit().await?;
        let Some(oldest) = oldest else { return Ok(PassReport::default()) };
        let found = queues
            .into_iter()
            .filter_map(|queue| Some((queue.name, seconds(oldest.get(&queue.key)?, now))))
            .collect::<HashMap<_, _>>();
        let number = found.len();
        self.gauges.replace(found, Instant::now());
        Ok(PassReport { found: number, done: number, ..PassReport::default() })
    }
}

fn seconds(oldest: &Oldest, now: DateTime<Utc>) -> [f64; METRICS.len()] {
    let age = |time: Option<DateTime<Utc>>| time.map_or(0.0, |time| (now - time).as_seconds_f64().max(0.0));
    [age(oldest.runnable), age(oldest.held)]
}
