//! Ends claims whose lease expired by `tenure_now()`. Their runs end as claim-expired and are
//! retried while retries are left. Tasks past their deadline are left to the deadline pass.

use sqlx::PgConnection;
use uuid::Uuid;

use super::{PassReport, SLICE};
use crate::engine::Engine;
use crate::ops::worker_removed::{self, Ended};
use tenure_domain::policy::ending::Ending;
use tenure_store::claims;

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
    let Ended { runs, retried } = worker_removed::end(conn, &engine.notifiers, due, ending).await?;
    Ok(PassReport {
        found: due.len(),
        done: runs,
        retried,
        exhausted: runs - retried,
        lost_race: due.len() - runs,
        ..PassReport::default()
    })
}
