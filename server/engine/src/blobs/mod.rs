//! Stored bytes: the content of artifacts and objects.
//!
//! A name has at most one current generation of bytes. Each generation is a row in the database and an object in the store,
//! whose key is the row's id: the row is written before the first byte, and deleted after the last one is removed, so
//! that no bytes are ever orphaned, whenever a server is killed. Replacing a name's bytes is one transaction, which also
//! checks that they may still change. Who may store or read what is decided by the handlers that issue the URLs.

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
pub use self::read::{Generation, Reader};
pub use self::sealed::Sealed;
use self::settings::ArtifactSettings;
use self::slots::Slots;
pub use self::upload::{NewBytes, UploadLimits};
use tenure_domain::artifact;
use tenure_store::blobs::{self, BlobRow};

/// How long replaced bytes stay for readers that have looked them up and have not begun to read.
pub const RETAINED_AFTER_REPLACED: Duration = Duration::from_secs(5 * 60);
/// How long removing bytes may take before another server tries.
const REMOVAL_LEASE: Duration = Duration::from_secs(60);
/// Removals that run at the same time.
const REMOVALS: usize = 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part<'a> {
    /// The artifact of a run, with its name within the run.
    Artifact(TaskId, RunId, &'a str),
    /// The object of this name.
    Object(&'a str),
    /// Neither: this server issues no such name.
    Other,
}

/// The name that bytes are stored under.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlobName(String);

impl BlobName {
    pub fn artifact(task: TaskId, run: RunId, name: &str) -> Self {
        Self(format!("artifact/{task}/{run}/{name}"))
    }

    /// An object of the object service.
    pub fn object(name: &str) -> Self {
        Self(format!("object/{name}"))
    }

    /// The name in a request for stored bytes; None if its path names none.
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

    /// The run whose artifact this is, also if it is kept as an object.
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

/// Bytes that are stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredBlob {
    /// How many bytes, as they were uploaded.
    pub size: i64,
    /// Their digest.
    pub sha256: [u8; 32],
    /// As the client declared.
    pub content_type: String,
    /// As the client declared, such as `gzip`.
    pub content_encoding: Option<String>,
}

/// Why bytes could not be stored, read or removed.
#[derive(Debug, thiserror::Error)]
pub enum BlobError {
    /// The database.
    #[error("the database did not answer; send the request again")]
    Database(#[from] sqlx::Error),
    /// The store of the bytes.
    #[error("the artifact store does not work now; send the request again later")]
    Store(#[source] object_store::Error),
    /// Too many uploads.
    #[error("too many uploads at the same time; send the request again later")]
    Busy,
    /// Too many of one run, or under one name.
    #[error(
        "{0} uploads of this run or object are in progress, which is as many as may be while the server is busy; send the \
         request again later"
    )]
    OwnerBusy(usize),
    /// More than is allowed.
    #[error("the body is over the limit of {0} bytes (--artifact-size-max); nothing was stored")]
    TooLarge(u64),
    /// The body ended too early.
    #[error("the body did not arrive whole; nothing was stored, send it again")]
    Cut,
    /// The body stopped arriving.
    #[error("nothing of the body arrived for {0} seconds; nothing was stored, send it again")]
    Stalled(u64),
    /// The body arrived for long, and too slowly.
    #[error(
        "the body arrived too slowly, with less than {0} bytes a second, or took a day; nothing was stored, send it again"
    )]
    Slow(u64),
    /// The name's bytes stay as they are.
    #[error("{0}; nothing was stored")]
    Sealed(Sealed),
    /// The name was deleted during the upload, or the upload was treated as abandoned.
    #[error("the upload was given up meanwhile, because its name was deleted; nothing was stored")]
    Deleted,
    /// The row is there and the bytes are not.
    #[error("the bytes are gone")]
    Gone(Uuid),
    /// There are more or fewer bytes than were stored.
    #[error("the bytes are not those that were stored")]
    Damaged(Uuid),
}

/// The store. Clones share it.
#[derive(Clone)]
pub struct Blobs {
    shared: Arc<Shared>,
}

struct Shared {
    keys: Vec<SigningKey>,
    root_url: String,
    size_max: u64,
    backing: Backing,
    slots: Slots,
    limits: UploadLimits,
}

impl Blobs {
    /// Signs with the first of these keys, accepts any.
    pub fn new(keys: Vec<SigningKey>, root_url: &str, settings: &ArtifactSettings) -> Self {
        Self::with_limits(keys, root_url, settings, UploadLimits::default())
    }

