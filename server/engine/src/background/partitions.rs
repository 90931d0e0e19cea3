//! Partition groups: publishes their gauges. It moves no group: only calls of members do.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};

use super::PassReport;
use crate::engine::Engine;
use tenure_store::partitions;

#[derive(Debug, Default)]
pub struct PartitionsPass {
    /// Names with gauges.
    shown: Mutex<BTreeSet<String>>,
}

impl PartitionsPass {
    pub async fn run(&self, engine: &Engine) -> Result<PassReport, sqlx::Error> {
        let (groups, members) = if engine.facts.partitions.get().is_empty() {
            (Vec::new(), BTreeMap::new())
        } else {
            let mut conn = engine.background_pool.acquire().await?;
            (partitions::list(&mut *conn).await?, partitions::count_members(&mut conn).await?)
        };
        let mut shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        let found: BTreeSet<String> = groups.iter().map(|stored| stored.name.clone()).collect();
        for gone in shown.difference(&found) {
            show(gone, 0, 0, 0.0);
        }
        for stored in &groups {
            let draining = stored.group.next.map_or(0.0, |next| (stored.now - next.since).as_seconds_f64().max(0.0));
            show(&stored.name, stored.group.epoch, members.get(&stored.id).copied().unwrap_or(0), draining);
        }
        *shown = found;
        Ok(PassReport::default())
    }
}

/// A deleted group keeps zeros.
fn show(name: &str, epoch: i64, members: i64, draining_seconds: f64) {
    metrics::gauge!("tenure_partition_epoch", "name" => name.to_owned()).set(epoch as f64);
    metrics::gauge!("tenure_partition_members", "name" => name.to_owned()).set(members as f64);
    metrics::gauge!("tenure_partition_draining_seconds", "name" => name.to_owned()).set(draining_seconds);
}
