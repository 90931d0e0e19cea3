//! Artifacts: files that a run leaves for others. Signed URLs for their bytes need no credentials
//! and never appear in errors or logs.

mod download;
pub mod gzip;
mod sink;
mod upload;

use std::fmt;

use reqwest::Method;
use serde::{Deserialize, Serialize};
use tenure_api::dates::Timestamp;
use tenure_api::ids::{RunId, TaskId};

pub use download::Downloaded;
pub use upload::Upload;
pub use upload::blocking;

use crate::client::{Call, Own, TIMEOUT, parameter};
use crate::{Client, Error};

/// Timeout without progress.
const STALLED_AFTER: std::time::Duration = std::time::Duration::from_secs(60);

/// An artifact to create.
///
/// ```no_run
/// use tenure_client::NewArtifact;
///
/// # fn example(claim: &tenure_client::Claim) {
/// let report = NewArtifact::Reference {
///     url: "https://example.com/reports/7".to_owned(),
///     content_type: "text/html".to_owned(),
///     expires: claim.task().expires,
/// };
/// # drop(report);
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "storageType", rename_all = "lowercase", rename_all_fields = "camelCase")]
pub enum NewArtifact {
    /// Bytes in the artifact store; [`Client::upload`] sends them too.
    S3 {
        content_type: String,
        /// Uncompressed bytes.
        #[serde(skip_serializing_if = "Option::is_none")]
        content_length: Option<u64>,
        /// At the latest with the task.
        expires: Timestamp,
    },
    /// Bytes stored elsewhere.
    Reference { url: String, content_type: String, expires: Timestamp },
    /// Another name for an artifact of the same run.
    Link { artifact: String, content_type: String, expires: Timestamp },
    /// Placeholder for a missing artifact.
    Error { reason: UnusableBecause, message: String, expires: Timestamp },
}

/// Reason why a file could not become an artifact.
///
/// ```no_run
/// use tenure_client::{NewArtifact, UnusableBecause};
///
/// # async fn example(claim: &tenure_client::Claim) -> Result<(), tenure_client::Error> {
/// let missing = NewArtifact::Error {
///     reason: UnusableBecause::Missing,
///     message: "the build wrote no report".to_owned(),
///     expires: claim.task().expires,
/// };
/// claim.client().create_artifact(claim.task_id(), claim.run_id(), "public/report.html", &missing).await?;
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
pub enum UnusableBecause {
    #[serde(rename = "file-missing-on-worker")]
    Missing,
    /// The file is of another type than declared, or not the task's.
    #[serde(rename = "invalid-resource-on-worker")]
    Invalid,
    #[serde(rename = "too-large-file-on-worker")]
    TooLarge,
    #[serde(rename = "file-not-readable-on-worker")]
    NotReadable,
}

/// Signed URL for an upload.
///
/// ```no_run
/// # use tenure_client::{Claim, Error, NewArtifact};
/// # async fn example(claim: &Claim, artifact: &NewArtifact) -> Result<(), Error> {
/// let (client, task, run) = (claim.client(), claim.task_id(), claim.run_id());
/// let created = client.create_artifact(task, run, "public/a.txt", artifact).await?;
/// if let Some(target) = created {
///     println!("send the bytes as {} until {}", target.content_type, target.expires);
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct PutUrl {
    url: String,
    /// The PUT must send exactly this.
    pub content_type: String,
    pub expires: Timestamp,
}

impl PutUrl {
    /// Returns the URL. It is a secret that suffices to write the artifact's bytes.
    ///
    /// ```no_run
    /// # fn put(_url: &str, _content_type: &str, _bytes: &[u8]) {}
    /// # fn example(target: &tenure_client::PutUrl) {
    /// put(target.expose(), &target.content_type, b"hello");
    /// # }
    /// ```
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.url
    }
}

impl fmt::Debug for PutUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PutUrl").field("expires", &self.expires).finish_non_exhaustive()
    }
}

