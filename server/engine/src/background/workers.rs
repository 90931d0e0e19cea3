//! Stores the workers seen by this server, and purges those long unseen by any.

use std::time::Instant;

use super::{PassReport, SLICE};
use crate::engine::Engine;
use crate::gauges::{Metric, QueueGauges};
use crate::ops::workers as ops;
use tenure_store::workers::WorkerCounts;
use tenure_store::{queue_views, workers};

pub const METRICS: [Metric; 4] = [
    ("queue_workers_total", "Workers of a task queue that were seen within a day, or are quarantined"),
    ("queue_quarantined_workers", "Workers that are quarantined"),
    ("queue_running_workers", "Workers that hold a claim"),
    ("queue_idle_workers", "Workers that hold no claim"),
];

pub async fn write_down(engine: &Engine) -> Result<PassReport, sqlx::Error> {
    let done = ops::write_down(&engine.background_pool, &engine.workers).await?;
    Ok(PassReport { found: done, done, ..PassReport::default() })
}

#[derive(Debug)]
pub struct WorkerCountsPass {
    pub gauges: QueueGauges<{ METRICS.len() }>,
}

impl Default for WorkerCountsPass {
    fn default() -> Self {
        Self { gauges: QueueGauges::new(METRICS) }
    }
}

impl WorkerCountsPass {
    pub async fn run(&self, engine: &Engine) -> Result<PassReport, sqlx::Error> {
        let counts = workers::count(&mut *engine.background_pool.acquire().await?, &engine.due_marks.get()).await?;
        let found = counts.len();
        let numbers = counts.into_iter().map(|WorkerCounts { queue, total, quarantined, running }| {
            (queue, [total, quarantined, running, total - quarantined - running].map(|number| number as f64))
        });
        self.gauges.replace(numbers.collect(), Instant::now());
        Ok(PassReport { found, done: found, ..PassReport::default() })
    }
}

/// Purges a slice of the workers and of the queues that are no longer listed.
pub async fn purge(engine: &Engine) -> Result<PassReport, sqlx::Error> {
    let mut conn = engine.background_pool.acquire().await?;
    let workers = workers::purge(&mut conn, engine.due_marks.get().workers, SLICE).await?;
    let queues = queue_views::purge(&mut conn, SLICE).await?;
    let count = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
    let found = count(workers.found.cast_unsigned()).saturating_add(count(queues));
    // Workers not due yet count as done: they are due later.
    Ok(PassReport { found, done: found, ..PassReport::default() })
}
