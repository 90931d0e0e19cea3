//! Advances the low-water marks of the queues that this server claims from.

use super::PassReport;
use crate::engine::Engine;

/// Advances them as far as is safe.
pub async fn pass(engine: &Engine) -> Result<PassReport, sqlx::Error> {
    let mut conn = engine.pool.acquire().await?;
    let queues = engine.low_water_marks.advance(&mut conn).await?;
    Ok(PassReport { found: queues, done: queues, ..PassReport::default() })
}
