//! Deletes unreferenced bytes: replaced, deleted, or left by uploads whose server was killed. The
//! code that deletes references decides which they are.

use super::{PassReport, SLICE};
use crate::engine::Engine;

/// Deletes bytes before rows.
pub async fn pass(engine: &Engine) -> Result<PassReport, sqlx::Error> {
    let (found, done) = engine.blobs.sweep(&engine.background_pool, engine.due_marks.get().blobs, SLICE).await?;
    Ok(PassReport { found, done, ..PassReport::default() })
}
