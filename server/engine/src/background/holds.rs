//! Ends delays of pending runs. A delayed run becomes ready by `tenure_now()`: never early, at most
//! one poll late. It is queued as if it had arrived then. Runs of a paused queue become ready too,
//! but none is dispatched.

use sqlx::Connection;

use super::{PassReport, SLICE};
use crate::engine::Engine;
use crate::notifiers::Effects;
use tenure_store::transitions::end_hold;

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
