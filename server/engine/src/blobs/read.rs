//! Reads the current bytes of a name, in full or in part. A reader that has begun reads to the end,
//! even if the bytes are replaced.

use std::io::SeekFrom;
use std::ops::Range;

use chrono::{DateTime, Utc};
use futures_util::TryStreamExt as _;
use object_store::{GetOptions, GetRange, GetResultPayload, ObjectStore as _};
use sqlx::PgPool;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncSeekExt as _};
use tokio_util::io::StreamReader;
use uuid::Uuid;

use super::backing::{StoreError, io_error};
use super::{BlobError, BlobName, Blobs, StoredBlob, stored};
use tenure_store::blobs;

pub type Reader = Box<dyn AsyncRead + Send + Unpin>;

/// The bytes that were current at the lookup.
#[derive(Clone, Debug)]
pub struct Generation {
    id: Uuid,
    pub blob: StoredBlob,
    pub since: DateTime<Utc>,
}

impl Blobs {
    pub async fn current(&self, pool: &PgPool, name: &BlobName) -> Result<Option<Generation>, sqlx::Error> {
        let rows = blobs::find(pool, &[name.as_str().to_owned()]).await?;
        rows.into_iter()
            .next()
            .map(|row| Ok(Generation { id: row.id, since: row.stored, blob: stored(row)?.1 }))
            .transpose()
    }

    pub async fn read(&self, generation: &Generation, range: Range<u64>) -> Result<Reader, BlobError> {
        if range.is_empty() {
            return Ok(Box::new(tokio::io::empty()));
        }
        let backing = &self.shared.backing;
        let key = backing.key(generation.id);
        let length = range.end - range.start;
        let options = GetOptions { range: Some(GetRange::Bounded(range.clone())), ..GetOptions::default() };
        let result = match backing.store().map_err(BlobError::Store)?.get_opts(&key, options).await {
            Ok(result) => result,
            Err(StoreError::NotFound { .. }) => return Err(BlobError::Gone(generation.id)),
            Err(error) => return Err(BlobError::Store(error)),
        };
        if i64::try_from(result.meta.size).ok() != Some(generation.blob.size) || result.range != range {
            return Err(BlobError::Damaged(generation.id));
        }
        match result.payload {
            GetResultPayload::File(file, _) => {
                let mut file = tokio::fs::File::from_std(file);
                file.seek(SeekFrom::Start(range.start)).await.map_err(|error| BlobError::Store(io_error(error)))?;
                Ok(Box::new(file.take(length)))
            }
            GetResultPayload::Stream(pieces) => Ok(Box::new(StreamReader::new(pieces.map_err(std::io::Error::other)))),
        }
    }
}
