//! Purges expired registered workers once their last credentials have expired too.

use super::{PassReport, SLICE};
use crate::engine::Engine;
use tenure_store::worker_manager;

pub async fn pass(engine: &Engine) -> Result<PassReport, sqlx::Error> {
    let mut conn = engine.background_pool.acquire().await?;
    let gone = worker_manager::purge(&mut conn, engine.due_marks.get().registered_workers, SLICE).await?;
    let done = usize::try_from(gone).unwrap_or(usize::MAX);
    Ok(PassReport { found: done, done, ..PassReport::default() })
}
