//! getArtifact, getLatestArtifact.

use axum::response::IntoResponse;
use http::{HeaderName, HeaderValue, StatusCode};
use tenure_api::artifacts::{ArtifactError, ArtifactRedirect};
use tenure_api::states::StorageType;

use super::example_url;
use super::reading::{self, FoundArtifact, LATEST, SCOPES, find};
use crate::http::api::prelude::*;
use crate::http::api::see_other;
use tenure_domain::artifact::Details;
use tenure_engine::blobs::BlobName;

const STORAGE_TYPE: HeaderName = HeaderName::from_static("x-taskcluster-artifact-storage-type");

/// `GET /task/:taskId/runs/:runId/artifacts/:name`
pub fn of_run() -> Endpoint {
    Endpoint::get("getArtifact", get_artifact).scopes(SCOPES).described(
        "queue",
        "Read an artifact",
        |operation, sample| described(operation, sample, ""),
    )
}

/// `GET /task/:taskId/artifacts/:name`
pub fn of_last_run() -> Endpoint {
    Endpoint::get("getLatestArtifact", get_latest_artifact).scopes(SCOPES).described(
        "queue",
        "Read an artifact of the last run",
        |operation, sample| described(operation, sample, LATEST),
    )
}

fn described(operation: Operation, sample: &Sample, about: &str) -> Operation {
    let example = json!({"storageType": "s3", "url": example_url(sample, "get")});
    let error = json!({"reason": "file-missing-on-worker", "message": "There was no such file."});
    reading::described(operation, about)
        .moves::<ArtifactRedirect<'_>>(
            "Its URL",
            &example,
            &[("x-taskcluster-artifact-storage-type", "Its storage type")],
        )
        .answers_json::<ArtifactError<'_>>(424, "The artifact is an error", &error)
}

async fn get_artifact(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    redirect(&app, &find(&app, &call, Some(call.run_id()?)).await?).await
}

async fn get_latest_artifact(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    redirect(&app, &find(&app, &call, None).await?).await
}

async fn redirect(app: &Api, found: &FoundArtifact) -> Result<Response, ApiError> {
    let storage_type = found.artifact.details.storage_type();
    let url = match &found.artifact.details {
        Details::S3 => found.url(app, &found.own_bytes()).await?,
        Details::Object { .. } => found.url(app, &BlobName::object(&found.object_name())).await?,
        Details::Reference { url } => found.reference(app, url).await?,
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
