//! Decides whether the bytes of a name may be replaced: an artifact's while its run accepts
//! artifacts, an object's until its upload is finished. Upload URLs stay valid longer, and an
//! upload may be in progress.

use std::fmt;

use sqlx::{PgConnection, PgPool};

use super::{BlobError, BlobName, Blobs, Part};
use tenure_domain::artifact::{self, Refusal};
use tenure_store::{artifacts, tasks};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sealed {
    /// The run of the artifact accepts no artifacts, or does not exist.
    RunEnded,
    ObjectFinished,
    /// Uploaded bytes exist, which the server does not replace by its own.
    Uploaded,
}

impl fmt::Display for Sealed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::RunEnded => {
                "the run of this artifact has ended; artifacts can be uploaded while it runs, or within 25 minutes \
                 after an exception"
            }
            Self::ObjectFinished => "the upload of this object is finished; use another name",
            Self::Uploaded => "this artifact was uploaded by another request meanwhile",
        })
    }
}

impl Blobs {
    /// Fails if the bytes of a name may not be replaced now. Call it before the bytes are sent.
    pub async fn check_open(&self, pool: &PgPool, name: &BlobName) -> Result<(), BlobError> {
        check(&mut *pool.acquire().await?, name).await
    }
}

/// Like [`Blobs::check_open`], in a transaction that replaces bytes: serializes with the end of the
/// run or the finished object.
pub(super) async fn lock_and_check(transaction: &mut PgConnection, name: &BlobName) -> Result<(), BlobError> {
    lock(transaction, name).await?;
    check(transaction, name).await
}

/// Locks the task of an artifact, so that its bytes are replaced one after the other.
pub(super) async fn lock(transaction: &mut PgConnection, name: &BlobName) -> Result<(), BlobError> {
    if let Part::Artifact(task, ..) = name.part() {
        tasks::lock(transaction, task.uuid()).await?;
    }
    Ok(())
}

async fn check(conn: &mut PgConnection, name: &BlobName) -> Result<(), BlobError> {
    match name.part() {
        Part::Artifact(task, run, _) => {
            let known = tasks::load(conn, &[task.uuid()]).await?.remove(&task.uuid());
            let admitted =
                known.map_or(Err(Refusal::NoSuchRun), |known| artifact::admit_bytes(&known.task, run, known.now));
            admitted.map_err(|_| BlobError::Sealed(Sealed::RunEnded))
        }
        // Locks the row until the transaction ends.
        Part::Object(name) => match artifacts::lock_object(conn, name).await? {
            Some(object) if object.finished => Err(BlobError::Sealed(Sealed::ObjectFinished)),
            Some(_) | None => Ok(()),
        },
        Part::Other => Ok(()),
    }
}
