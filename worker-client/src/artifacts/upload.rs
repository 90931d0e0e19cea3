//! Uploads: creates an artifact and streams a file to its signed URL.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use reqwest::Body;
use reqwest::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE};
use tenure_api::dates::Timestamp;
use tenure_api::ids::{RunId, TaskId};

use super::{NewArtifact, PutUrl, STALLED_AFTER, gzip};
use crate::error::chain;
use crate::{Client, Error, retry};

const CHUNK_BYTES: u64 = 128 * 1024;
/// Timeout after the last byte. The store may have to assemble a large file.
const ANSWERED_WITHIN: Duration = Duration::from_secs(300);

/// A file to upload. Its length is fixed when it is opened.
///
/// ```no_run
/// use tenure_client::Upload;
///
/// # async fn example(claim: &tenure_client::Claim) -> Result<(), tenure_client::Error> {
/// let report = Upload::from_path("report.html".as_ref(), "text/html", claim.task().expires)?;
/// let report = report.gzip("/var/tmp".as_ref()).await?;
/// claim.client().upload(claim.task_id(), claim.run_id(), "public/report.html", &report).await?;
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
pub struct Upload {
    file: Arc<File>,
    /// Bytes to send.
    length: u64,
    /// Bytes after decompression.
    content_length: u64,
    encoding: Option<&'static str>,
    content_type: String,
    expires: Timestamp,
}

#[derive(Default)]
struct Progress {
    sent: AtomicU64,
    unreadable: Mutex<Option<io::Error>>,
}

impl Upload {
    /// Opens a file for upload.
    ///
    /// ```no_run
    /// # use tenure_client::{Claim, Error, Upload};
    /// # fn example(claim: &Claim) -> Result<(), Error> {
    /// let report = Upload::from_path("report.html".as_ref(), "text/html", claim.task().expires)?;
    /// # drop(report);
    /// # Ok(()) }
    /// ```
    pub fn from_path(path: &Path, content_type: &str, expires: Timestamp) -> Result<Self, Error> {
        let file = File::open(path).map_err(Error::of_file(format!("{} cannot be opened", path.display())))?;
        Self::from_file(file, content_type, expires)
    }

    /// Uploads an open file.
    ///
    /// ```no_run
    /// # use tenure_client::{Claim, Error, Upload};
    /// # fn example(claim: &Claim, file: std::fs::File) -> Result<(), Error> {
    /// let log = Upload::from_file(file, "text/plain", claim.task().expires)?;
    /// # drop(log);
    /// # Ok(()) }
    /// ```
    pub fn from_file(file: File, content_type: &str, expires: Timestamp) -> Result<Self, Error> {
        let length = file.metadata().map_err(Error::of_file("a file to upload has no length"))?.len();
        let (file, content_type) = (Arc::new(file), content_type.to_owned());
        Ok(Self { file, length, content_length: length, encoding: None, content_type, expires })
    }

    /// Marks the file as gzip output of `content_length` bytes.
    ///
    /// ```no_run
    /// # use tenure_client::{Claim, Error, Upload};
    /// # fn example(claim: &Claim) -> Result<(), Error> {
    /// let log = Upload::from_path("log.txt.gz".as_ref(), "text/plain", claim.task().expires)?;
    /// let log = log.compressed(52_100);
    /// assert_eq!(log.content_length(), 52_100);
    /// # Ok(()) }
    /// ```
    pub fn compressed(self, content_length: u64) -> Self {
        Self { encoding: Some(gzip::ENCODING), content_length, ..self }
    }

    /// Compresses the file into an unnamed file in `folder`. It is stored compressed; readers
    /// receive the original bytes.
    ///
    /// ```no_run
    /// # use tenure_client::{Error, Upload};
    /// # async fn example(log: Upload) -> Result<(), Error> {
    /// let log = log.gzip("/var/tmp".as_ref()).await?;
    /// # drop(log);
    /// # Ok(()) }
    /// ```
    pub async fn gzip(self, folder: &Path) -> Result<Self, Error> {
        let (from, length, folder) = (Arc::clone(&self.file), self.length, folder.to_owned());
        let packed = blocking(move || gzip::compress(&folder, |to| gzip::copy(&from, 0..length, to))).await;
        let packed = packed.map_err(Error::of_file("a file to upload could not be compressed"))?;
        Ok(Self::from_file(packed, &self.content_type, self.expires)?.compressed(self.content_length))
    }

    /// Returns the number of bytes after decompression.
    ///
    /// ```no_run
    /// # fn example(log: &tenure_client::Upload) {
    /// println!("{} bytes", log.content_length());
    /// # }
    /// ```
    #[must_use]
    pub fn content_length(&self) -> u64 {
        self.content_length
    }

