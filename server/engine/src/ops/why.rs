//! Why a task is where it is.

use sqlx::PgPool;
use tenure_api::ids::TaskId;

use super::OpError;
use super::workers::write_down;
use crate::batch::low_water_marks::LowWaterMarks;
use crate::notifiers::Notifiers;
use crate::workers::Workers;
use tenure_store::events::Sequenced;
use tenure_store::why::{self as store, Known};

/// What is looked at with.
#[derive(Clone, Copy)]
pub struct Parts<'a> {
    /// For the transaction.
    pub pool: &'a PgPool,
    /// Where ready runs begin.
    pub marks: &'a LowWaterMarks,
    /// What this server has seen of workers.
    pub workers: &'a Workers,
    /// From where on the changes of counts are to be read.
    pub sequenced: Sequenced,
    /// Wake what waits for the claim of a run.
    pub notifiers: &'a Notifiers,
}

/// What keeps a task where it is, all of it at the same time. Of a run for which no worker has asked it is read again once those are
/// written down that have just asked at this server.
///
/// # Errors
/// If there is no such task.
pub async fn find(parts: Parts<'_>, id: TaskId) -> Result<Known, OpError> {
    let known = read(parts, id).await?;
    if !known.facts.lacks_workers() {
        return Ok(known);
    }
    write_down(parts.pool, parts.workers).await?;
    read(parts, id).await
}

/// The same with the workers that have been written down.
pub(super) async fn read(parts: Parts<'_>, id: TaskId) -> Result<Known, OpError> {
    let Parts { pool, marks, workers: _, sequenced, notifiers: _ } = parts;
    let mut snapshot = store::begin(pool).await?;
    let known = store::find(&mut snapshot, id, sequenced, |queue| marks.get(queue)).await?;
    snapshot.commit().await?;
    known.ok_or_else(|| OpError::NotFound(format!("task {id} does not exist")))
}
