//! Ends unresolved tasks past their deadline as deadline-exceeded, in any state and without a
//! retry. A report that arrives before this pass reaches the task still counts.

use super::{PassReport, SLICE};
use crate::engine::Engine;
use crate::notifiers::Effects;
use crate::statistics::End;
use tenure_api::states::ReasonResolved;
use tenure_store::deadlines;

pub async fn pass(engine: &Engine) -> Result<PassReport, sqlx::Error> {
    let mut conn = engine.background_pool.acquire().await?;
    let slice = deadlines::end_overdue(&mut conn, engine.due_marks.get().deadlines, SLICE).await?;
    let exhausted = slice.ended.tasks.len();
    if exhausted > 0 {
        engine.notifiers.apply(Effects {
            resolved_unnamed: true,
            ended: End::of_tasks(&slice.ended, ReasonResolved::DeadlineExceeded).collect(),
            admission: slice.ended.queues,
            inboxes: slice.ended.sessions,
            ..Effects::default()
        });
    }
    Ok(PassReport {
        found: slice.found,
        done: slice.dealt_with,
        exhausted,
        lost_race: slice.found - slice.dealt_with,
        ..PassReport::default()
    })
}
