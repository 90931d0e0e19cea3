//! Stores the workers seen by this server, and purges those long unseen by any.

use std::collections::HashMap;
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
    ("queue_idle_workers", "Workers that hold no claim and have lately contacted a server"),
];
const BY_STATE: Metric = ("tenure_workers", "Workers of a task queue by what they do");
/// Values of the label `state`.
const STATES: [&str; 5] = ["working", "idle", "silent", "quarantined", "frozen"];

pub async fn write_down(engine: &Engine) -> Result<PassReport, sqlx::Error> {
    let done = ops::write_down(&engine.background_pool, &engine.workers).await?;
    Ok(PassReport { found: done, done, ..PassReport::default() })
}

#[derive(Debug)]
pub struct WorkerCountsPass {
    pub gauges: QueueGauges<{ METRICS.len() }>,
    pub by_state: QueueGauges<{ STATES.len() }>,
}

impl Default for WorkerCountsPass {
    fn default() -> Self {
        Self { gauges: QueueGauges::new(METRICS), by_state: QueueGauges::labelled(BY_STATE, "state", STATES) }
    }
}

impl WorkerCountsPass {
    pub async fn run(&self, engine: &Engine) -> Result<PassReport, sqlx::Error> {
        let since = engine.worker_counts.epoch();
        let counts = workers::count(&mut *engine.background_pool.acquire().await?, &engine.due_marks.get()).await?;
        let found = counts.len();
        let now = Instant::now();
        engine.shown_queues.admit(counts.iter().map(|counts| counts.queue.as_str()), now);
        let (mut numbers, mut by_state) = (HashMap::new(), HashMap::new());
        for WorkerCounts { queue, total, quarantined, running, frozen, working, idle, silent } in &counts {
            by_state.insert(queue.clone(), [working, idle, silent, quarantined, frozen].map(|number| *number as f64));
            numbers.insert(queue.clone(), [total, quarantined, running, idle].map(|number| *number as f64));
        }
        self.gauges.replace(numbers, now);
        self.by_state.replace(by_state, now);
        engine.worker_counts.replace(since, counts);
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
