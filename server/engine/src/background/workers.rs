//! Workers: writes down which this server has seen, and purges those that no server has seen for long.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use super::{PassReport, SLICE};
use crate::engine::Engine;
use crate::ops::workers as ops;
use tenure_store::workers::WorkerCounts;
use tenure_store::{queue_views, workers};

/// The metrics of a queue's workers.
const NUMBERS: [&str; 4] =
    ["queue_workers_total", "queue_quarantined_workers", "queue_running_workers", "queue_idle_workers"];

/// Queues with workers in the last count.
pub type CountedQueues = Mutex<BTreeSet<String>>;

/// Writes down which workers this server has seen.
pub async fn write_down(engine: &Engine) -> Result<PassReport, sqlx::Error> {
    let done = ops::write_down(&engine.pool, &engine.workers).await?;
    Ok(PassReport { found: done, done, ..PassReport::default() })
}

/// Counts workers by their state. Queues that had some in the last count and have none now are published with zero.
pub async fn count(engine: &Engine) -> Result<PassReport, sqlx::Error> {
    let counts = workers::count(&mut *engine.pool.acquire().await?, &engine.due_marks.get()).await?;
    let found = counts.len();
    let publish = |name: &'static str, queue: &str, number: i64| {
        metrics::gauge!(name, "taskQueueId" => queue.to_owned()).set(number as f64);
    };
    let mut counted = engine.counted_queues.lock().unwrap_or_else(PoisonError::into_inner);
    let mut gone = std::mem::take(&mut *counted);
    for WorkerCounts { queue, total, quarantined, running } in counts {
        publish("queue_workers_total", &queue, total);
        publish("queue_quarantined_workers", &queue, quarantined);
        publish("queue_running_workers", &queue, running);
        publish("queue_idle_workers", &queue, total - quarantined - running);
        gone.remove(&queue);
        counted.insert(queue);
    }
    for queue in gone {
        for name in NUMBERS {
            publish(name, &queue, 0);
        }
    }
    Ok(PassReport { found, done: found, ..PassReport::default() })
}

/// Purges a slice of the workers and of the queues that are not shown any more.
pub async fn purge(engine: &Engine) -> Result<PassReport, sqlx::Error> {
    let mut conn = engine.pool.acquire().await?;
    let workers = workers::purge(&mut conn, engine.due_marks.get().workers, SLICE).await?;
    let queues = queue_views::purge(&mut conn, SLICE).await?;
    let count = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
    let found = count(workers.found.cast_unsigned()).saturating_add(count(queues));
    // A worker that was not due yet counts as done: it is due later.
    Ok(PassReport { found, done: found, ..PassReport::default() })
}
