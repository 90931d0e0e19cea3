//! Deletes expired artifacts and objects: bytes before rows, since the pass returns to existing
//! rows.
//!
//! A row is removable only after the last possible upload under its name. No server issues upload
//! URLs for it from then on, so no bytes reappear. The expiry pass skips tasks with artifacts.

use std::collections::BTreeSet;

use super::{PassReport, SLICE};
use crate::blobs::{BlobError, BlobName};
use crate::engine::Engine;
use tenure_store::{artifacts, objects};

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
