//! Deletes idempotency keys older than a day, which are already ignored.

use super::{PassReport, SLICE};
use crate::engine::Engine;
use crate::ops::submit::KEY_KEPT;
use tenure_store::idempotency;

pub async fn pass(engine: &Engine) -> Result<PassReport, sqlx::Error> {
    let mut conn = engine.background_pool.acquire().await?;
    let gone = idempotency::purge(&mut conn, engine.due_marks.get().idempotency_keys, KEY_KEPT, SLICE).await?;
    let done = usize::try_from(gone).unwrap_or(usize::MAX);
    Ok(PassReport { found: done, done, ..PassReport::default() })
}
