//! Evicts cached state of idle queues, so that memory and periodic work do not grow with every
//! queue that ever existed. Evicted state is read again on demand.

use std::time::Instant;

use super::PassReport;
use crate::engine::Engine;
use tenure_store::in_use::InUse;

/// Generations last longer than a claimWork request may wait with the key of its queue.
pub async fn pass(engine: &Engine) -> Result<PassReport, sqlx::Error> {
    let Engine { queues, low_water_marks, notifiers, messages, polled, schedulers, .. } = engine;
    let polled = polled.update(polled.epoch(), InUse::begin_turn).unwrap_or_default();
    let done = queues.drop_idle()
        + low_water_marks.drop_idle()
        + notifiers.drop_idle_generations()
        + messages.drop_outdated()
        // Nothing else drops these gauges: elections stop when no queue assigns its runs.
        + schedulers.terms.drop_idle(Instant::now())
        + notifiers.statistics().drop_idle(Instant::now())
        + polled;
    Ok(PassReport { found: done, done, ..PassReport::default() })
}
