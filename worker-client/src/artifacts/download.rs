//! Downloads: asking the queue where an artifact is, and streaming it into a file.

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

/// The header of RFC 9530 with digests of the bytes as they are sent, compressed or not.
const DIGEST: &str = "repr-digest";

/// What was downloaded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Downloaded {
    /// How long the file is.
    pub bytes: u64,
    /// The digest of the file, in small hexadecimal digits.
    pub sha256: String,
}

/// Where it goes.
#[derive(Clone, Copy)]
enum Destination<'a> {
    /// Beside this file.
    Beside(&'a Path),
    /// Into one without a name in this folder.
    In(&'a Path),
}

#[derive(Deserialize)]
struct Location {
    url: String,
}

impl Client {
    /// Reads an artifact of a run, or of a task's last run, into a file. Links are followed and compression is undone.
    /// The file appears under its name when it is whole.
    ///
    /// # Errors
    /// There is no such artifact (404; 410 if it has expired; 424 if it is of the type error), the caller may not read
    /// it, it did not come whole after all tries, or the file could not be written.
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

    /// The same into a file without a name in this folder, which is read from its beginning: nothing is left of it when it is closed, or
    /// when this process is killed.
    ///
    /// # Errors
    /// As of [`download`](Self::download).
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
            // Asked for each time, because a signed URL ends. This call has its own retries.
            let location: Location = self.call(&call).await?.value;
            let error = match self.fetch(&location, to).await {
                Ok(arrived) => return Ok(arrived),
                Err(error) => error,
            };
            tried += 1;
            let Some(pause) = self.retry_policy().pause_after(tried, &error, retry::jitter()) else {
                return Err(error);
            };
            tracing::info!(artifact = name, tried, error = chain(&error), "an artifact is downloaded again");
            tokio::time::sleep(pause).await;
        }
    }

    async fn fetch(&self, location: &Location, to: Destination<'_>) -> Result<Arrived, Error> {
        // Asking for it ourselves lets the store send what it keeps; without, it would have to decompress.
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
        Some(other) => return Err(Error::Damaged(format!("its encoding, {other:?}, is not known"))),
    };
    let (Destination::Beside(path) | Destination::In(path)) = to;
    let (place, promised) = (path.to_owned(), promised_digest(response.headers()));
    let mut sink = match to {
        Destination::Beside(_) => blocking(move || Sink::create(&place, gzip, promised)).await,
        Destination::In(_) => blocking(move || Sink::create_unnamed(&place, gzip, promised)).await,
    }
    .map_err(not_written(path))?;
    // A connection that ends before the announced length is an error of the HTTP library's.
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

/// What does not fit its digest, or cannot be decoded, came broken; all else is the disk's.
fn not_taken(to: &Path) -> impl FnOnce(io::Error) -> Error {
    let not_written = not_written(to);
    |error| match error.kind() {
        io::ErrorKind::InvalidInput | io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof => {
            Error::Damaged(error.to_string())
        }
        _ => not_written(error),
    }
}

/// The digest of the bytes, by the header of the store.
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
    fn a_promised_digest_is_read_among_others() {
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
