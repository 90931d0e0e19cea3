//! Ends unresolved tasks past their deadline as deadline-exceeded, in any state and without a
//! retry. A report that arrives before this pass reaches the task still counts.

use super::{PassReport, SLICE};
use crate::engine::Engine;
use crate::notifiers::Effects;
use tenure_api::states::ReasonResolved;
use tenure_store::deadlines;

pub async fn pass(engine: &Engine) -> Result<PassReport, sqlx::Error> {
    let mut conn = engine.background_pool.acquire().await?;
    let slice = deadlines::end_overdue(&mut conn, engine.due_marks.get().deadlines, SLICE).await?;
    if slice.ended > 0 {
        let resolutions = slice.queues.iter().map(|&queue| (queue, ReasonResolved::DeadlineExceeded)).collect();
        engine.notifiers.apply(Effects {
            resolved_unnamed: true,
            resolutions,
            admission: slice.queues,
            inboxes: slice.sessions,
            ..Effects::default()
        });
    }
    Ok(PassReport {
        found: slice.found,
        done: slice.dealt_with,
        exhausted: slice.ended,
        lost_race: slice.found - slice.dealt_with,
        ..PassReport::default()
    })
}
