//! Reading of artifacts: links, scopes and URLs.

use chrono::{DateTime, Utc};
use tenure_api::errors::ErrorCode::ResourceExpired;
use tenure_api::ids::ArtifactName;
use tenure_api::live_log::LIVE_LOG;

use crate::http::api::live_log::signed;
use crate::http::api::prelude::*;
use tenure_domain::artifact::{self, Artifact, GET_URL_LIFE, LINKS_MAX, Met};
use tenure_domain::scopes::Expression;
use tenure_engine::blobs::BlobName;
use tenure_store::artifacts;

/// After resolving all links.
pub(super) struct FoundArtifact {
    pub(super) task: TaskId,
    pub(super) run: RunId,
    pub(super) artifact: Artifact,
    pub(super) now: DateTime<Utc>,
}

/// For each artifact on the chain of links.
pub(super) const SCOPES: Template = ForEach { item: "name", list: "names", scopes: &["queue:get-artifact:<name>"] };
pub(super) const LATEST: &str = "From the task's last run, even if that has no such artifact. ";
const MISSING: &str = "the artifact does not exist, or it is an object whose upload is not finished";
const LINKS: &str = "Links are followed, and each name on the way needs its scope; every caller has the scope for \
                     names that begin with `public/`. The URL of stored bytes is plain and constant if anonymous \
                     callers may read the artifact; otherwise it is signed and valid for at most 30 minutes.";

pub(super) fn described(operation: Operation, about: &str) -> Operation {
    operation
        .about(&format!("{about}{LINKS}"))
        .refuses(ResourceNotFound, MISSING)
        .refuses(ResourceExpired, "the artifact has expired and is not removed yet")
        .refuses(InputError, "links form a cycle, or lead through more than 100 artifacts")
}

pub(in crate::http) fn scopes_to_read(name: &str) -> Expression {
    let scopes = SCOPES.fill(&Values::of_path().list("names", [name]), &Values::of_path());
    scopes.expect("the template has no other list")
}

/// Follows the links. The caller needs a scope for each name, and learns nothing about other names.
pub(super) async fn find(app: &Api, call: &Call, run: Option<RunId>) -> Result<FoundArtifact, ApiError> {
    authorize(call, &[call.text_param("name")])?;
    let (task, name) = (call.task_id()?, call.artifact_name()?);
    call.no_query()?;
    let missing = |name: &str| ApiError::new(ErrorCode::ResourceNotFound, format!("there is no artifact {name:?}"));
    let links_max = i32::try_from(LINKS_MAX).unwrap_or(i32::MAX);
    let mut conn = app.engine.pool.acquire().await?;
    let mut chain = artifacts::find_chain(&mut conn, task, run, name.as_str(), links_max).await?;
    // A run that was made for a late result has none: they stay with the reported run.
    if chain.is_none()
        && let Some((_, reported)) = artifacts::find_run(&mut conn, task, run).await?
        && run != Some(reported)
    {
        chain = artifacts::find_chain(&mut conn, task, Some(reported), name.as_str(), links_max).await?;
    }
    drop(conn);
    let chain = chain.ok_or_else(|| missing(name.as_str()))?;
    let mut names = vec![name.as_str()];
    loop {
        let last = names[names.len() - 1];
        match artifact::meet(&names, chain.artifacts.get(names.len() - 1), chain.now) {
            Met::Nothing => return Err(missing(last)),
            Met::Expired => {
                return Err(ApiError::new(ErrorCode::ResourceExpired, format!("the artifact {last:?} has expired")));
            }
            Met::Link(target) => {
                names.push(target);
                authorize(call, &names)?;
            }
            Met::Circle => return Err(invalid_link(&name, "back to a name that was met before")),
            Met::TooManyLinks => return Err(invalid_link(&name, &format!("through more than {LINKS_MAX} links"))),
            Met::Artifact(artifact) => {
                return Ok(FoundArtifact { task, run: chain.run, artifact: artifact.clone(), now: chain.now });
            }
        }
    }
}

fn authorize(call: &Call, names: &[&str]) -> Result<(), ApiError> {
    call.authorize(&Values::of_path().list("names", names.iter().copied()))
}

fn invalid_link(name: &ArtifactName, where_to: &str) -> ApiError {
    ApiError::new(ErrorCode::InputError, format!("the links from the artifact `{name}` lead {where_to}"))
}

impl FoundArtifact {
    /// A permanent URL, for caches, if anonymous callers may read the bytes. Otherwise a signed URL
    /// that expires soon, at the latest with the artifact.
    pub(super) async fn url(&self, app: &Api, blob: &BlobName) -> Result<String, ApiError> {
        if self.is_open(app).await? {
            return Ok(app.engine.blobs.plain_url(&self.own_bytes()));
        }
        let end = (self.now + GET_URL_LIFE).min(self.artifact.expires);
        Ok(app.engine.blobs.get_url(blob, end.timestamp_millis()))
    }

    /// The run's live log gets a signed URL, unless anonymous callers may read it.
    pub(super) async fn reference(&self, app: &Api, url: &str) -> Result<String, ApiError> {
        if self.artifact.name != LIVE_LOG || self.is_open(app).await? {
            return Ok(url.to_owned());
        }
        signed::reference(app, (self.task, self.run), url, format!("queue:get-artifact:{LIVE_LOG}"), self.now)
    }

    async fn is_open(&self, app: &Api) -> Result<bool, ApiError> {
        Ok(app.intake.authenticator.anonymous().await?.authorize(&scopes_to_read(&self.artifact.name)).is_ok())
    }

    pub(super) fn own_bytes(&self) -> BlobName {
        BlobName::artifact(self.task, self.run, &self.artifact.name)
    }

    /// Name of the object with an object artifact's bytes.
    pub(super) fn object_name(&self) -> String {
        artifact::object_name(self.task, self.run, &self.artifact.name)
    }
}
