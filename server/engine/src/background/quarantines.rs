//! Ends quarantines. The worker was refused runs assigned before, and may have acknowledged their
//! items. The items reappear in its inbox a second after the end, when every server has noticed.

use sqlx::Connection;

use super::{PassReport, SLICE};
use crate::engine::Engine;
use crate::notifiers::Effects;
use tenure_store::admission;
use tenure_store::session::plan_as_hot;

pub async fn pass(engine: &Engine) -> Result<PassReport, sqlx::Error> {
    if !engine.sessions.activity.any() {
        return Ok(PassReport::default());
    }
    let mut conn = engine.background_pool.acquire().await?;
    let mut transaction = conn.begin().await?;
    plan_as_hot(&mut transaction).await?;
    let inboxes = admission::announce_after_quarantine(&mut transaction, SLICE).await?;
    if inboxes.is_empty() {
        return Ok(PassReport::default());
    }
    let done = inboxes.len();
    engine.notifiers.commit(transaction, Effects { inboxes, ..Effects::default() }).await?;
    Ok(PassReport { found: done, done, ..PassReport::default() })
}
