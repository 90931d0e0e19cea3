//! Stored bytes: the content of artifacts and objects.
//!
//! A name has at most one current generation of bytes: a row in the database and an object in the
//! store, whose key is the row's id. The row is written before the first byte and deleted after the
//! last, so that a killed server leaves no orphaned bytes. Replacing a generation is one
//! transaction, which also checks that this is still allowed. The handlers that issue URLs decide
//! who may store or read.

mod backing;
mod read;
mod sealed;
pub mod settings;
mod slots;
mod upload;
mod writer;

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use chrono::{DateTime, Utc};
use futures_util::StreamExt as _;
use sqlx::{PgExecutor, PgPool};
use tenure_api::blob_url::{self, Access, BlobUrlError};
use tenure_api::credentials::SigningKey;
use tenure_api::ids::{RunId, TaskId};
use uuid::Uuid;

use self::backing::Backing;
pub use self::backing::path_in_folder;
pub use self::read::{Generation, Reader};
pub use self::sealed::Sealed;
use self::settings::ArtifactSettings;
use self::slots::Slots;
pub use self::upload::{NewBytes, UploadLimits};
use tenure_domain::artifact;
use tenure_store::blobs::{self, BlobRow};

/// Retention of replaced bytes, for readers that have looked them up but not begun to read.
pub const RETAINED_AFTER_REPLACED: Duration = Duration::from_secs(5 * 60);
/// After this, another server retries a removal.
const REMOVAL_LEASE: Duration = Duration::from_secs(60);
const REMOVALS: usize = 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part<'a> {
    Artifact(TaskId, RunId, &'a str),
    Object(&'a str),
    /// A name that this server never issues.
    Other,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlobName(String);

impl BlobName {
    pub fn artifact(task: TaskId, run: RunId, name: &str) -> Self {
        Self(format!("artifact/{task}/{run}/{name}"))
    }

    pub fn object(name: &str) -> Self {
        Self(format!("object/{name}"))
    }

    /// Returns the name in a path of the blob URLs.
    pub fn of_path(path: &str) -> Option<Self> {
        blob_url::name_of(path).map(Self)
    }

    pub fn part(&self) -> Part<'_> {
        if let Some(name) = self.0.strip_prefix("object/") {
            return Part::Object(name);
        }
        let mut parts = self.0.splitn(4, '/');
        let (Some("artifact"), Some(task), Some(run), Some(name)) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Part::Other;
        };
        match (task.parse(), run.parse()) {
            // Another spelling of a task or a run refers to nothing.
            (Ok(task), Ok(run)) if Self::artifact(task, run, name) == *self => Part::Artifact(task, run, name),
            _ => Part::Other,
        }
    }

    /// Returns the run of an artifact, also of one kept as an object.
    pub fn run(&self) -> Option<(TaskId, RunId)> {
        match self.part() {
            Part::Artifact(task, run, _) => Some((task, run)),
            Part::Object(name) => artifact::artifact_of_object(name).map(|(task, run, _)| (task, run)),
            Part::Other => None,
        }
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for BlobName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredBlob {
    /// Number of bytes as uploaded.
    pub size: i64,
    pub sha256: [u8; 32],
    /// Declared by the client.
    pub content_type: String,
    /// Declared by the client, for example `gzip`.
    pub content_encoding: Option<String>,
}

#[derive(Debug, thiserror::Error)]
pub enum BlobError {
    #[error("the database did not answer; send the request again")]
    Database(#[from] sqlx::Error),
    #[error("the artifact store is unavailable; send the request again later")]
    Store(#[source] object_store::Error),
    #[error("too many uploads are in progress; send the request again later")]
    Busy,
    #[error(
        "{0} uploads of this run or object are in progress, the limit while the server is busy; send the request \
         again later"
    )]
    OwnerBusy(usize),
    #[error("the body is over the limit of {0} bytes (--artifact-size-max); nothing was stored")]
    TooLarge(u64),
    #[error("the body is incomplete; nothing was stored, send it again")]
    Cut,
    #[error("no part of the body arrived for {0} seconds; nothing was stored, send it again")]
    Stalled(u64),
    /// The average rate was too low, or the upload took a day.
    #[error("the body arrived at less than {0} bytes a second, or took over a day; nothing was stored, send it again")]
    Slow(u64),
    #[error("{0}; nothing was stored")]
    Sealed(Sealed),
    /// The name was deleted during the upload, or the upload was treated as abandoned.
    #[error("the artifact or object was deleted during the upload; nothing was stored")]
    Deleted,
    /// The row exists without bytes.
    #[error("the stored bytes are missing")]
    Gone(Uuid),
    /// The number of bytes differs from the row.
    #[error("the bytes in the artifact store differ from those that were stored")]
    Damaged(Uuid),
}

/// The store. Clones share it.
#[derive(Clone)]
pub struct Blobs {
    shared: Arc<BlobsInner>,
}

struct BlobsInner {
    keys: Vec<SigningKey>,
    root_url: String,
    size_max: u64,
    backing: Backing,
    slots: Slots,
    limits: UploadLimits,
}

impl Blobs {
    /// Signs with the first key, accepts any.
    pub fn new(keys: Vec<SigningKey>, root_url: &str, settings: &ArtifactSettings) -> Self {
        Self::with_limits(keys, root_url, settings, UploadLimits::default())
    }

    pub fn with_limits(
        keys: Vec<SigningKey>,
        root_url: &str,
        settings: &ArtifactSettings,
        limits: UploadLimits,
    ) -> Self {
        let backing = Backing::new(settings.place.clone());
        let slots = Slots::new(backing.uploads_max, backing.uploads_of_one_max);
        let (root_url, size_max) = (root_url.trim_end_matches('/').to_owned(), settings.size_max);
        Self { shared: Arc::new(BlobsInner { keys, root_url, size_max, backing, slots, limits }) }
    }

    /// Without a slash at the end.
    pub fn root_url(&self) -> &str {
        &self.shared.root_url
    }

    pub fn size_max(&self) -> u64 {
        self.shared.size_max
    }

    /// Returns the URL for uploads of this exact content type, usable any number of times until
    /// `expires_ms` (the server's clock, milliseconds since 1970).
    pub fn put_url(&self, name: &BlobName, content_type: &str, expires_ms: i64) -> String {
        self.sign(Access::Put { content_type }, name, expires_ms)
    }

    pub fn get_url(&self, name: &BlobName, expires_ms: i64) -> String {
        self.sign(Access::Get, name, expires_ms)
    }

    /// Returns the permanent URL of a public name. Its handler must check that the name is still
    /// public.
    pub fn plain_url(&self, name: &BlobName) -> String {
        format!("{}{}", self.shared.root_url, blob_url::plain(name.as_str()))
    }

    fn sign(&self, access: Access<'_>, name: &BlobName, expires_ms: i64) -> String {
        let signed = blob_url::sign(&self.shared.keys[0], access, name.as_str(), expires_ms);
        format!("{}{signed}", self.shared.root_url)
    }

    /// Checks that a URL allows this access to this name now.
    pub fn verify(&self, access: Access<'_>, name: &BlobName, query: &str, now_ms: i64) -> Result<(), BlobUrlError> {
        blob_url::verify(&self.shared.keys, access, name.as_str(), query, now_ms)
    }

    pub async fn probe(&self) {
        if let Err(error) = self.shared.backing.probe().await {
            tracing::error!(
                error = %error,
                cause = std::error::Error::source(&error).map(tracing::field::display),
                "the artifact store cannot be used: check --artifacts-url, its credentials and its rights"
            );
        }
    }

    /// Checks that the store can be used.
    ///
    /// # Errors
    /// Errors of the store.
    pub async fn check(&self) -> Result<(), BlobError> {
        self.shared.backing.probe().await.map_err(BlobError::Store)
    }

    /// Returns the bytes stored under these names, without names that have none.
    pub async fn find(
        &self,
        db: impl PgExecutor<'_>,
        names: &[BlobName],
    ) -> Result<HashMap<BlobName, StoredBlob>, sqlx::Error> {
        let names: Vec<String> = names.iter().map(|name| name.as_str().to_owned()).collect();
        blobs::find(db, &names).await?.into_iter().map(stored).collect()
    }

    pub async fn put(
        &self,
        pool: &PgPool,
        name: &BlobName,
        content_type: &str,
        bytes: Bytes,
    ) -> Result<StoredBlob, BlobError> {
        let new = NewBytes { name: name.clone(), content_type: content_type.to_owned(), content_encoding: None };
        let body = futures_util::stream::iter([Ok::<_, std::convert::Infallible>(bytes)]);
        self.upload(pool, &new, body).await
    }

    /// Deletes bytes stored or being uploaded under these names. Failed removals are retried later.
    /// Call it after all upload URLs have expired: a later upload would stay stored.
    pub async fn delete(&self, pool: &PgPool, names: &[BlobName]) -> Result<(), BlobError> {
        let names: Vec<String> = names.iter().map(|name| name.as_str().to_owned()).collect();
        let ids = blobs::drop_names(pool, &names, REMOVAL_LEASE).await?;
        self.remove_now(pool, &ids).await;
        Ok(())
    }

    /// Removes up to `limit` due generations. Returns the numbers found and removed.
    pub async fn sweep(&self, pool: &PgPool, from: DateTime<Utc>, limit: i64) -> Result<(usize, usize), sqlx::Error> {
        let ids = blobs::take_due(pool, from, limit, REMOVAL_LEASE).await?;
        Ok((ids.len(), self.remove_now(pool, &ids).await))
    }

    /// Removes bytes and then their rows. Failures are retried when due.
    async fn remove_now(&self, pool: &PgPool, ids: &[Uuid]) -> usize {
        let remove = |id: Uuid| async move { (id, self.shared.backing.remove(id).await) };
        let removed = futures_util::stream::iter(ids.iter().copied()).map(remove).buffer_unordered(REMOVALS);
        let mut gone = Vec::with_capacity(ids.len());
        for (id, result) in removed.collect::<Vec<_>>().await {
            match result {
                Ok(()) => gone.push(id),
                Err(error) => tracing::warn!(
                    blob.id = %id, error = %error,
                    "stored bytes could not be removed; they will be retried"
                ),
            }
        }
        if gone.is_empty() {
            return 0;
        }
        match blobs::purge(pool, &gone).await {
            Ok(_) => gone.len(),
            Err(error) => {
                tracing::warn!(error = %error, "rows of removed bytes could not be deleted; they will be retried");
                0
            }
        }
    }
}

fn stored(row: BlobRow) -> Result<(BlobName, StoredBlob), sqlx::Error> {
    let sha256 =
        row.sha256.as_slice().try_into().map_err(|_| {
            sqlx::Error::Decode(format!("table blobs, column sha256 of {}: not 32 bytes", row.id).into())
        })?;
    let (size, content_type, content_encoding) = (row.size, row.content_type, row.content_encoding);
    Ok((BlobName(row.name), StoredBlob { size, sha256, content_type, content_encoding }))
}
