//! Detects replication that commits do not wait for: a failover would lose acknowledged data. Warns
//! once per change; nothing is refused.

use std::sync::{Mutex, PoisonError};

use super::PassReport;
use crate::engine::Engine;
use tenure_store::cluster::Warning;
use tenure_store::replication::{self, Replication};

#[derive(Debug, Default)]
pub struct ReplicationPass {
    warned: Mutex<Vec<Warning>>,
}

impl ReplicationPass {
    /// Returns true if a warning appeared or disappeared.
    fn say(&self, now: &Replication) -> bool {
        let warnings = now.find_warnings();
        let mut warned = self.warned.lock().unwrap_or_else(PoisonError::into_inner);
        let standbys = now.standbys.join(", ");
        for warning in warnings.iter().filter(|warning| !warned.contains(warning)) {
            tracing::warn!(setting = warning.setting, value = warning.value, standbys, "{}", warning.advice);
        }
        if warnings.is_empty() && !warned.is_empty() {
            if now.synchronous_names.trim().is_empty() {
                tracing::info!("the asynchronous standby has disconnected");
            } else {
                tracing::info!(value = now.synchronous_names, standbys, "replication is synchronous again");
            }
        }
        let changed = *warned != warnings;
        *warned = warnings;
        changed
    }

    pub async fn run(&self, engine: &Engine) -> Result<PassReport, sqlx::Error> {
        let mut conn = engine.background_pool.acquire().await?;
        let now = replication::get(&mut conn).await?;
        let changed = self.say(&now);
        metrics::gauge!("tenure_replication_standbys").set(now.standbys.len() as f64);
        let is_safe = now.find_warnings().is_empty();
        metrics::gauge!("tenure_replication_synchronous").set(f64::from(u8::from(is_safe)));
        Ok(PassReport { found: 1, done: usize::from(changed), ..PassReport::default() })
    }
}
