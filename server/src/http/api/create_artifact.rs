//! createArtifact, finishArtifact.

use std::sync::Arc;

use axum::response::Response;
use chrono::{DateTime, Utc};
use tenure_api::artifacts::{
    CreateArtifactKind, CreateArtifactRequest, CreatedArtifact, CreatedObjectArtifact, CreatedPlainArtifact,
    CreatedS3Artifact, FinishArtifactRequest, ObjectTag, PlainTag, S3Tag,
};
use tenure_api::dates::Timestamp;
use tenure_api::ids::SlugId;
use tenure_api::states::StorageType;

use super::{nothing, ok};
use crate::blobs::BlobName;
use crate::domain::artifact::{self, Artifact, Details, PUT_URL_LIFE, UPLOAD_CREDENTIALS_LIFE};
use crate::domain::scopes::Expression;
use crate::http::app::App;
use crate::http::call::Call;
use crate::http::error::ApiError;
use crate::ops::create_artifact::{self as ops, Created, Place};
use crate::secrets::random;

/// `POST /task/:taskId/runs/:runId/artifacts/:name`
pub async fn create_artifact(app: App, call: Arc<Call>) -> Result<Response, ApiError> {
    let place = Place { task: call.task_id()?, run: call.run_id()? };
    let name = call.artifact_name()?;
    call.no_query()?;
    let asked = Artifact::from_request(name.as_str(), body(&call)?, SlugId::from_random(random()));
    let asked = asked.map_err(ApiError::body)?;
    ops::check_first(&app.engine.pool, place, asked.expires).await?;
    call.authorize(&scopes(place))?;
    let created = ops::create(&app.engine.pool, &app.engine.bells, place, asked).await?;
    let artifact = &created.artifact;
    ok(&match &artifact.details {
        Details::S3 => {
            let expires = created.now + PUT_URL_LIFE;
            let blob = BlobName::artifact(place.task, place.run, &artifact.name);
            CreatedArtifact::S3(CreatedS3Artifact {
                storage_type: S3Tag::S3,
                put_url: app.engine.blobs.put_url(&blob, &artifact.content_type, expires.timestamp_millis()),
                expires: Timestamp::new(expires),
                content_type: &artifact.content_type,
            })
        }
        Details::Object { upload } => CreatedArtifact::Object(object(&app, place, &created, *upload)),
        Details::Reference { .. } => plain(PlainTag::Reference),
        Details::Link { .. } => plain(PlainTag::Link),
        Details::Error { .. } => plain(PlainTag::Error),
    })
}

/// Each type has a schema of its own, so that a message can say which field is wrong.
fn body(call: &Call) -> Result<CreateArtifactRequest, ApiError> {
    Ok(match call.json::<CreateArtifactKind>()?.storage_type {
        StorageType::S3 => CreateArtifactRequest::S3(call.json()?),
        StorageType::Object => CreateArtifactRequest::Object(call.json()?),
        StorageType::Reference => CreateArtifactRequest::Reference(call.json()?),
        StorageType::Link => CreateArtifactRequest::Link(call.json()?),
        StorageType::Error => CreateArtifactRequest::Error(call.json()?),
    })
}

/// What both of them require.
pub fn authorize(call: &Call) -> Result<(), ApiError> {
    let place = Place { task: call.task_id()?, run: call.run_id()? };
    call.artifact_name()?;
    call.no_query()?;
    call.authorize(&scopes(place))
}

fn scopes(place: Place) -> Expression {
    Expression::from(format!("queue:create-artifact:{}/{}", place.task, place.run))
}

fn plain(storage_type: PlainTag) -> CreatedArtifact<'static> {
    CreatedArtifact::Plain(CreatedPlainArtifact { storage_type })
}

fn object<'a>(app: &App, place: Place, created: &'a Created, upload_id: SlugId) -> CreatedObjectArtifact<'a> {
    let Place { task, run } = place;
    let name = artifact::object_name(task, run, &created.artifact.name);
    let end: DateTime<Utc> = created.now + UPLOAD_CREDENTIALS_LIFE;
    let (group, worker) =
        created.tenancy.as_ref().map_or(("-", "-"), |held| (held.worker_group.as_str(), held.worker_id.as_str()));
    let client_id = format!("artifact-upload/{task}/{run}/on/{group}/{worker}/until/{}", end.timestamp());
    let scope = format!("object:upload:{}:{name}", created.project);
    CreatedObjectArtifact {
        storage_type: ObjectTag::Object,
        project_id: &created.project,
        upload_id,
        expires: Timestamp::new(created.artifact.expires),
        credentials: app.authenticator.task_credentials().issue_one(client_id, scope, created.now, end),
        name,
    }
}

/// `PUT /task/:taskId/runs/:runId/artifacts/:name`
pub async fn finish_artifact(app: App, call: Arc<Call>) -> Result<Response, ApiError> {
    let place = Place { task: call.task_id()?, run: call.run_id()? };
    let name = call.artifact_name()?;
    call.no_query()?;
    let FinishArtifactRequest { upload_id } = call.json()?;
    call.authorize(&scopes(place))?;
    ops::finish(&app.engine.pool, &app.engine.bells, place, name.as_str(), upload_id).await?;
    Ok(nothing())
}
