//! Why a task does not run.

use sqlx::PgPool;
use tenure_api::ids::TaskId;

use super::OpError;
use super::workers::write_down;
use crate::batch::low_water_marks::LowWaterMarks;
use crate::notifiers::Notifiers;
use crate::workers::Workers;
use tenure_store::enqueued;
use tenure_store::events::Sequenced;
use tenure_store::why::{self as store, Known};

#[derive(Clone, Copy)]
pub struct Parts<'a> {
    pub pool: &'a PgPool,
    /// Scan starts for ready runs.
    pub marks: &'a LowWaterMarks,
    /// Recent sightings at this server.
    pub workers: &'a Workers,
    /// Position after which counter changes are read.
    pub sequenced: Sequenced,
    pub notifiers: &'a Notifiers,
}

/// Returns the facts that hold a task back, from one snapshot. If no worker seems to want the run,
/// stores this server's recent sightings and reads again.
///
/// # Errors
/// If the task does not exist.
pub async fn find(parts: Parts<'_>, id: TaskId) -> Result<Known, OpError> {
    let known = read(parts, id).await?;
    if !known.facts.lacks_workers() {
        return Ok(known);
    }
    write_down(parts.pool, parts.workers).await?;
    read(parts, id).await
}

/// Like [`find`], with only the stored sightings.
pub(super) async fn read(parts: Parts<'_>, id: TaskId) -> Result<Known, OpError> {
    let Parts { pool, marks, workers: _, sequenced, notifiers: _ } = parts;
    let mut snapshot = store::begin(pool).await?;
    let known = store::find(&mut snapshot, id, sequenced, |queue| marks.get(queue)).await?;
    snapshot.commit().await?;
    match known {
        Some(known) => Ok(known),
        None => Err(missing(pool, id).await?),
    }
}

/// The reason is shown to those who may list refused tasks.
async fn missing(pool: &PgPool, id: TaskId) -> Result<OpError, sqlx::Error> {
    let why = match enqueued::find_waiting(pool, id.uuid()).await? {
        None => "does not exist",
        Some(None) => "was enqueued from SQL and waits for its creation",
        Some(Some(_)) => "was enqueued from SQL and refused; listRefusedEnqueues has the reason",
    };
    Ok(OpError::NotFound(format!("task {id} {why}")))
}