/// An artifact in a listing.
///
/// ```no_run
/// # use tenure_client::{Client, TaskId};
/// use tenure_client::Artifact;
///
/// # async fn example(client: &Client, task_id: TaskId) -> Result<(), tenure_client::Error> {
/// let listed: Vec<Artifact> = client.list_artifacts(task_id, None).await?;
/// let bytes: u64 = listed.iter().filter_map(|artifact| artifact.size).sum();
/// println!("{} artifacts, {bytes} bytes", listed.len());
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Artifact {
    /// Unique within the run.
    pub name: String,
    /// s3, object, reference, link or error.
    pub storage_type: String,
    pub content_type: String,
    /// In bytes, if declared.
    pub content_length: Option<u64>,
    /// Stored bytes, compressed as sent; if the server reports it.
    #[serde(default)]
    pub size: Option<u64>,
    pub expires: Timestamp,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct CreateAnswer {
    put_url: Option<String>,
    content_type: Option<String>,
    expires: Option<Timestamp>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ListAnswer {
    artifacts: Vec<Artifact>,
    continuation_token: Option<String>,
}

impl Client {
    /// Creates an artifact of a run. Returns an upload URL for s3 artifacts only. A repeat is
    /// harmless.
    ///
    /// # Errors
    /// The run is over, or has another artifact of that name (409).
    ///
    /// ```no_run
    /// # use tenure_client::{Claim, Error, NewArtifact};
    /// # async fn example(claim: &Claim) -> Result<(), Error> {
    /// let link = NewArtifact::Link {
    ///     artifact: "public/build-1.tar".into(),
    ///     content_type: "application/x-tar".into(),
    ///     expires: claim.task().expires,
    /// };
    /// claim.client().create_artifact(claim.task_id(), claim.run_id(), "public/latest.tar", &link).await?;
    /// # Ok(()) }
    /// ```
    pub async fn create_artifact(
        &self,
        task_id: TaskId,
        run_id: RunId,
        name: &str,
        artifact: &NewArtifact,
    ) -> Result<Option<PutUrl>, Error> {
        let call = Call {
            method: Method::POST,
            path: format!("{}/{}", artifacts_of(task_id, Some(run_id)), parameter(&name)),
            body: Some(serde_json::to_vec(artifact).expect("texts, a number and a date")),
            timeout: TIMEOUT,
            own: Own::default(),
        };
        let CreateAnswer { put_url, content_type, expires } = self.call(&call).await?.value;
        Ok(match (put_url, content_type, expires) {
            (Some(url), Some(content_type), Some(expires)) => Some(PutUrl { url, content_type, expires }),
            _ => None,
        })
    }

    /// Lists the artifacts of a run, by default the last one.
    ///
    /// ```no_run
    /// # async fn example(client: &tenure_client::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// for artifact in client.list_artifacts("9HrBC1jMQ3KlZw4CssPUeQ".parse()?, None).await? {
    ///     println!("{} {}", artifact.name, artifact.content_type);
    /// }
    /// # Ok(()) }
    /// ```
    pub async fn list_artifacts(&self, task_id: TaskId, run_id: Option<RunId>) -> Result<Vec<Artifact>, Error> {
        let mut artifacts = Vec::new();
        let mut query = None;
        loop {
            let call = Call {
                method: Method::GET,
                path: artifacts_of(task_id, run_id),
                body: None,
                timeout: TIMEOUT,
                own: Own { query, ..Own::default() },
            };
            let page: ListAnswer = self.call(&call).await?.value;
            artifacts.extend(page.artifacts);
            match page.continuation_token.filter(|token| !token.is_empty()) {
                Some(token) => query = Some(format!("continuationToken={}", parameter(&token))),
                None => return Ok(artifacts),
            }
        }
    }
}

fn artifacts_of(task_id: TaskId, run_id: Option<RunId>) -> String {
    match run_id {
        Some(run_id) => format!("/task/{}/runs/{}/artifacts", parameter(&task_id), parameter(&run_id)),
        None => format!("/task/{}/artifacts", parameter(&task_id)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn artifact_kinds_have_fields_of_api() {
        let expires = Timestamp::new("2001-01-01T00:00:00Z".parse().unwrap());
        let (text, date) = ("text/plain".to_owned(), "2001-01-01T00:00:00.000Z");
        for (artifact, fields) in [
            (
                NewArtifact::S3 { content_type: text.clone(), content_length: Some(7), expires },
                json!({"storageType": "s3", "contentType": text, "contentLength": 7, "expires": date}),
            ),
            (
                NewArtifact::S3 { content_type: text.clone(), content_length: None, expires },
                json!({"storageType": "s3", "contentType": text, "expires": date}),
            ),
            (
                NewArtifact::Reference { url: "http://x/".into(), content_type: text.clone(), expires },
                json!({"storageType": "reference", "url": "http://x/", "contentType": text, "expires": date}),
            ),
            (
                NewArtifact::Link { artifact: "a/b".into(), content_type: text.clone(), expires },
                json!({"storageType": "link", "artifact": "a/b", "contentType": text, "expires": date}),
            ),
            (
                NewArtifact::Error { reason: UnusableBecause::Missing, message: "m".into(), expires },
                json!({"storageType": "error", "reason": "file-missing-on-worker", "message": "m", "expires": date}),
            ),
        ] {
            assert_eq!(serde_json::to_value(&artifact).unwrap(), fields);
        }
    }

    #[test]
    fn put_url_is_hidden_in_debug() {
        let expires = Timestamp::new("2001-01-01T00:00:00Z".parse().unwrap());
        let target = PutUrl { url: "http://x/?sig=secret".into(), content_type: "text/plain".into(), expires };
        assert!(!format!("{target:?}").contains("secret"));
    }
}
