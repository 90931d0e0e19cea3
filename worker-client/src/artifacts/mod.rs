//! Artifacts: what a run of a task leaves for others.
//!
//! The queue knows of each artifact its name and where its bytes are. Bytes go to and come from signed URLs, which need
//! no credentials and are never in errors or logs.

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

/// How long the bytes of an artifact may make no progress.
const STALLED_AFTER: std::time::Duration = std::time::Duration::from_secs(60);

/// An artifact to create.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "storageType", rename_all = "lowercase", rename_all_fields = "camelCase")]
pub enum NewArtifact {
    /// Bytes, to be put to the URL of the answer; [`Client::upload`] does both.
    S3 {
        /// What kind of file it is.
        content_type: String,
        /// How long it is, uncompressed.
        #[serde(skip_serializing_if = "Option::is_none")]
        content_length: Option<u64>,
        /// When it may be deleted; not after its task.
        expires: Timestamp,
    },
    /// Bytes that are somewhere else already.
    Reference {
        /// Where.
        url: String,
        /// What kind of file it is.
        content_type: String,
        /// When it may be deleted.
        expires: Timestamp,
    },
    /// Another name of an artifact of the same run.
    Link {
        /// The name that it has.
        artifact: String,
        /// What kind of file it is.
        content_type: String,
        /// When it may be deleted.
        expires: Timestamp,
    },
    /// The place of an artifact that could not be made.
    Error {
        /// Why not.
        reason: UnusableBecause,
        /// The same for people.
        message: String,
        /// When it may be deleted.
        expires: Timestamp,
    },
}

/// Why a file could not become an artifact.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
pub enum UnusableBecause {
    /// It is not there.
    #[serde(rename = "file-missing-on-worker")]
    Missing,
    /// It is not of its declared type, or not the task's.
    #[serde(rename = "invalid-resource-on-worker")]
    Invalid,
    /// It is larger than the worker uploads.
    #[serde(rename = "too-large-file-on-worker")]
    TooLarge,
    /// The worker may not read it.
    #[serde(rename = "file-not-readable-on-worker")]
    NotReadable,
}

/// Where the bytes of a new artifact are to be put.
#[derive(Clone, PartialEq, Eq)]
pub struct PutUrl {
    url: String,
    /// The content type that the PUT must have, to the letter.
    pub content_type: String,
    /// Until when the URL can be used.
    pub expires: Timestamp,
}

impl PutUrl {
    /// The URL, a secret: it is enough to put the artifact's bytes.
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

/// An artifact as lists have it.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Artifact {
    /// Its name, unique within the run.
    pub name: String,
    /// Where its bytes are: s3, object, reference, link or error.
    pub storage_type: String,
    /// What kind of file it is.
    pub content_type: String,
    /// Its length, if its creator declared it.
    pub content_length: Option<u64>,
    /// How many bytes are stored of it, compressed as they were sent; of a server that tells it.
    #[serde(default)]
    pub size: Option<u64>,
    /// When it may be deleted.
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
    /// Creates an artifact of a run; only an s3 one is answered with a place for its bytes. Doing it again is harmless.
    ///
    /// # Errors
    /// The server refused (409: the run is over, or has another artifact of that name), or could not be reached.
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

    /// Lists the artifacts of a run, or of a task's last run.
    ///
    /// # Errors
    /// There is no such run, or the server could not be reached.
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

/// The path of a run's artifacts, or of those of a task's last run.
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
    fn each_kind_of_artifact_has_the_fields_of_the_api() {
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
    fn a_put_url_is_not_shown() {
        let expires = Timestamp::new("2001-01-01T00:00:00Z".parse().unwrap());
        let target = PutUrl { url: "http://x/?sig=secret".into(), content_type: "text/plain".into(), expires };
        assert!(!format!("{target:?}").contains("secret"));
    }
}
