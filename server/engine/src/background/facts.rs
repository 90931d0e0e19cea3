//! Refreshes the small facts that this server caches: roles, quarantines, removed workers.

use super::PassReport;
use crate::engine::Engine;

pub async fn pass(engine: &Engine) -> Result<PassReport, sqlx::Error> {
    let changed = engine.facts.refresh().await?;
    Ok(PassReport { found: changed, done: changed, ..PassReport::default() })
}
