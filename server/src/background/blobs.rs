//! Stored bytes that nobody needs any more: those that were replaced or deleted, and what is left of uploads that were
//! abandoned, because their server was killed. Which names are still needed is decided by whoever deletes them.

use super::{Context, PassReport, SLICE};

/// Removes a slice of them: first the bytes, then the rows.
pub async fn pass(context: &Context) -> Result<PassReport, sqlx::Error> {
    let (found, done) = context.blobs.sweep(&context.pool, SLICE).await?;
    Ok(PassReport { found, done, ..PassReport::default() })
}
