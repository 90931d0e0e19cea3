//! Artifacts and objects that have expired. Bytes are deleted before rows: while a row exists, this pass comes back to it.
//!
//! A row is removable no sooner than the last upload under its name can have ended, and from then on no server issues
//! another URL for uploads; so no bytes come back. The expiry pass skips a task until it has no artifacts.

use std::collections::BTreeSet;

use super::{PassReport, SLICE};
use crate::blobs::{BlobError, BlobName};
use crate::engine::Engine;
use tenure_store::{artifacts, objects};

/// Deletes a slice of artifacts and a slice of objects.
pub async fn pass(engine: &Engine) -> Result<PassReport, sqlx::Error> {
    let (pool, marks) = (&engine.background_pool, engine.due_marks.get());
    let due = artifacts::list_removable(&mut *pool.acquire().await?, marks.artifacts, SLICE).await?;
    let with_bytes = due.iter().filter(|one| one.has_bytes);
    let names: BTreeSet<BlobName> = with_bytes.map(|one| BlobName::artifact(one.task, one.run, &one.name)).collect();
    remove_bytes(engine, names).await?;
    let mut found = due.len();
    let mut done = if found == 0 { 0 } else { artifacts::remove(&mut *pool.acquire().await?, &due).await? };
    let due = objects::list_removable(&mut *pool.acquire().await?, marks.objects, SLICE).await?;
    remove_bytes(engine, due.iter().map(|name| BlobName::object(name)).collect()).await?;
    found += due.len();
    if !due.is_empty() {
        done += objects::remove(&mut *pool.acquire().await?, &due).await?;
    }
    let done = usize::try_from(done).unwrap_or(usize::MAX);
    Ok(PassReport { found, done, lost_race: found.saturating_sub(done), ..PassReport::default() })
}

async fn remove_bytes(engine: &Engine, names: BTreeSet<BlobName>) -> Result<(), sqlx::Error> {
    if names.is_empty() {
        return Ok(());
    }
    let names: Vec<BlobName> = names.into_iter().collect();
    engine.blobs.delete(&engine.background_pool, &names).await.map_err(|error| match error {
        BlobError::Database(error) => error,
        other => sqlx::Error::Io(std::io::Error::other(other)),
    })
}