    fn body(&self, progress: &Arc<Progress>) -> Body {
        let (file, length, progress) = (Arc::clone(&self.file), self.length, Arc::clone(progress));
        Body::wrap_stream(futures_util::stream::try_unfold(0, move |at| {
            let (file, progress) = (Arc::clone(&file), Arc::clone(&progress));
            async move {
                progress.sent.store(at, Ordering::Relaxed);
                if at == length {
                    return Ok(None);
                }
                let count = usize::try_from(CHUNK_BYTES.min(length - at)).unwrap_or_default();
                match blocking(move || read(&file, at, count)).await {
                    Ok(chunk) => {
                        let next = at + u64::try_from(chunk.len()).unwrap_or_default();
                        Ok(Some((chunk, next)))
                    }
                    Err(error) => {
                        let copy = io::Error::from(error.kind());
                        *progress.unreadable.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
                        Err(copy)
                    }
                }
            }
        }))
    }
}

impl Progress {
    /// Returns the timeout once no byte has moved for it.
    async fn stalled(&self, length: u64) -> Duration {
        loop {
            let seen = self.sent.load(Ordering::Relaxed);
            let limit = if seen == length { ANSWERED_WITHIN } else { STALLED_AFTER };
            tokio::time::sleep(limit).await;
            if self.sent.load(Ordering::Relaxed) == seen {
                return limit;
            }
        }
    }
}

impl Client {
    /// Creates an s3 artifact of a run and sends its bytes. Retries by the client's policy start
    /// over with a new URL and replace the bytes.
    ///
    /// # Errors
    /// The bytes cannot be sent, or the file cannot be read.
    ///
    /// ```no_run
    /// # use tenure_client::{Claim, Error, Upload};
    /// # async fn example(claim: &Claim) -> Result<(), Error> {
    /// let log = Upload::from_path("log.txt".as_ref(), "text/plain", claim.task().expires)?;
    /// claim.client().upload(claim.task_id(), claim.run_id(), "public/log.txt", &log).await?;
    /// # Ok(()) }
    /// ```
    pub async fn upload(&self, task_id: TaskId, run_id: RunId, name: &str, upload: &Upload) -> Result<(), Error> {
        let artifact = NewArtifact::S3 {
            content_type: upload.content_type.clone(),
            content_length: Some(upload.content_length),
            expires: upload.expires,
        };
        let mut tried = 0;
        loop {
            // Signed URLs expire, so each attempt requests a new one. `create_artifact` has its own
            // retries.
            let target = self.create_artifact(task_id, run_id, name, &artifact).await?;
            let target = target.ok_or(Error::SignedUrl("the queue returned no URL to upload an artifact"))?;
            let Err(error) = self.put(&target, upload).await else { return Ok(()) };
            tried += 1;
            let Some(pause) = self.retry_policy().pause_after(tried, &error, retry::jitter()) else {
                return Err(error);
            };
            tracing::info!(artifact = name, tried, error = chain(&error), "retrying the upload of an artifact");
            tokio::time::sleep(pause).await;
        }
    }

    async fn put(&self, target: &PutUrl, upload: &Upload) -> Result<(), Error> {
        let progress = Arc::new(Progress::default());
        let mut request = self
            .http()
            .put(self.absolute(&target.url)?)
            .header(CONTENT_TYPE, &target.content_type)
            .header(CONTENT_LENGTH, upload.length);
        if let Some(encoding) = upload.encoding {
            request = request.header(CONTENT_ENCODING, encoding);
        }
        let answer = tokio::select! {
            answer = request.body(upload.body(&progress)).send() => answer,
            limit = progress.stalled(upload.length) => return Err(Error::Stalled(limit)),
        };
        if let Some(error) = progress.unreadable.lock().unwrap_or_else(PoisonError::into_inner).take() {
            return Err(Error::of_file("a file to upload could not be read")(error));
        }
        let status = answer.map_err(|error| Error::Network(error.without_url()))?.status();
        if status.is_success() { Ok(()) } else { Err(Error::Store { status: status.as_u16() }) }
    }
}

fn read(file: &File, at: u64, count: usize) -> io::Result<Vec<u8>> {
    let mut chunk = vec![0; count];
    file.read_exact_at(&mut chunk, at)?;
    Ok(chunk)
}

/// Runs blocking file operations on another thread.
///
/// ```no_run
/// # async fn example() -> std::io::Result<()> {
/// let report = tenure_client::artifacts::blocking(|| std::fs::read_to_string("report.html")).await?;
/// # drop(report);
/// # Ok(()) }
/// ```
pub async fn blocking<T: Send + 'static>(work: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|stopped| Err(io::Error::other(stopped)))
}
