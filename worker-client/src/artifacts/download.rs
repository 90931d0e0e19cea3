//! Downloads: locates an artifact and streams it into a file.

use std::fs::File;
use std::io;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use reqwest::header::{ACCEPT_ENCODING, CONTENT_ENCODING, HeaderMap};
use reqwest::{Method, Response};
use serde::Deserialize;
use tenure_api::ids::{RunId, TaskId};
use tokio::time::timeout;

use super::sink::{Arrived, Sink};
use super::{STALLED_AFTER, artifacts_of, blocking, gzip};
use crate::client::{Call, Own, TIMEOUT, header, parameter};
use crate::error::chain;
use crate::{Client, Error, retry};

/// RFC 9530: digests of the bytes as sent, compressed or not.
const DIGEST: &str = "repr-digest";

/// A finished download.
///
/// ```no_run
/// # use tenure_client::{Client, TaskId};
/// use tenure_client::Downloaded;
///
/// # async fn example(client: &Client, task_id: TaskId) -> Result<(), tenure_client::Error> {
/// let file = client.download(task_id, None, "public/result.tar", "result.tar".as_ref()).await?;
/// let Downloaded { bytes, sha256 } = file;
/// println!("{bytes} bytes, SHA-256 {sha256}");
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Downloaded {
    pub bytes: u64,
    /// In lowercase hexadecimal.
    pub sha256: String,
}

