//! Sequences new events, and purges old ones.

use super::{PassReport, SLICE};
use crate::engine::Engine;
use tenure_store::events;

/// Sequences new events and adds their changes to the counts. Readers of the log do the same; this
/// pass keeps the backlog short.
pub async fn sequence(engine: &Engine) -> Result<PassReport, sqlx::Error> {
    let mut conn = engine.background_pool.acquire().await?;
    let moved = usize::try_from(engine.sequencer.run(&mut conn).await?).unwrap_or(usize::MAX);
    Ok(PassReport { found: moved, done: moved, ..PassReport::default() })
}

pub async fn purge(engine: &Engine) -> Result<PassReport, sqlx::Error> {
    let mut conn = engine.background_pool.acquire().await?;
    let (since, begins) = (engine.sequencer.epoch(), engine.sequencer.begins());
    let purged = events::purge(&mut conn, begins, engine.settings.event_retention, SLICE).await?;
    engine.sequencer.note_begins(since, purged.begins);
    let gone = usize::try_from(purged.rows).unwrap_or(usize::MAX);
    Ok(PassReport { found: gone, done: gone, ..PassReport::default() })
}
