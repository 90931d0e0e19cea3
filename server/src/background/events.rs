//! Gives positions to new events, and forgets old ones.

use super::{Context, PassReport, SLICE};
use crate::store::events;

/// Gives every event that has none its position. Readers of the log do the same, so that this only keeps the backlog
/// short.
pub async fn sequence(context: &Context) -> Result<PassReport, sqlx::Error> {
    let mut conn = context.pool.acquire().await?;
    let moved = usize::try_from(events::sequence(&mut conn).await?).unwrap_or(usize::MAX);
    Ok(PassReport { found: moved, done: moved, ..PassReport::default() })
}

/// Forgets a slice of the events that are older than the retention.
pub async fn forget(context: &Context) -> Result<PassReport, sqlx::Error> {
    let mut conn = context.pool.acquire().await?;
    let gone = events::forget(&mut conn, context.event_retention, SLICE).await?;
    let gone = usize::try_from(gone).unwrap_or(usize::MAX);
    Ok(PassReport { found: gone, done: gone, ..PassReport::default() })
}
