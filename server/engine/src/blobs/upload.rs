//! Uploads: bytes go to the store as they arrive, and become current when all are stored.

use std::pin::pin;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::{Stream, StreamExt as _};
use sha2::{Digest as _, Sha256};
use sqlx::PgPool;
use uuid::Uuid;

use super::writer::ObjectWriter;
use super::{BlobError, BlobName, Blobs, RETAINED_AFTER_REPLACED, Sealed, StoredBlob, sealed};
use tenure_store::blobs::{self, NewBlob};

/// Maximum pause of an upload. Longer than a stall of a worker's machine.
const STALL_MAX: Duration = Duration::from_secs(60);
/// After this, an upload needs the minimum average rate: far less than one of fifty uploads on a
/// slow line.
const SLOW_MAX: Duration = Duration::from_secs(10 * 60);
const BYTES_PER_SECOND_MIN: u64 = 4 << 10;
const TIME_MAX: Duration = Duration::from_secs(24 * 60 * 60);
/// An upload is abandoned when its lease is not renewed. Longer than a client's stall and two store
/// timeouts together.
const LEASE: Duration = Duration::from_secs(15 * 60);
/// Interval at which an upload renews its lease and checks that its bytes may still change.
const RENEW_EVERY: Duration = Duration::from_secs(60);
const SLOT_WAIT_MAX: Duration = Duration::from_secs(20);

/// Time limits of uploads. Tests use shorter ones.
#[derive(Clone, Copy, Debug)]
pub struct UploadLimits {
    /// Without a byte.
    pub stall: Duration,
    /// Without the minimum average rate.
    pub slow: Duration,
    /// Between checks that the bytes may change.
    pub renewal: Duration,
    pub slot: Duration,
}

impl Default for UploadLimits {
    fn default() -> Self {
        Self { stall: STALL_MAX, slow: SLOW_MAX, renewal: RENEW_EVERY, slot: SLOT_WAIT_MAX }
    }
}

impl UploadLimits {
    /// Maximum duration of an upload after `size` bytes.
    fn allowed(&self, size: u64) -> Duration {
        (self.slow + Duration::from_secs(size / BYTES_PER_SECOND_MIN)).min(TIME_MAX)
    }
}

#[derive(Clone, Debug)]
pub struct NewBytes {
    pub name: BlobName,
    pub content_type: String,
    pub content_encoding: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Writer {
    /// May replace bytes for a while.
    Client,
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

    /// Stores the server's own bytes, also when clients may no longer change the name. Fails if the
    /// name has bytes: a client's bytes are better, and another server may already have deleted the
    /// source of its own.
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
        let _slot = match by {
            Writer::Client => Some(self.shared.slots.take(&new.name, self.shared.limits.slot).await?),
            // One pass stores them one after the other, and clients must not block it.
            Writer::Server => None,
        };
        let id = Uuid::new_v4();
        let row = NewBlob {
            id,
            name: new.name.as_str(),
            content_type: &new.content_type,
            content_encoding: new.content_encoding.as_deref(),
        };
        blobs::begin(pool, row, LEASE).await?;
        let (size, sha256) = match self.write_body(pool, id, new, by, body).await {
            Ok(stored) => stored,
            // A bucket may apply an unacknowledged request later. Such bytes are removed after the
            // lease.
            Err(error @ BlobError::Store(_)) if self.shared.backing.may_be_late() => return Err(error),
            Err(error) => {
                // A server that treats an upload as abandoned deletes its file, which the store
                // reports as an error.
                let abandoned =
                    matches!(error, BlobError::Store(_)) && matches!(blobs::renew(pool, id, LEASE).await, Ok(false));
                // If this fails too, the row remains for the pass that removes the bytes.
                self.remove_now(pool, &[id]).await;
                return Err(if abandoned { BlobError::Deleted } else { error });
            }
        };
        if let Err(error) = make_current(pool, &new.name, by, id, size, &sha256).await {
            // A commit without a response may have happened. The bytes stay: they are current, or
            // are removed after the lease.
            if !matches!(error, BlobError::Database(_)) {
                self.remove_now(pool, &[id]).await;
            }
            return Err(error);
        }
        let (content_type, content_encoding) = (new.content_type.clone(), new.content_encoding.clone());
        Ok(StoredBlob { size, sha256, content_type, content_encoding })
    }

