//! Uploads: bytes go to the store as they arrive, and become the current ones of their name when all of them are stored.

use std::future::Future;
use std::pin::pin;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use futures_util::{Stream, StreamExt as _};
use object_store::{ObjectStore, ObjectStoreExt as _, PutPayload, WriteMultipart};
use sha2::{Digest as _, Sha256};
use sqlx::PgPool;
use uuid::Uuid;

use super::backing::StoreError;
use super::{BlobError, BlobName, Blobs, RETAINED_AFTER_REPLACED, StoredBlob, sealed};
use tenure_store::blobs::{self, NewBlob};

/// How long an upload may pause. Longer than a worker's machine may be stalled.
const STALL_MAX: Duration = Duration::from_secs(60);
/// How long storing a part may take, and completing the object.
const STORE_TIMEOUT: Duration = Duration::from_secs(120);
/// An upload whose lease is not renewed for this long is abandoned. Longer than a stall of the client and two timeouts of
/// the store together.
const LEASE: Duration = Duration::from_secs(15 * 60);
/// How often an upload renews its lease.
const RENEW_EVERY: Duration = Duration::from_secs(60);
/// How long an upload waits for others to end.
const TURN_MAX: Duration = Duration::from_secs(20);
/// Parts that are being stored while the next one is read.
const PARTS_IN_FLIGHT: usize = 2;

/// An upload.
#[derive(Clone, Debug)]
pub struct NewBytes {
    /// The name to store the bytes under.
    pub name: BlobName,
    /// As the client declares.
    pub content_type: String,
    /// As the client declares.
    pub content_encoding: Option<String>,
}

/// Whose bytes are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Writer {
    /// A client's, which may change them for a while.
    Client,
    /// The server's own.
    Server,
}

impl Blobs {
    /// Stores a body. After a failure the name keeps its previous bytes.
    pub async fn upload<E>(
        &self,
        pool: &PgPool,
        new: &NewBytes,
        body: impl Stream<Item = Result<Bytes, E>> + Send,
    ) -> Result<StoredBlob, BlobError> {
        self.store(pool, new, body, Writer::Client).await
    }

    /// Stores bytes that the server itself has, also when clients may change their name no more.
    ///
    /// # Errors
    /// The store or the database does not work.
    pub async fn put_by_server(
        &self,
        pool: &PgPool,
        name: &BlobName,
        content_type: &str,
        bytes: Bytes,
    ) -> Result<StoredBlob, BlobError> {
        let new = NewBytes { name: name.clone(), content_type: content_type.to_owned(), content_encoding: None };
        let body = futures_util::stream::iter([Ok::<_, std::convert::Infallible>(bytes)]);
        self.store(pool, &new, body, Writer::Server).await
    }

    async fn store<E>(
        &self,
        pool: &PgPool,
        new: &NewBytes,
        body: impl Stream<Item = Result<Bytes, E>> + Send,
        by: Writer,
    ) -> Result<StoredBlob, BlobError> {
        let turn = tokio::time::timeout(TURN_MAX, self.shared.uploads.acquire()).await;
        let Ok(Ok(_turn)) = turn else { return Err(BlobError::Busy) };
        let id = Uuid::new_v4();
        let row = NewBlob {
            id,
            name: new.name.as_str(),
            content_type: &new.content_type,
            content_encoding: new.content_encoding.as_deref(),
        };
        blobs::begin(pool, row, LEASE).await?;
        let (size, sha256) = match self.write_body(pool, id, body).await {
            Ok(stored) => stored,
            Err(error) => {
                // The server that treats an upload as abandoned deletes its file, which the store reports as an error.
                let abandoned =
                    matches!(error, BlobError::Store(_)) && matches!(blobs::renew(pool, id, LEASE).await, Ok(false));
                // If this fails too, the row remains for the pass that removes the bytes.
                self.remove_now(pool, &[id]).await;
                return Err(if abandoned { BlobError::Deleted } else { error });
            }
        };
        if let Err(error) = make_current(pool, &new.name, by, id, size, &sha256).await {
            // A commit whose answer was lost may have happened, so that after an error of the database the bytes stay: either
            // they are the current ones, or they are removed when the lease has ended.
            if !matches!(error, BlobError::Database(_)) {
                self.remove_now(pool, &[id]).await;
            }
            return Err(error);
        }
        let (content_type, content_encoding) = (new.content_type.clone(), new.content_encoding.clone());
        Ok(StoredBlob { size, sha256, content_type, content_encoding })
    }

    /// Writes the body to the store. Answers its size and its digest.
    async fn write_body<E>(
        &self,
        pool: &PgPool,
        id: Uuid,
        body: impl Stream<Item = Result<Bytes, E>> + Send,
    ) -> Result<(i64, [u8; 32]), BlobError> {
        let backing = &self.shared.backing;
        let store = backing.store().map_err(BlobError::Store)?;
        let parts = Parts::None(BytesMut::new());
        let mut writer = ObjectWriter { store: &*store, key: backing.key(id), part: backing.part, parts };
        match self.copy(pool, id, body, &mut writer).await {
            Ok(stored) => {
                writer.finish().await?;
                Ok(stored)
            }
            Err(error) => {
                writer.abort().await;
                Err(error)
            }
        }
    }

