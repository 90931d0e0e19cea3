//! Shows messages whose visibility timeout has ended, and releases runs whose poller reservation
//! has ended to claimWork. Messages that end with their task are left to the deadline pass.

use super::{PassReport, SLICE};
use crate::engine::Engine;
use crate::notifiers::Effects;
use tenure_store::messages;

pub async fn pass(engine: &Engine) -> Result<PassReport, sqlx::Error> {
    let mut conn = engine.background_pool.acquire().await?;
    let due = messages::show_due(&mut conn, &engine.due_marks.get(), SLICE).await?;
    metrics::counter!("tenure_messages_total", "what" => "returned").increment(due.visible as u64);
    if !due.queues.is_empty() {
        engine.notifiers.apply(Effects::claimable(due.queues));
    }
    Ok(PassReport { found: due.found, done: due.visible + due.released, ..PassReport::default() })
}