    async fn write_body<E>(
        &self,
        pool: &PgPool,
        id: Uuid,
        new: &NewBytes,
        by: Writer,
        body: impl Stream<Item = Result<Bytes, E>> + Send,
    ) -> Result<(i64, [u8; 32]), BlobError> {
        let backing = &self.shared.backing;
        let store = backing.store().map_err(BlobError::Store)?;
        let mut writer = ObjectWriter::new(&*store, backing.key(id), backing.part);
        let open = match by {
            Writer::Client => Some(&new.name),
            Writer::Server => None,
        };
        match self.copy(pool, id, open, body, &mut writer).await {
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

    /// Copies the body to the writer, while the bytes of the name `open` may change.
    async fn copy<E>(
        &self,
        pool: &PgPool,
        id: Uuid,
        open: Option<&BlobName>,
        body: impl Stream<Item = Result<Bytes, E>> + Send,
        writer: &mut ObjectWriter<'_>,
    ) -> Result<(i64, [u8; 32]), BlobError> {
        let mut body = pin!(body);
        let (limits, began) = (self.shared.limits, Instant::now());
        let (mut size, mut digest, mut renewed) = (0_u64, Sha256::new(), began);
        loop {
            let chunk = match tokio::time::timeout(limits.stall, body.next()).await {
                Err(_) => return Err(BlobError::Stalled(limits.stall.as_secs())),
                Ok(Some(Err(_))) => return Err(BlobError::Cut),
                Ok(None) => break,
                Ok(Some(Ok(chunk))) => chunk,
            };
            size += chunk.len() as u64;
            if size > self.shared.size_max {
                return Err(BlobError::TooLarge(self.shared.size_max));
            }
            if began.elapsed() > limits.allowed(size) {
                return Err(BlobError::Slow(BYTES_PER_SECOND_MIN));
            }
            digest.update(&chunk);
            writer.write(&chunk).await?;
            metrics::counter!("tenure_artifact_bytes_total", "direction" => "in").increment(chunk.len() as u64);
            if renewed.elapsed() > limits.renewal {
                if let Some(name) = open {
                    self.check_open(pool, name).await?;
                }
                if !blobs::renew(pool, id, LEASE).await? {
                    return Err(BlobError::Deleted);
                }
                renewed = Instant::now();
            }
        }
        Ok((i64::try_from(size).map_err(|_| BlobError::TooLarge(self.shared.size_max))?, digest.finalize().into()))
    }
}

/// Makes stored bytes current, and checks in the same transaction that this is still allowed.
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
        Writer::Server => {
            sealed::lock(&mut transaction, name).await?;
            if !blobs::find(&mut *transaction, &[name.as_str().to_owned()]).await?.is_empty() {
                return Err(BlobError::Sealed(Sealed::Uploaded));
            }
        }
    }
    let stored = blobs::finish(&mut transaction, id, size, sha256, RETAINED_AFTER_REPLACED).await?;
    // Dropping the transaction rolls it back.
    stored.ok_or(BlobError::Deleted)?;
    transaction.commit().await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_slow_body_has_time_and_trickle_has_not() {
        let limits = UploadLimits::default();
        assert_eq!(limits.allowed(0), SLOW_MAX);
        // A byte every 50 seconds.
        assert!(limits.allowed(3600 / 50) < SLOW_MAX * 2);
        // 10 GiB at 2 Mbit/s take less than 12 hours.
        assert!(limits.allowed(10 << 30) >= Duration::from_secs(12 * 3600));
        assert_eq!(limits.allowed(u64::MAX), TIME_MAX);
    }
}
