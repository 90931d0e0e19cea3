//! Stored bytes that are not referenced any more: those that were replaced or deleted, and the remains of uploads that were
//! abandoned because their server was killed. Which names are still referenced is decided by the code that deletes them.

use super::{PassReport, SLICE};
use crate::engine::Engine;

/// Deletes a slice of them: first the bytes, then the rows.
pub async fn pass(engine: &Engine) -> Result<PassReport, sqlx::Error> {
    let (found, done) = engine.blobs.sweep(&engine.background_pool, engine.due_marks.get().blobs, SLICE).await?;
    Ok(PassReport { found, done, ..PassReport::default() })
}
