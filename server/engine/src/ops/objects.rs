//! Uploads and downloads of the object service.

use bytes::Bytes;
use chrono::{DateTime, TimeDelta, Utc};
use sqlx::{PgConnection, PgPool};
use tenure_api::dates::Timestamp;
use tenure_api::ids::{Sha256Hex, Sha512Hex, SlugId};
use tenure_api::objects::ObjectHashes;

use super::OpError;
use crate::blobs::{BlobError, BlobName, Blobs, StoredBlob};
use tenure_domain::artifact::{Stored, UPLOAD_MAX, artifact_of_object, object_known_until};
use tenure_store::artifacts::{find_chain, lock_object};
use tenure_store::objects::{self, NewObject, Object};

#[derive(Debug, Clone, Copy)]
pub struct Upload<'a> {
    pub name: &'a str,
    /// Owner of the object.
    pub project: &'a str,
    pub id: SlugId,
}

/// Links are not followed: an object is named after its own artifact, not a link's target.
const NO_LINKS: i32 = 0;

/// Begins an upload, or restarts it. The object of an artifact expires with the artifact at the
/// latest.
pub async fn begin(
    pool: &PgPool,
    upload: Upload<'_>,
    expires: DateTime<Utc>,
    hashes: &ObjectHashes,
) -> Result<Object, OpError> {
    let mut conn = pool.acquire().await?;
    let artifact = find_artifact(&mut conn, upload.name).await?;
    // Otherwise an artifact's credentials could leave unreferenced bytes that outlive it and its
    // task.
    let expires = artifact.as_ref().map_or(expires, |stored| expires.min(stored.artifact.expires));
    let object = NewObject {
        name: upload.name,
        project: upload.project,
        upload: upload.id.uuid(),
        expires,
        known_until: object_known_until(expires, artifact.as_ref()),
        sha256: hashes.sha256.as_ref().map(Sha256Hex::as_str),
        sha512: hashes.sha512.as_ref().map(Sha512Hex::as_str),
    };
    let begun = objects::begin(&mut conn, object, seconds(UPLOAD_MAX)).await?;
    let found = objects::find(&mut conn, upload.name).await?;
    match found {
        Some(object) if begun => Ok(object),
        found => Err(OpError::Conflict(why_not(upload.name, found.as_ref()))),
    }
}

/// Explains why no upload can begin under this name. The object may be gone meanwhile.
fn why_not(name: &str, found: Option<&Object>) -> String {
    match found {
        Some(object) if object.now < object.removable => {
            format!("object {name:?} exists already, or is being uploaded under another `uploadId` or `projectId`")
        }
        Some(object) => format!(
            "object {name:?} expired at {} and is being removed; send the request again in a few seconds, with a \
             later `expires`",
            Timestamp::new(object.expires)
        ),
        None => format!("object {name:?} has just been removed; send the request again"),
    }
}

/// Returns the artifact for which an object of this name is meant; `None` for a standalone object.
async fn find_artifact(conn: &mut PgConnection, name: &str) -> Result<Option<Stored>, OpError> {
    let Some((task, run, artifact)) = artifact_of_object(name) else { return Ok(None) };
    let chain = find_chain(conn, task, Some(run), artifact, NO_LINKS).await?;
    let found = chain.and_then(|chain| chain.artifacts.into_iter().next());
    let missing = || {
        OpError::Input(format!(
            "object {name:?} belongs to an artifact that task {task} does not have: call createArtifact first"
        ))
    };
    found.map(Some).ok_or_else(missing)
}

pub async fn store(
    pool: &PgPool,
    blobs: &Blobs,
    name: &str,
    content_type: &str,
    bytes: Bytes,
) -> Result<StoredBlob, OpError> {
    blobs.put(pool, &BlobName::object(name), content_type, bytes).await.map_err(|error| match error {
        BlobError::Database(error) => error.into(),
        BlobError::TooLarge(_) => OpError::Input(error.to_string()),
        BlobError::Deleted | BlobError::Sealed(_) => OpError::Conflict(error.to_string()),
        BlobError::Busy | BlobError::OwnerBusy(_) => OpError::Overloaded("createUpload"),
        other => {
            tracing::warn!(error = %other, "the bytes of an object could not be stored");
            OpError::Unavailable
        }
    })
}

