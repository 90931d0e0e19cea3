//! Writes one object to the store. A body that fits into one part needs one request.

use std::future::Future;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use object_store::path::Path;
use object_store::{MultipartUpload, ObjectStore, ObjectStoreExt as _, PutPayload};
use tokio::task::JoinSet;

use super::BlobError;
use super::backing::{StoreError, io_error};

/// Timeout of storing a part, and of completing the object.
const STORE_TIMEOUT: Duration = Duration::from_secs(120);
/// Parts stored while the next one is read.
const PARTS_IN_FLIGHT: usize = 2;

pub(super) struct ObjectWriter<'a> {
    store: &'a dyn ObjectStore,
    key: Path,
    part: usize,
    buffer: BytesMut,
    /// None while the body fits into one part.
    parts: Option<Parts>,
    timeout: Duration,
}

struct Parts {
    upload: Box<dyn MultipartUpload>,
    storing: JoinSet<Result<(), StoreError>>,
}

impl<'a> ObjectWriter<'a> {
    pub(super) fn new(store: &'a dyn ObjectStore, key: Path, part: usize) -> Self {
        Self { store, key, part, buffer: BytesMut::new(), parts: None, timeout: STORE_TIMEOUT }
    }

    pub(super) async fn write(&mut self, mut chunk: &[u8]) -> Result<(), BlobError> {
        // At most one part at once, so that memory stays bounded for any chunk size.
        while !chunk.is_empty() {
            if self.buffer.len() >= self.part {
                self.store_part().await?;
            }
            let (now, later) = chunk.split_at(chunk.len().min(self.part - self.buffer.len()));
            self.buffer.extend_from_slice(now);
            chunk = later;
        }
        Ok(())
    }

    async fn store_part(&mut self) -> Result<(), BlobError> {
        let parts = match &mut self.parts {
            Some(parts) => parts,
            None => {
                let upload = within(self.timeout, self.store.put_multipart(&self.key)).await?;
                self.parts.insert(Parts { upload, storing: JoinSet::new() })
            }
        };
        within(self.timeout, parts.until_at_most(PARTS_IN_FLIGHT - 1)).await?;
        let full = std::mem::replace(&mut self.buffer, BytesMut::with_capacity(self.part));
        parts.add(full.freeze());
        Ok(())
    }

    /// Stores the rest and completes the object, or aborts it.
    pub(super) async fn finish(&mut self) -> Result<(), BlobError> {
        let rest = std::mem::take(&mut self.buffer).freeze();
        let finished = match &mut self.parts {
            None => within(self.timeout, self.store.put(&self.key, PutPayload::from(rest))).await.map(drop),
            Some(parts) => {
                parts.add(rest);
                within(self.timeout, parts.complete()).await
            }
        };
        if finished.is_err() {
            self.abort().await;
        }
        finished
    }

    pub(super) async fn abort(&mut self) {
        let Some(parts) = &mut self.parts else { return };
        parts.storing.shutdown().await;
        // Remaining parts are removed with the row, or by the bucket's own rules.
        if let Err(error) = within(self.timeout, parts.upload.abort()).await {
            tracing::debug!(error = %error, "an upload could not be aborted");
        }
    }
}

impl Parts {
    fn add(&mut self, bytes: Bytes) {
        self.storing.spawn(self.upload.put_part(PutPayload::from(bytes)));
    }

    async fn until_at_most(&mut self, count: usize) -> Result<(), StoreError> {
        while self.storing.len() > count {
            match self.storing.join_next().await {
                Some(Ok(stored)) => stored?,
                Some(Err(error)) => return Err(io_error(std::io::Error::other(error))),
                None => break,
            }
        }
        Ok(())
    }

    async fn complete(&mut self) -> Result<(), StoreError> {
        self.until_at_most(0).await?;
        self.upload.complete().await.map(drop)
    }
}

async fn within<T>(time: Duration, request: impl Future<Output = Result<T, StoreError>>) -> Result<T, BlobError> {
    match tokio::time::timeout(time, request).await {
        Ok(result) => result.map_err(BlobError::Store),
        Err(_) => Err(BlobError::Store(io_error(std::io::ErrorKind::TimedOut.into()))),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use futures_util::future::{BoxFuture, pending, ready};
    use object_store::memory::InMemory;
    use object_store::{PutResult, UploadPart};

    use super::*;

    /// Takes parts and never completes the object.
    #[derive(Debug, Default)]
    struct Silent {
        aborted: Arc<AtomicBool>,
    }

    // Written like the trait's macro.
    impl MultipartUpload for Silent {
        fn put_part(&mut self, _: PutPayload) -> UploadPart {
            Box::pin(ready(Ok(())))
        }

        fn complete<'life0, 'async_trait>(&'life0 mut self) -> BoxFuture<'async_trait, object_store::Result<PutResult>>
        where
            'life0: 'async_trait,
            Self: 'async_trait,
        {
            Box::pin(pending())
        }

        fn abort<'life0, 'async_trait>(&'life0 mut self) -> BoxFuture<'async_trait, object_store::Result<()>>
        where
            'life0: 'async_trait,
            Self: 'async_trait,
        {
            self.aborted.store(true, Ordering::Relaxed);
            Box::pin(ready(Ok(())))
        }
    }

    #[tokio::test]
    async fn object_is_aborted_if_not_completed_in_time() {
        let store = InMemory::new();
        let mut writer = ObjectWriter::new(&store, Path::from("x"), 4);
        writer.timeout = Duration::from_millis(50);
        let silent = Silent::default();
        let aborted = Arc::clone(&silent.aborted);
        writer.parts = Some(Parts { upload: Box::new(silent), storing: JoinSet::new() });
        writer.write(b"more than a part").await.unwrap();
        assert!(matches!(writer.finish().await, Err(BlobError::Store(_))));
        assert!(aborted.load(Ordering::Relaxed), "its parts stay in the store");
    }

    #[tokio::test]
    async fn bytes_written_in_any_pieces_are_stored_unchanged() {
        let (store, bytes) = (InMemory::new(), b"0123456789".repeat(10));
        for (piece, part) in [(1, 4), (7, 4), (100, 4), (3, 100), (10, 10), (50, 99)] {
            let key = Path::from(format!("{piece}/{part}"));
            let mut writer = ObjectWriter::new(&store, key.clone(), part);
            for chunk in bytes.chunks(piece) {
                writer.write(chunk).await.unwrap();
            }
            writer.finish().await.unwrap();
            let stored = store.get(&key).await.unwrap().bytes().await.unwrap();
            assert!(stored == bytes, "pieces of {piece}, parts of {part}");
        }
    }
}
