//! Ends claims whose lease expired by `tenure_now()`. Their runs end as claim-expired and are
//! retried while retries are left. Tasks past their deadline are left to the deadline pass.

use sqlx::PgConnection;
use tenure_api::ids::{SlugId, TaskQueueId};
use tenure_api::states::EndedBy;
use uuid::Uuid;

use super::{PassReport, SLICE};
use crate::engine::Engine;
use crate::ops::worker_removed::{self, Ended};
use tenure_domain::policy::ending::Ending;
use tenure_store::claims;
use tenure_store::transitions::end::Resolved;

/// Lost runs logged one by one in each pass.
const LOGGED_MAX: usize = 100;

pub async fn pass(engine: &Engine) -> Result<PassReport, sqlx::Error> {
    let mut conn = engine.background_pool.acquire().await?;
    let due = claims::list_due(&mut conn, engine.due_marks.get().claims, SLICE).await?;
    if due.is_empty() {
        return Ok(PassReport::default());
    }
    end_all(engine, &mut conn, &due, Ending::LeaseExpired).await
}

pub(super) async fn end_all(
    engine: &Engine,
    conn: &mut PgConnection,
    due: &[(Uuid, i16)],
    ending: Ending,
) -> Result<PassReport, sqlx::Error> {
    let Ended { runs: lost, retried } = worker_removed::end(conn, &engine.notifiers, due, ending).await?;
    log(engine, conn, &lost, ending).await;
    let runs = lost.len();
    Ok(PassReport {
        found: due.len(),
        done: runs,
        retried,
        exhausted: runs - retried,
        lost_race: due.len() - runs,
        ..PassReport::default()
    })
}

/// Logs the lost runs, up to [`LOGGED_MAX`], and the number of the others.
async fn log(engine: &Engine, conn: &mut PgConnection, lost: &[Resolved], ending: Ending) {
    let ended_by = ending.ended_by().map(EndedBy::as_str);
    for run in lost.iter().take(LOGGED_MAX) {
        // Its end is committed: the line must not depend on the database.
        let queue = engine.queues.get_name_on(conn, run.queue).await.ok();
        tracing::info!(
            task.id = %SlugId::from_uuid(run.id).map_or_else(|| run.id.to_string(), |id| id.to_string()),
            run.id = run.run,
            queue.id = queue.as_ref().map(TaskQueueId::as_str),
            worker.group = run.worker_group,
            worker.id = run.worker_id,
            ended_by,
            "a run was lost with its claim"
        );
    }
    let others = lost.len().saturating_sub(LOGGED_MAX);
    if others > 0 {
        tracing::info!(runs = others, ended_by, "further runs were lost with their claims");
    }
}
