//! Drops what this server remembers of queues that it was not asked for lately, so that what it keeps, and has looked at again and
//! again, does not grow with every queue that there ever was. All of it is read again when it is needed.

use std::time::Instant;

use super::PassReport;
use crate::engine::Engine;
use tenure_store::in_use::InUse;

/// Begins a turn of everything that is remembered while it is in use. They last for longer than a claimWork request may wait with
/// the key of its queue.
pub async fn pass(engine: &Engine) -> Result<PassReport, sqlx::Error> {
    let Engine { queues, low_water_marks, notifiers, messages, polled, schedulers, .. } = engine;
    let polled = polled.note(polled.epoch(), InUse::begin_turn).unwrap_or_default();
    let done = queues.drop_idle()
        + low_water_marks.drop_idle()
        + notifiers.drop_idle_generations()
        + messages.drop_outdated()
        // No election goes on where no queue assigns its runs any more.
        + schedulers.terms.drop_idle(Instant::now())
        + notifiers.resolutions().drop_idle(Instant::now())
        + polled;
    Ok(PassReport { found: done, done, ..PassReport::default() })
}
