//! Ends claims older than their completeTime by `tenure_now()`, however often renewed. Runs end as
//! claim-expired and are retried like others. Tasks past their deadline are left to the deadline
//! pass.

use super::claims::end_all;
use super::{PassReport, SLICE};
use crate::engine::Engine;
use tenure_domain::policy::ending::Ending;
use tenure_store::claims;

pub async fn pass(engine: &Engine) -> Result<PassReport, sqlx::Error> {
    let mut conn = engine.background_pool.acquire().await?;
    let due = claims::list_slow(&mut conn, engine.due_marks.get().slow, SLICE).await?;
    if due.is_empty() {
        return Ok(PassReport::default());
    }
    end_all(engine, &mut conn, &due, Ending::TooSlow).await
}
