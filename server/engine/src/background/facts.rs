//! Keeps what this server remembers of small facts new: roles, quarantines, removed workers.

use super::PassReport;
use crate::engine::Engine;

/// Looks which facts have changed, and reads those again.
pub async fn pass(engine: &Engine) -> Result<PassReport, sqlx::Error> {
    let changed = engine.facts.look().await?;
    Ok(PassReport { found: changed, done: changed, ..PassReport::default() })
}
