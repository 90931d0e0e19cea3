//! Why a task is where it is.

use tenure_api::ids::TaskId;

use super::OpError;
use crate::engine::Engine;
use tenure_store::why::{self as store, Known};

/// What keeps a task where it is, all of it at the same time.
///
/// # Errors
/// If there is no such task.
pub async fn find(engine: &Engine, id: TaskId) -> Result<Known, OpError> {
    let mut snapshot = store::begin(&engine.pool).await?;
    let known = store::find(&mut snapshot, id, |queue| engine.low_water_marks.get(queue)).await?;
    snapshot.commit().await?;
    known.ok_or_else(|| OpError::NotFound(format!("task {id} does not exist")))
}
