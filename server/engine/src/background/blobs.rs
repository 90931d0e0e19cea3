//! Stored bytes that nobody needs any more: those that were replaced or deleted, and what is left of uploads that were
//! abandoned, because their server was killed. Which names are still needed is decided by whoever deletes them.

use super::{PassReport, SLICE};
use crate::engine::Engine;

/// Removes a slice of them: first the bytes, then the rows.
pub async fn pass(engine: &Engine) -> Result<PassReport, sqlx::Error> {
    let (found, done) = engine.blobs.sweep(&engine.pool, SLICE).await?;
    Ok(PassReport { found, done, ..PassReport::default() })
}
