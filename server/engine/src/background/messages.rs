//! Messages whose hiding has ended become visible again, and runs whose reservation for a poller has ended become
//! claimable by claimWork. Messages that end with their task are the deadline pass's business.

use super::{PassReport, SLICE};
use crate::engine::Engine;
use crate::notifiers::Effects;
use tenure_store::messages;

/// Shows a slice of what is due.
pub async fn pass(engine: &Engine) -> Result<PassReport, sqlx::Error> {
    let mut conn = engine.pool.acquire().await?;
    let due = messages::show_due(&mut conn, SLICE).await?;
    metrics::counter!("tenure_messages_total", "what" => "returned").increment(due.visible as u64);
    if !due.queues.is_empty() {
        engine.notifiers.apply(Effects::claimable(due.queues));
    }
    Ok(PassReport { found: due.found, done: due.visible + due.released, ..PassReport::default() })
}
