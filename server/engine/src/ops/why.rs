//! Why a task is where it is.

use sqlx::PgPool;
use tenure_api::ids::TaskId;

use super::OpError;
use crate::batch::low_water_marks::LowWaterMarks;
use tenure_store::why::{self as store, Known};

/// What keeps a task where it is, all of it at the same time.
///
/// # Errors
/// If there is no such task.
pub async fn find(pool: &PgPool, marks: &LowWaterMarks, id: TaskId) -> Result<Known, OpError> {
    let mut snapshot = store::begin(pool).await?;
    let known = store::find(&mut snapshot, id, |queue| marks.get(queue)).await?;
    snapshot.commit().await?;
    known.ok_or_else(|| OpError::NotFound(format!("task {id} does not exist")))
}
