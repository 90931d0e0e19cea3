//! The metrics that Taskcluster's queue has, too. docs/metrics.md lists Tenure's own.

use serde_json::{Map, Value, json};

use tenure_engine::background::{counters, workers};
use tenure_engine::statistics::totals::OF_TASKCLUSTER;

const OF_QUEUES: &str = "queue_";
const RESOLVED: [&str; 4] = ["taskQueueId", "provisionerId", "workerType", "reasonResolved"];

/// A test compares it with the published metrics.
pub(super) fn reference() -> Map<String, Value> {
    let gauges = counters::METRICS.iter().chain(&workers::METRICS).filter(|(name, _)| name.starts_with(OF_QUEUES));
    let mut metrics: Vec<Value> = gauges.map(|&(name, about)| one(name, "gauge", about, &RESOLVED[..1])).collect();
    let [completed, failed, exceptions] = OF_TASKCLUSTER;
    metrics.extend([completed, failed].map(|(name, about)| one(name, "counter", about, &RESOLVED[..3])));
    metrics.push(one(exceptions.0, "counter", exceptions.1, &RESOLVED));
    Map::from_iter([("serviceName".to_owned(), "queue".into()), ("metrics".to_owned(), metrics.into())])
}

fn one(name: &str, kind: &str, about: &str, labels: &[&str]) -> Value {
    json!({"name": name, "type": kind, "description": about, "labelNames": labels})
}
