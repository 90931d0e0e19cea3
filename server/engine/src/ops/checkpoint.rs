//! Checkpoints of tasks. Not batched: a worker stores one every few seconds at most.

use chrono::{DateTime, Utc};
use sqlx::PgPool;

use super::create_artifact::RunRef;
use super::{OpError, refused};
use tenure_domain::checkpoint::NewCheckpoint;
use tenure_domain::policy::life::{Event, apply};
use tenure_store::{checkpoints, tasks};

/// Stores the checkpoint of a held run and returns its time.
///
/// # Errors
/// `NotFound`, or `Conflict` if the run is not held.
pub async fn put(pool: &PgPool, of: RunRef, new: &NewCheckpoint) -> Result<DateTime<Utc>, OpError> {
    let RunRef { task, run } = of;
    let mut conn = pool.acquire().await?;
    if let Some(updated) = checkpoints::put(&mut conn, task.uuid(), run, &new.text, new.command).await? {
        return Ok(updated);
    }
    let loaded = tasks::load(&mut conn, &[task.uuid()]).await?.remove(&task.uuid());
    let loaded = loaded.ok_or_else(|| OpError::NotFound(format!("task {task} does not exist")))?;
    match apply(loaded.task.life(), Event::Reclaim(run)) {
        Err(refusal) => Err(refused(refusal, task, run)),
        // Claimed just now.
        Ok(_) => Err(OpError::Unavailable),
    }
}
