//! Expiry. Purges tasks that have expired, and then groups that have expired and are empty.

use super::PassReport;
use crate::engine::Engine;
use tenure_store::transitions::purge;

/// Purges a slice of tasks and a slice of groups.
pub async fn pass(engine: &Engine) -> Result<PassReport, sqlx::Error> {
    let mut conn = engine.pool.acquire().await?;
    let marks = engine.due_marks.get();
    let tasks = purge::purge_tasks(&mut conn, engine.sequencer.reached(), marks.tasks).await?;
    let groups = purge::purge_groups(&mut conn, marks.groups).await?;
    let (found, done) = (tasks.found + groups.found, tasks.purged + groups.purged);
    Ok(PassReport { found, done, lost_race: found.saturating_sub(done), ..PassReport::default() })
}
