//! Moves the low-water marks of the queues that this server claims from.

use super::{Context, PassReport};
use crate::batch::marks::MarkTable;

/// Moves the marks as far as is safe.
pub async fn pass(context: &Context, marks: &MarkTable) -> Result<PassReport, sqlx::Error> {
    let mut conn = context.pool.acquire().await?;
    let queues = marks.advance(&mut conn).await?;
    Ok(PassReport { found: queues, done: queues, ..PassReport::default() })
}
