//! Workers that were made known and whose time is over: they are forgotten when their last credentials have ended too.

use super::{Context, PassReport, SLICE};
use crate::store::worker_manager;

/// Forgets a slice of them.
pub async fn pass(context: &Context) -> Result<PassReport, sqlx::Error> {
    let mut conn = context.pool.acquire().await?;
    let gone = worker_manager::forget(&mut conn, SLICE).await?;
    let done = usize::try_from(gone).unwrap_or(usize::MAX);
    Ok(PassReport { found: done, done, ..PassReport::default() })
}