/// Finishes an upload if its bytes have the declared digests. Repeatable. The locked row prevents
/// other bytes between comparison and end.
pub async fn finish(pool: &PgPool, blobs: &Blobs, upload: Upload<'_>, hashes: &ObjectHashes) -> Result<(), OpError> {
    let mut transaction = pool.begin().await?;
    lock_object(&mut transaction, upload.name).await?;
    let object = objects::find(&mut transaction, upload.name).await?;
    let object = object.ok_or_else(|| OpError::NotFound(format!("there is no object {:?}", upload.name)))?;
    if object.upload != upload.id.uuid() || object.project != upload.project {
        return Err(OpError::Conflict(format!(
            "object {:?} is being uploaded under another `uploadId` or `projectId`",
            upload.name
        )));
    }
    let (sha256, sha512) =
        (hashes.sha256.as_ref().map(Sha256Hex::as_str), hashes.sha512.as_ref().map(Sha512Hex::as_str));
    // Compare digests not compared before, even if the upload is finished.
    let is_known = |declared: Option<&str>, stored: Option<&str>| declared.is_none() || declared == stored;
    if object.finished && is_known(sha256, object.sha256.as_deref()) && is_known(sha512, object.sha512.as_deref()) {
        return Ok(());
    }
    let name = BlobName::object(upload.name);
    let stored = blobs.find(&mut *transaction, std::slice::from_ref(&name)).await?.remove(&name);
    let stored = stored.ok_or_else(|| OpError::Input(format!("nothing was uploaded for object {:?}", upload.name)))?;
    let found = hex(&stored.sha256);
    for declared in [sha256, object.sha256.as_deref()].into_iter().flatten() {
        if declared != found {
            return Err(OpError::Input(format!(
                "`hashes.sha256`: the uploaded bytes have {found}, not {declared}; upload them again"
            )));
        }
    }
    if let (Some(declared), Some(before)) = (sha512, object.sha512.as_deref())
        && declared != before
    {
        return Err(OpError::Input("`hashes.sha512` differs from the one given to createUpload".to_owned()));
    }
    objects::finish(&mut transaction, upload.name, upload.id.uuid(), sha256, sha512).await?;
    transaction.commit().await?;
    Ok(())
}

#[derive(Debug)]
pub struct Readable {
    pub object: Object,
    pub stored: StoredBlob,
}

impl Readable {
    pub fn hashes(&self) -> ObjectHashes {
        ObjectHashes {
            sha256: hex(&self.stored.sha256).parse::<Sha256Hex>().ok(),
            sha512: self.object.sha512.as_deref().and_then(|hash| hash.parse().ok()),
        }
    }
}

/// Reads an object whose upload is finished.
pub async fn read(pool: &PgPool, blobs: &Blobs, name: &str) -> Result<Readable, OpError> {
    let missing = || OpError::NotFound(format!("there is no object {name:?}"));
    let mut conn = pool.acquire().await?;
    let object = objects::find(&mut conn, name).await?.filter(|object| object.finished).ok_or_else(missing)?;
    if object.expires <= object.now {
        return Err(OpError::Expired(format!("the object {name:?} has expired")));
    }
    let blob = BlobName::object(name);
    // On the same connection: readers that hold one while waiting for another could deadlock.
    let stored = blobs.find(&mut *conn, std::slice::from_ref(&blob)).await?.remove(&blob).ok_or_else(missing)?;
    Ok(Readable { object, stored })
}

pub fn hex(digest: &[u8]) -> String {
    use std::fmt::Write as _;
    digest.iter().fold(String::with_capacity(digest.len() * 2), |mut text, byte| {
        // Writing into a String does not fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn seconds(time: TimeDelta) -> f64 {
    time.as_seconds_f64()
}