#[derive(Clone, Copy)]
enum Destination<'a> {
    /// A temporary file beside this path, renamed to it.
    Beside(&'a Path),
    /// An unnamed file in this folder.
    In(&'a Path),
}

#[derive(Deserialize)]
struct Location {
    url: String,
}

impl Client {
    /// Downloads an artifact of a run, by default the last one. Links are followed and compression
    /// is undone. The file appears under its name once complete.
    ///
    /// # Errors
    /// The artifact does not exist (404), has expired (410) or is of the type error (424). It did
    /// not arrive whole after all retries, or the file cannot be written.
    ///
    /// ```no_run
    /// # async fn example(client: &tenure_client::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// let task_id = "9HrBC1jMQ3KlZw4CssPUeQ".parse()?;
    /// let file = client.download(task_id, None, "public/result.tar", "in/result.tar".as_ref()).await?;
    /// println!("{} bytes", file.bytes);
    /// # Ok(()) }
    /// ```
    pub async fn download(
        &self,
        task_id: TaskId,
        run_id: Option<RunId>,
        name: &str,
        to: &Path,
    ) -> Result<Downloaded, Error> {
        let arrived = self.get_artifact(task_id, run_id, name, Destination::Beside(to)).await?;
        let downloaded = Downloaded { bytes: arrived.bytes, sha256: hex(&arrived.sha256) };
        let destination = to.to_owned();
        blocking(move || arrived.move_to(&destination)).await.map_err(not_written(to))?;
        Ok(downloaded)
    }

    /// Downloads into an unnamed file in `folder`, positioned at its beginning. The system removes
    /// the file when it is closed, even if this process is killed.
    ///
    /// # Errors
    /// As for [`download`](Self::download).
    ///
    /// ```no_run
    /// # async fn example(client: &tenure_client::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// let task_id = "9HrBC1jMQ3KlZw4CssPUeQ".parse()?;
    /// let log = client.download_unnamed(task_id, None, "public/logs/live_backing.log", "/var/tmp".as_ref()).await?;
    /// println!("{}", std::io::read_to_string(log)?);
    /// # Ok(()) }
    /// ```
    pub async fn download_unnamed(
        &self,
        task_id: TaskId,
        run_id: Option<RunId>,
        name: &str,
        folder: &Path,
    ) -> Result<File, Error> {
        let arrived = self.get_artifact(task_id, run_id, name, Destination::In(folder)).await?;
        arrived.into_file().map_err(not_written(folder))
    }

    async fn get_artifact(
        &self,
        task_id: TaskId,
        run_id: Option<RunId>,
        name: &str,
        to: Destination<'_>,
    ) -> Result<Arrived, Error> {
        let call = Call {
            method: Method::GET,
            path: format!("{}/{}", artifacts_of(task_id, run_id), parameter(&name)),
            body: None,
            timeout: TIMEOUT,
            own: Own::default(),
        };
        let mut tried = 0;
        loop {
            // Signed URLs expire, so each attempt requests a new one. `call` has its own retries.
            let location: Location = self.call(&call).await?.value;
            let error = match self.fetch(&location, to).await {
                Ok(arrived) => return Ok(arrived),
                Err(error) => error,
            };
            tried += 1;
            let Some(pause) = self.retry_policy().pause_after(tried, &error, retry::jitter()) else {
                return Err(error);
            };
            tracing::info!(artifact = name, tried, error = chain(&error), "retrying the download of an artifact");
            tokio::time::sleep(pause).await;
        }
    }

    async fn fetch(&self, location: &Location, to: Destination<'_>) -> Result<Arrived, Error> {
        // Otherwise the store would decompress the bytes.
        let request = self.store().get(self.absolute(&location.url)?).header(ACCEPT_ENCODING, gzip::ENCODING);
        let response = unless_stalled(request.send()).await?;
        let status = response.status();
        if !status.is_success() {
            return Err(Error::Store { status: status.as_u16() });
        }
        receive(response, to).await
    }
}

async fn receive(mut response: Response, to: Destination<'_>) -> Result<Arrived, Error> {
    let gzip = match header(response.headers(), CONTENT_ENCODING.as_str()) {
        None | Some("" | "identity") => false,
        Some(gzip::ENCODING | "x-gzip") => true,
        Some(other) => return Err(Error::Damaged(format!("its encoding {other:?} is unknown"))),
    };
    let (Destination::Beside(path) | Destination::In(path)) = to;
    let (place, promised) = (path.to_owned(), promised_digest(response.headers()));
    let mut sink = match to {
        Destination::Beside(_) => blocking(move || Sink::create(&place, gzip, promised)).await,
        Destination::In(_) => blocking(move || Sink::create_unnamed(&place, gzip, promised)).await,
    }
    .map_err(not_written(path))?;
    // The HTTP library detects a connection that ends early.
    while let Some(chunk) = unless_stalled(response.chunk()).await? {
        sink = blocking(move || sink.add(&chunk)).await.map_err(not_taken(path))?;
    }
    blocking(move || sink.finish()).await.map_err(not_taken(path))
}

async fn unless_stalled<T>(step: impl Future<Output = reqwest::Result<T>>) -> Result<T, Error> {
    match timeout(STALLED_AFTER, step).await {
        Ok(done) => done.map_err(|error| Error::Network(error.without_url())),
        Err(_elapsed) => Err(Error::Stalled(STALLED_AFTER)),
    }
}

fn not_written(to: &Path) -> impl FnOnce(io::Error) -> Error {
    Error::of_file(format!("{} cannot be written", to.display()))
}

/// A wrong digest or a failed decoding means damaged bytes; other errors are the disk's.
fn not_taken(to: &Path) -> impl FnOnce(io::Error) -> Error {
    let not_written = not_written(to);
    |error| match error.kind() {
        io::ErrorKind::InvalidInput | io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof => {
            Error::Damaged(error.to_string())
        }
        _ => not_written(error),
    }
}

fn promised_digest(headers: &HeaderMap) -> Option<Vec<u8>> {
    let value = header(headers, DIGEST)?;
    let digest = value.split(',').find_map(|part| part.trim().strip_prefix("sha-256=:")?.strip_suffix(':'))?;
    STANDARD.decode(digest).ok()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn promised_digest_is_read_among_others() {
        let of = |value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(DIGEST, value.parse().unwrap());
            promised_digest(&headers)
        };
        assert_eq!(of("sha-512=:AAA=:, sha-256=:AQI=:"), Some(vec![1, 2]));
        assert_eq!(of("sha-512=:AAA=:"), None);
        assert_eq!(of("sha-256=?"), None);
        assert_eq!(promised_digest(&HeaderMap::new()), None);
    }
}
