//! createArtifact.

use chrono::{DateTime, Utc};
use tenure_api::artifacts::{
    CreateArtifactKind, CreateArtifactRequest, CreatedArtifact, CreatedObjectArtifact, CreatedPlainArtifact,
    CreatedS3Artifact, ObjectTag, PlainTag, S3Tag,
};
use tenure_api::ids::SlugId;
use tenure_api::states::StorageType;

use super::example_url;
use super::writing::{SCOPES, authorize, early_check};
use crate::http::api::prelude::*;
use tenure_domain::artifact::{self, Artifact, Details, PUT_URL_LIFE, UPLOAD_CREDENTIALS_LIFE};
use tenure_engine::blobs::BlobName;
use tenure_engine::ops::create_artifact::{self as ops, Created, RunRef};
use tenure_store::secrets::random;

/// `POST /task/:taskId/runs/:runId/artifacts/:name`
pub fn endpoint() -> Endpoint {
    Endpoint::post("createArtifact", create_artifact).scopes(SCOPES).early_check(early_check).described(
        "queue",
        "Create an artifact of a run",
        describe,
    )
}

fn describe(operation: Operation, sample: &Sample) -> Operation {
    let expires = sample.after(120);
    let body = json!({"storageType": "s3", "contentType": "text/plain", "contentLength": 5, "expires": expires});
    let created = json!({
        "storageType": "s3",
        "putUrl": example_url(sample, "put"),
        "expires": sample.after(50),
        "contentType": "text/plain",
    });
    operation
        .about(
            "For the worker that holds the run, with the credentials of its claim. `s3`: PUT the bytes to the \
             `putUrl` of the response within 45 minutes, with the same `Content-Type` and without credentials; \
             `Content-Encoding: gzip` is kept. `object`: upload to the object service, then call finishArtifact. \
             `reference`: an external `http` or `https` URL. `link`: another artifact of the run, which may be \
             created later. `error`: the reason why there is no artifact. A repeat of the request succeeds and can \
             extend `expires`. A `reference` can get another URL or become a `link` with the same `contentType`. Any \
             other artifact of the same name is a conflict.",
        )
        .takes::<CreateArtifactRequest>(&body)
        .answers::<CreatedArtifact<'_>>("The next step, by storage type", &created)
        .refuses(
            InputError,
            "the task or run does not exist, the run was never claimed, `expires` is more than 15 minutes in the \
             past or later than that of the task",
        )
        .refuses(
            RequestConflict,
            "the run has ended, except as an exception within the last 25 minutes; or a different artifact of that \
             name exists",
        )
}

async fn create_artifact(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    let run_ref = RunRef { task: call.task_id()?, run: call.run_id()? };
    let name = call.artifact_name()?;
    call.no_query()?;
    let body = body(&call)?;
    if matches!(body, CreateArtifactRequest::Object(_)) && !artifact::can_be_object(name.as_str()) {
        return Err(ApiError::arguments("`name` must not end in `*` for an artifact of the type `object`"));
    }
    let artifact = Artifact::from_request(name.as_str(), body, SlugId::from_random(random()));
    let artifact = artifact.map_err(ApiError::body)?;
    authorize(&call, run_ref)?;
    let created = ops::create(&app.engine.pool, &app.engine.notifiers, run_ref, artifact).await?;
    let artifact = &created.artifact;
    ok(&match &artifact.details {
        Details::S3 => {
            let expires = created.now + PUT_URL_LIFE;
            let blob = BlobName::artifact(run_ref.task, run_ref.run, &artifact.name);
            CreatedArtifact::S3(CreatedS3Artifact {
                storage_type: S3Tag::S3,
                put_url: app.engine.blobs.put_url(&blob, &artifact.content_type, expires.timestamp_millis()),
                expires: Timestamp::new(expires),
                content_type: &artifact.content_type,
            })
        }
        Details::Object { upload } => CreatedArtifact::Object(object(&app, run_ref, &created, *upload)),
        Details::Reference { .. } => plain(PlainTag::Reference),
        Details::Link { .. } => plain(PlainTag::Link),
        Details::Error { .. } => plain(PlainTag::Error),
    })
}

/// One schema per storage type, so that errors name the invalid field.
fn body(call: &Call) -> Result<CreateArtifactRequest, ApiError> {
    Ok(match call.json::<CreateArtifactKind>()?.storage_type {
        StorageType::S3 => CreateArtifactRequest::S3(call.json()?),
        StorageType::Object => CreateArtifactRequest::Object(call.json()?),
        StorageType::Reference => CreateArtifactRequest::Reference(call.json()?),
        StorageType::Link => CreateArtifactRequest::Link(call.json()?),
        StorageType::Error => CreateArtifactRequest::Error(call.json()?),
    })
}

fn plain(storage_type: PlainTag) -> CreatedArtifact<'static> {
    CreatedArtifact::Plain(CreatedPlainArtifact { storage_type })
}

fn object<'a>(app: &Api, run_ref: RunRef, created: &'a Created, upload_id: SlugId) -> CreatedObjectArtifact<'a> {
    let RunRef { task, run } = run_ref;
    let name = artifact::object_name(task, run, &created.artifact.name);
    let end: DateTime<Utc> = created.now + UPLOAD_CREDENTIALS_LIFE;
    let (group, worker) = created
        .tenancy
        .as_ref()
        .map_or(("-", "-"), |tenancy| (tenancy.worker_group.as_str(), tenancy.worker_id.as_str()));
    let client_id = format!("artifact-upload/{task}/{run}/on/{group}/{worker}/until/{}", end.timestamp());
    let scope = format!("object:upload:{}:{name}", created.project);
    CreatedObjectArtifact {
        storage_type: ObjectTag::Object,
        project_id: &created.project,
        upload_id,
        expires: Timestamp::new(created.artifact.expires),
        credentials: app.intake.authenticator.task_credentials().issue_one(client_id, scope, created.now, end),
        name,
    }
}
