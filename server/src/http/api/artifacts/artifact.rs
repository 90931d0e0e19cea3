//! artifact, latestArtifact: the content of an artifact as JSON.

use tenure_api::artifacts::{
    ArtifactAtUrl, ArtifactContent, ArtifactInService, ArtifactMissing, ErrorTag, ObjectTag, UrlTag,
};

use super::example_url;
use super::reading::{self, FoundArtifact, LATEST, SCOPES, find};
use crate::http::api::prelude::*;
use tenure_domain::artifact::{DOWNLOAD_CREDENTIALS_LIFE, Details, can_be_object};

/// `GET /task/:taskId/runs/:runId/artifact-content/:name`
pub fn of_run() -> Endpoint {
    Endpoint::get("artifact", artifact).scopes(SCOPES).described(
        "queue",
        "Get the location of an artifact",
        |operation, sample| described(operation, sample, ""),
    )
}

/// `GET /task/:taskId/artifact-content/:name`
pub fn of_last_run() -> Endpoint {
    Endpoint::get("latestArtifact", latest_artifact).scopes(SCOPES).described(
        "queue",
        "Get the location of an artifact of the last run",
        |operation, sample| described(operation, sample, LATEST),
    )
}

fn described(operation: Operation, sample: &Sample, about: &str) -> Operation {
    let example = json!({"storageType": "s3", "url": example_url(sample, "get")});
    reading::described(operation, about).answers::<ArtifactContent<'_>>("What it is", &example)
}

async fn artifact(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    content(&app, &find(&app, &call, Some(call.run_id()?)).await?).await
}

async fn latest_artifact(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    content(&app, &find(&app, &call, None).await?).await
}

async fn content(app: &Api, found: &FoundArtifact) -> Result<Response, ApiError> {
    ok(&match &found.artifact.details {
        Details::S3 => {
            let url = found.url(app, &found.own_bytes()).await?;
            ArtifactContent::Url(ArtifactAtUrl { storage_type: UrlTag::S3, url })
        }
        Details::Reference { url } => {
            let url = found.reference(app, url).await?;
            ArtifactContent::Url(ArtifactAtUrl { storage_type: UrlTag::Reference, url })
        }
        // From before such names were refused: no credentials can cover it alone.
        Details::Object { .. } if !can_be_object(&found.artifact.name) => {
            return Err(ApiError::new(
                ErrorCode::InputError,
                "the name of this object ends in `*`, so that no credentials can be for it alone; read it by getArtifact",
            ));
        }
        Details::Object { .. } => ArtifactContent::Object(in_service(app, found)),
        Details::Error { reason, message } => {
            ArtifactContent::Error(ArtifactMissing { storage_type: ErrorTag::Error, reason: *reason, message })
        }
        Details::Link { .. } => return Err(ApiError::internal("a link was not followed")),
    })
}

fn in_service(app: &Api, found: &FoundArtifact) -> ArtifactInService {
    let name = found.object_name();
    let end = found.now + DOWNLOAD_CREDENTIALS_LIFE;
    let client_id = format!("artifact-download/{}/{}/until/{}", found.task, found.run, end.timestamp());
    let scope = format!("object:download:{name}");
    let credentials = app.intake.authenticator.task_credentials().issue_one(client_id, scope, found.now, end);
    ArtifactInService { storage_type: ObjectTag::Object, name, credentials }
}