    /// Copies the body to the writer, chunk by chunk.
    async fn copy<E>(
        &self,
        pool: &PgPool,
        id: Uuid,
        body: impl Stream<Item = Result<Bytes, E>> + Send,
        writer: &mut ObjectWriter<'_>,
    ) -> Result<(i64, [u8; 32]), BlobError> {
        let mut body = pin!(body);
        let (mut size, mut digest, mut renewed) = (0_u64, Sha256::new(), Instant::now());
        loop {
            let chunk = match tokio::time::timeout(STALL_MAX, body.next()).await {
                Err(_) => return Err(BlobError::Stalled(STALL_MAX.as_secs())),
                Ok(Some(Err(_))) => return Err(BlobError::Cut),
                Ok(None) => break,
                Ok(Some(Ok(chunk))) => chunk,
            };
            size += chunk.len() as u64;
            if size > self.shared.size_max {
                return Err(BlobError::TooLarge(self.shared.size_max));
            }
            digest.update(&chunk);
            writer.write(&chunk).await?;
            metrics::counter!("tenure_artifact_bytes_total", "direction" => "in").increment(chunk.len() as u64);
            if renewed.elapsed() > RENEW_EVERY {
                if !blobs::renew(pool, id, LEASE).await? {
                    return Err(BlobError::Deleted);
                }
                renewed = Instant::now();
            }
        }
        Ok((i64::try_from(size).map_err(|_| BlobError::TooLarge(self.shared.size_max))?, digest.finalize().into()))
    }
}

/// Makes stored bytes the current ones of their name, in one transaction with the check that these may still change.
async fn make_current(
    pool: &PgPool,
    name: &BlobName,
    by: Writer,
    id: Uuid,
    size: i64,
    sha256: &[u8; 32],
) -> Result<(), BlobError> {
    let mut transaction = pool.begin().await?;
    match by {
        Writer::Client => sealed::lock_and_check(&mut transaction, name).await?,
        Writer::Server => sealed::lock(&mut transaction, name).await?,
    }
    let stored = blobs::finish(&mut transaction, id, size, sha256, RETAINED_AFTER_REPLACED).await?;
    // Dropped, the transaction changes nothing.
    stored.ok_or(BlobError::Deleted)?;
    transaction.commit().await?;
    Ok(())
}

/// One object that is being written. A body that fits into one part is stored by one request.
struct ObjectWriter<'a> {
    store: &'a dyn ObjectStore,
    key: object_store::path::Path,
    part: usize,
    parts: Parts,
}

enum Parts {
    None(BytesMut),
    Some(WriteMultipart),
}

impl ObjectWriter<'_> {
    async fn write(&mut self, mut chunk: &[u8]) -> Result<(), BlobError> {
        // No more than a part at once, so that memory stays bounded whatever the size of a chunk.
        while !chunk.is_empty() {
            let (now, later) = chunk.split_at(chunk.len().min(self.part));
            match &mut self.parts {
                Parts::Some(parts) => {
                    with_timeout(parts.wait_for_capacity(PARTS_IN_FLIGHT)).await?;
                    parts.write(now);
                }
                Parts::None(first) => {
                    first.extend_from_slice(now);
                    if first.len() > self.part {
                        let upload = with_timeout(self.store.put_multipart(&self.key)).await?;
                        let mut parts = WriteMultipart::new_with_chunk_size(upload, self.part);
                        parts.write(first);
                        self.parts = Parts::Some(parts);
                    }
                }
            }
            chunk = later;
        }
        Ok(())
    }

    async fn finish(self) -> Result<(), BlobError> {
        match self.parts {
            Parts::None(all) => with_timeout(self.store.put(&self.key, PutPayload::from(all.freeze()))).await?,
            Parts::Some(parts) => with_timeout(parts.finish()).await?,
        };
        Ok(())
    }

    async fn abort(self) {
        if let Parts::Some(parts) = self.parts {
            // Remaining parts are removed with the row, or by the bucket's own rules.
            if let Err(error) = with_timeout(parts.abort()).await {
                tracing::debug!(error = %error, "an upload could not be aborted");
            }
        }
    }
}

async fn with_timeout<T>(request: impl Future<Output = Result<T, StoreError>>) -> Result<T, BlobError> {
    match tokio::time::timeout(STORE_TIMEOUT, request).await {
        Ok(result) => result.map_err(BlobError::Store),
        Err(_) => Err(BlobError::Store(super::backing::io_error(std::io::ErrorKind::TimedOut.into()))),
    }
}
