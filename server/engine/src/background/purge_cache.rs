//! Deletes cache purge requests older than a day, which are already ignored.

use super::{PassReport, SLICE};
use crate::engine::Engine;
use tenure_store::purge_cache;

pub async fn pass(engine: &Engine) -> Result<PassReport, sqlx::Error> {
    let mut conn = engine.background_pool.acquire().await?;
    let gone = purge_cache::purge(&mut conn, engine.due_marks.get().purge_requests, SLICE).await?;
    let done = usize::try_from(gone).unwrap_or(usize::MAX);
    Ok(PassReport { found: done, done, ..PassReport::default() })
}
