//! Deletes recorded changes older than the retention, oldest first.

use super::{PassReport, SLICE};
use crate::engine::Engine;
use tenure_store::audit;

pub async fn pass(engine: &Engine) -> Result<PassReport, sqlx::Error> {
    let mut conn = engine.background_pool.acquire().await?;
    let gone = audit::purge(&mut conn, engine.settings.audit_retention, SLICE).await?;
    let done = usize::try_from(gone).unwrap_or(usize::MAX);
    Ok(PassReport { found: done, done, ..PassReport::default() })
}
