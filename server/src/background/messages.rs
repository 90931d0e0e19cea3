//! Messages whose hiding has ended become visible again, and runs whose reservation for a poller has ended become
//! claimable by claimWork. Messages that end with their task are the deadline pass's business.

use super::{Context, PassReport, SLICE};
use crate::store::messages;

/// Shows a slice of what is due.
pub async fn pass(context: &Context) -> Result<PassReport, sqlx::Error> {
    let mut conn = context.pool.acquire().await?;
    let due = messages::show_due(&mut conn, SLICE).await?;
    metrics::counter!("tenure_messages_total", "what" => "returned").increment(due.visible as u64);
    context.bells.ring(due.queues);
    Ok(PassReport { found: due.found, done: due.visible + due.released, ..PassReport::default() })
}
