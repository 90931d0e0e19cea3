//! Ages of the oldest pending runs, for the metrics.

use std::collections::HashMap;
use std::time::Instant;

use chrono::{DateTime, Utc};

use crate::gauges::{Metric, QueueGauges};
use tenure_store::page::Oldest;
use tenure_store::problems::PendingQueue;

const METRICS: [Metric; 2] = [
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
pub struct OldestRuns {
    pub gauges: QueueGauges<{ METRICS.len() }>,
}

impl Default for OldestRuns {
    fn default() -> Self {
        Self { gauges: QueueGauges::new(METRICS) }
    }
}

impl OldestRuns {
    pub(super) fn publish(&self, pending: &[PendingQueue], oldest: &HashMap<i32, Oldest>, now: DateTime<Utc>) {
        let ages = pending.iter().filter_map(|queue| Some((queue.name.clone(), ages(oldest.get(&queue.key)?, now))));
        self.gauges.replace(ages.collect(), Instant::now());
    }
}

fn ages(oldest: &Oldest, now: DateTime<Utc>) -> [f64; METRICS.len()] {
    let age = |time: Option<DateTime<Utc>>| time.map_or(0.0, |time| (now - time).as_seconds_f64().max(0.0));
    [age(oldest.runnable), age(oldest.held)]
}