    /// The same with other limits of time for uploads.
    pub fn with_limits(
        keys: Vec<SigningKey>,
        root_url: &str,
        settings: &ArtifactSettings,
        limits: UploadLimits,
    ) -> Self {
        let backing = Backing::new(settings.place.clone());
        let slots = Slots::new(backing.uploads_max, backing.uploads_of_one_max);
        let (root_url, size_max) = (root_url.trim_end_matches('/').to_owned(), settings.size_max);
        Self { shared: Arc::new(Shared { keys, root_url, size_max, backing, slots, limits }) }
    }

    /// The largest body that is taken.
    pub fn size_max(&self) -> u64 {
        self.shared.size_max
    }

    /// The URL for uploads under this name, of exactly this content type, any number of times until `expires_ms` (the
    /// server's clock, milliseconds since 1970).
    pub fn put_url(&self, name: &BlobName, content_type: &str, expires_ms: i64) -> String {
        self.sign(Access::Put { content_type }, name, expires_ms)
    }

    /// The URL for downloads until `expires_ms`.
    pub fn get_url(&self, name: &BlobName, expires_ms: i64) -> String {
        self.sign(Access::Get, name, expires_ms)
    }

    /// The URL for downloads of what every client may read: always the same for the same name. Its handler has to check
    /// that this is still so.
    pub fn plain_url(&self, name: &BlobName) -> String {
        format!("{}{}", self.shared.root_url, blob_url::plain(name.as_str()))
    }

    fn sign(&self, access: Access<'_>, name: &BlobName, expires_ms: i64) -> String {
        let signed = blob_url::sign(&self.shared.keys[0], access, name.as_str(), expires_ms);
        format!("{}{signed}", self.shared.root_url)
    }

    /// Whether a URL allows this access to this name now.
    pub fn verify(&self, access: Access<'_>, name: &BlobName, query: &str, now_ms: i64) -> Result<(), BlobUrlError> {
        blob_url::verify(&self.shared.keys, access, name.as_str(), query, now_ms)
    }

    /// Checks whether the store can be used, and logs an error if not.
    pub async fn probe(&self) {
        if let Err(error) = self.shared.backing.probe().await {
            tracing::error!(
                error = %error,
                cause = std::error::Error::source(&error).map(tracing::field::display),
                "the artifact store cannot be used: check --artifacts-url, its credentials and its rights"
            );
        }
    }

    /// Finds the bytes that are stored under these names; names without bytes are missing in the answer.
    pub async fn find(
        &self,
        db: impl PgExecutor<'_>,
        names: &[BlobName],
    ) -> Result<HashMap<BlobName, StoredBlob>, sqlx::Error> {
        let names: Vec<String> = names.iter().map(|name| name.as_str().to_owned()).collect();
        blobs::find(db, &names).await?.into_iter().map(stored).collect()
    }

    /// Stores small bytes at once.
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

    /// Deletes what is stored under these names, also what is being uploaded. Names without bytes are ignored. Bytes that
    /// the store fails to remove now are removed later. Call it when no URL for uploads is valid any more: a later upload
    /// would be stored, and stay.
    pub async fn delete(&self, pool: &PgPool, names: &[BlobName]) -> Result<(), BlobError> {
        let names: Vec<String> = names.iter().map(|name| name.as_str().to_owned()).collect();
        let ids = blobs::drop_names(pool, &names, REMOVAL_LEASE).await?;
        self.remove_now(pool, &ids).await;
        Ok(())
    }

    /// Removes up to `limit` generations that are due. Answers how many there were, and how many were removed.
    pub async fn sweep(&self, pool: &PgPool, from: DateTime<Utc>, limit: i64) -> Result<(usize, usize), sqlx::Error> {
        let ids = blobs::take_due(pool, from, limit, REMOVAL_LEASE).await?;
        Ok((ids.len(), self.remove_now(pool, &ids).await))
    }

    /// Removes bytes, and then their rows. What fails is retried when it is due.
    async fn remove_now(&self, pool: &PgPool, ids: &[Uuid]) -> usize {
        let remove = |id: Uuid| async move { (id, self.shared.backing.remove(id).await) };
        let removed = futures_util::stream::iter(ids.iter().copied()).map(remove).buffer_unordered(REMOVALS);
        let mut gone = Vec::with_capacity(ids.len());
        for (id, result) in removed.collect::<Vec<_>>().await {
            match result {
                Ok(()) => gone.push(id),
                Err(error) => tracing::warn!(blob.id = %id, error = %error, "stored bytes could not be removed yet"),
            }
        }
        if gone.is_empty() {
            return 0;
        }
        match blobs::purge(pool, &gone).await {
            Ok(_) => gone.len(),
            Err(error) => {
                tracing::warn!(error = %error, "rows of removed bytes could not be deleted yet");
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
