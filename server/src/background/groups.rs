//! Groups. Reads from the event log in which groups tasks were resolved, and tells of those that have none left.

use std::sync::Arc;

use tokio::sync::Mutex;

use super::PassReport;
use crate::engine::Engine;
use crate::store::events;
use crate::store::groups::{self, Witnesses};

/// Unresolved tasks that are remembered, one for each group, so that a look at a large group is short. Nothing is lost
/// when they are forgotten.
const WITNESSES_MAX: usize = 100_000;

/// What the pass remembers from one turn to the next.
pub type Memory = Arc<Mutex<Witnesses>>;

/// Reads the next part of the log.
pub async fn pass(engine: &Engine) -> Result<PassReport, sqlx::Error> {
    let mut conn = engine.pool.acquire().await?;
    events::sequence(&mut conn).await?;
    let mut witnesses = engine.witnesses.lock().await;
    if witnesses.len() > WITNESSES_MAX {
        witnesses.clear();
    }
    let slice = groups::tell_resolved(&mut conn, &mut witnesses).await?;
    Ok(PassReport { found: slice.rows, done: slice.rows, lost_race: usize::from(slice.busy), ..PassReport::default() })
}
