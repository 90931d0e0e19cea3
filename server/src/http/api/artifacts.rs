//! Reading artifacts: getArtifact, getLatestArtifact, artifact, latestArtifact.

use std::sync::Arc;

use axum::response::{IntoResponse, Response};
use chrono::{DateTime, Utc};
use http::{HeaderName, HeaderValue, StatusCode};
use tenure_api::artifacts::{
    ArtifactAtUrl, ArtifactContent, ArtifactError, ArtifactInService, ArtifactMissing, ArtifactRedirect, ErrorTag,
    ObjectTag, UrlTag,
};
use tenure_api::errors::ErrorCode;
use tenure_api::ids::{ArtifactName, RunId, TaskId};
use tenure_api::states::StorageType;

use super::{ok, see_other};
use crate::blobs::BlobName;
use crate::domain::artifact::{self, Artifact, DOWNLOAD_CREDENTIALS_LIFE, Details, GET_URL_LIFE, LINKS_MAX, Met};
use crate::domain::scopes::Expression;
use crate::http::app::App;
use crate::http::call::Call;
use crate::http::error::ApiError;
use crate::store::artifacts;

/// Says what kind of artifact an answer leads to.
const STORAGE_TYPE: HeaderName = HeaderName::from_static("x-taskcluster-artifact-storage-type");

/// An artifact that may be read, after all links.
struct Found {
    task: TaskId,
    run: RunId,
    artifact: Artifact,
    now: DateTime<Utc>,
}

/// `GET /task/:taskId/runs/:runId/artifacts/:name`
pub async fn get_artifact(app: App, call: Arc<Call>) -> Result<Response, ApiError> {
    redirect(&app, &find(&app, &call, Some(call.run_id()?)).await?).await
}

/// `GET /task/:taskId/artifacts/:name`
pub async fn get_latest_artifact(app: App, call: Arc<Call>) -> Result<Response, ApiError> {
    redirect(&app, &find(&app, &call, None).await?).await
}

/// `GET /task/:taskId/runs/:runId/artifact-content/:name`
pub async fn artifact(app: App, call: Arc<Call>) -> Result<Response, ApiError> {
    content(&app, &find(&app, &call, Some(call.run_id()?)).await?).await
}

/// `GET /task/:taskId/artifact-content/:name`
pub async fn latest_artifact(app: App, call: Arc<Call>) -> Result<Response, ApiError> {
    content(&app, &find(&app, &call, None).await?).await
}

/// Follows links from a name on. The caller needs a scope for each name, and is not told what has a name that they may not
/// read.
async fn find(app: &App, call: &Call, run: Option<RunId>) -> Result<Found, ApiError> {
    let (task, name) = (call.task_id()?, call.artifact_name()?);
    call.no_query()?;
    authorize(call, name.as_str())?;
    let missing = |name: &str| ApiError::new(ErrorCode::ResourceNotFound, format!("there is no artifact {name:?}"));
    let links_max = i32::try_from(LINKS_MAX).unwrap_or(i32::MAX);
    let mut conn = app.engine.pool.acquire().await?;
    let chain = artifacts::find_chain(&mut conn, task, run, name.as_str(), links_max).await?;
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
                authorize(call, target)?;
                names.push(target);
            }
            Met::Circle => return Err(unfit_link(&name, "back to a name that was met before")),
            Met::TooManyLinks => return Err(unfit_link(&name, &format!("through more than {LINKS_MAX} links"))),
            Met::Artifact(artifact) => {
                return Ok(Found { task, run: chain.run, artifact: artifact.clone(), now: chain.now });
            }
        }
    }
}

fn authorize(call: &Call, name: &str) -> Result<(), ApiError> {
    call.authorize(&reading(name))
}

/// What reading an artifact of this name needs.
pub(in crate::http) fn reading(name: &str) -> Expression {
    Expression::from(format!("queue:get-artifact:{name}"))
}

fn unfit_link(name: &ArtifactName, whither: &str) -> ApiError {
    ApiError::new(ErrorCode::InputError, format!("the links from the artifact {name:?} lead {whither}"))
}

impl Found {
    /// Where its bytes are: at a URL that is always the same if everybody may read it, which caches can keep; otherwise at a
    /// signed one, for a while and not longer than it is kept.
    async fn url(&self, app: &App, blob: &BlobName) -> Result<String, ApiError> {
        if app.authenticator.anonymous().await?.authorize(&reading(&self.artifact.name)).is_ok() {
            return Ok(app.engine.blobs.plain_url(&self.own_bytes()));
        }
        let end = (self.now + GET_URL_LIFE).min(self.artifact.expires);
        Ok(app.engine.blobs.get_url(blob, end.timestamp_millis()))
    }

    fn own_bytes(&self) -> BlobName {
        BlobName::artifact(self.task, self.run, &self.artifact.name)
    }

    fn object_name(&self) -> String {
        artifact::object_name(self.task, self.run, &self.artifact.name)
    }
}

async fn redirect(app: &App, found: &Found) -> Result<Response, ApiError> {
    let storage_type = found.artifact.details.storage_type();
    let url = match &found.artifact.details {
        Details::S3 => found.url(app, &found.own_bytes()).await?,
        Details::Object { .. } => found.url(app, &BlobName::object(&found.object_name())).await?,
        Details::Reference { url } => url.clone(),
        Details::Link { .. } => return Err(ApiError::internal("a link was not followed")),
        Details::Error { reason, message } => {
            let body = ArtifactError { reason: *reason, message };
            let mut response = (StatusCode::FAILED_DEPENDENCY, axum::Json(body)).into_response();
            response.headers_mut().insert(STORAGE_TYPE, header(storage_type));
            return Ok(response);
        }
    };
    let mut response = see_other(&url, &ArtifactRedirect { storage_type, url: &url })?;
    response.headers_mut().insert(STORAGE_TYPE, header(storage_type));
    Ok(response)
}

fn header(storage_type: StorageType) -> HeaderValue {
    HeaderValue::from_static(storage_type.as_str())
}

async fn content(app: &App, found: &Found) -> Result<Response, ApiError> {
    ok(&match &found.artifact.details {
        Details::S3 => {
            let url = found.url(app, &found.own_bytes()).await?;
            ArtifactContent::Url(ArtifactAtUrl { storage_type: UrlTag::S3, url })
        }
        Details::Reference { url } => {
            ArtifactContent::Url(ArtifactAtUrl { storage_type: UrlTag::Reference, url: url.clone() })
        }
        Details::Object { .. } => ArtifactContent::Object(in_service(app, found)),
        Details::Error { reason, message } => {
            ArtifactContent::Error(ArtifactMissing { storage_type: ErrorTag::Error, reason: *reason, message })
        }
        Details::Link { .. } => return Err(ApiError::internal("a link was not followed")),
    })
}

fn in_service(app: &App, found: &Found) -> ArtifactInService {
    let name = found.object_name();
    let end = found.now + DOWNLOAD_CREDENTIALS_LIFE;
    let client_id = format!("artifact-download/{}/{}/until/{}", found.task, found.run, end.timestamp());
    let scope = format!("object:download:{name}");
    let credentials = app.authenticator.task_credentials().issue_one(client_id, scope, found.now, end);
    ArtifactInService { storage_type: ObjectTag::Object, name, credentials }
}
