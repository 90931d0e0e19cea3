//! Delays of pending runs. A delayed run is ready when its time has come by `tenure_now()`: never earlier, and later by one look of
//! the passes at most. It takes a new place in its queue, as if it had come then. A pause of the queue changes nothing: its runs are
//! ready, and none is given out.

use sqlx::Connection;

use super::{PassReport, SLICE};
use crate::engine::Engine;
use crate::notifiers::Effects;
use tenure_store::transitions::end_hold;

/// Ends a slice of the delays that are over.
pub async fn pass(engine: &Engine) -> Result<PassReport, sqlx::Error> {
    let mut conn = engine.background_pool.acquire().await?;
    let mut transaction = conn.begin().await?;
    let ready = end_hold::end_holds(&mut transaction, engine.due_marks.get().holds, SLICE).await?;
    if ready.is_empty() {
        transaction.commit().await?;
        return Ok(PassReport::default());
    }
    engine.notifiers.commit(transaction, Effects::claimable(ready.keys().copied())).await?;
    let done = ready.values().sum();
    Ok(PassReport { found: done, done, ..PassReport::default() })
}
