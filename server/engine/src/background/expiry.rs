//! Expiry. Forgets tasks that have expired, and then groups that have and are empty.

use super::PassReport;
use crate::engine::Engine;
use tenure_store::transitions::purge;

/// Forgets a slice of tasks and a slice of groups.
pub async fn pass(engine: &Engine) -> Result<PassReport, sqlx::Error> {
    let mut conn = engine.pool.acquire().await?;
    let tasks = purge::forget_tasks(&mut conn).await?;
    let groups = purge::forget_groups(&mut conn).await?;
    let (found, done) = (tasks.found + groups.found, tasks.forgotten + groups.forgotten);
    Ok(PassReport { found, done, lost_race: found.saturating_sub(done), ..PassReport::default() })
}
