//! artifactInfo, latestArtifactInfo: the metadata of an artifact.

use std::collections::HashMap;

use tenure_api::artifacts::ArtifactEntry;

use super::no_run;
use crate::http::api::prelude::*;
use crate::http::docs::parameters::ARTIFACT;
use tenure_domain::artifact::{self, Artifact, Details, Stored};
use tenure_engine::blobs::{BlobName, StoredBlob};
use tenure_engine::ops::objects::hex;
use tenure_store::artifacts;

/// `GET /task/:taskId/runs/:runId/artifact-info/:name`
pub fn of_run() -> Endpoint {
    Endpoint::get("artifactInfo", artifact_info).scopes(OF_RUN).described(
        "queue",
        "Read the metadata of an artifact",
        described,
    )
}

/// `GET /task/:taskId/artifact-info/:name`
pub fn of_last_run() -> Endpoint {
    Endpoint::get("latestArtifactInfo", latest_artifact_info).scopes(OF_TASK).described(
        "queue",
        "Read the metadata of an artifact of the last run",
        described,
    )
}

pub(super) const OF_RUN: Template = Scope("queue:list-artifacts:<taskId>:<runId>");
/// For the last run's artifacts.
pub(super) const OF_TASK: Template = Scope("queue:list-artifacts:<taskId>");

fn described(operation: Operation, sample: &Sample) -> Operation {
    operation.about("Links are not followed.").answers::<ArtifactEntry<'_>>("The metadata", &an_entry(sample)).refuses(
        ResourceNotFound,
        "the task, run or artifact does not exist, or it is an object whose upload is not finished",
    )
}

pub(super) fn an_entry(sample: &Sample) -> Value {
    json!({
        "storageType": "s3",
        "name": ARTIFACT,
        "expires": sample.after(120),
        "contentType": "text/plain",
        "contentLength": 5,
        "size": 5,
        "sha256": "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824",
    })
}

async fn artifact_info(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    info(&app, &call, Some(call.run_id()?)).await
}

async fn latest_artifact_info(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    info(&app, &call, None).await
}

pub(super) fn authorize(call: &Call, run: Option<RunId>) -> Result<(), ApiError> {
    match run {
        Some(run) => call.authorize(&Values::of_path().text("runId", run.to_string())),
        None => call.authorize_by_path(),
    }
}

async fn info(app: &Api, call: &Call, run: Option<RunId>) -> Result<Response, ApiError> {
    let (task, name) = (call.task_id()?, call.artifact_name()?);
    call.no_query()?;
    authorize(call, run)?;
    let mut conn = app.engine.pool.acquire().await?;
    let (seq, run) = artifacts::find_run(&mut conn, task, run).await?.ok_or_else(|| no_run(task, run))?;
    let found = artifacts::find(&mut conn, seq, run, name.as_str()).await?;
    drop(conn);
    let missing = || ApiError::new(ErrorCode::ResourceNotFound, format!("there is no artifact {:?}", name.as_str()));
    // Listed before its upload is finished, but not readable.
    let found = [found.filter(|stored| stored.present).ok_or_else(missing)?];
    let bytes = bytes_of(app, task, run, &found).await?;
    let [Stored { artifact, .. }] = &found;
    ok(&entry(artifact, bytes.get(&blob(task, run, artifact))))
}

pub(super) fn entry<'a>(artifact: &'a Artifact, bytes: Option<&StoredBlob>) -> ArtifactEntry<'a> {
    ArtifactEntry {
        storage_type: artifact.details.storage_type(),
        name: &artifact.name,
        expires: artifact.expires.into(),
        content_type: &artifact.content_type,
        content_length: artifact.content_length,
        size: bytes.map(|bytes| bytes.size),
        sha256: bytes.map(|bytes| hex(&bytes.sha256)),
    }
}

/// Name of the stored bytes, if the artifact has any.
pub(in crate::http) fn blob(task: TaskId, run: RunId, artifact: &Artifact) -> BlobName {
    match &artifact.details {
        Details::Object { .. } => BlobName::object(&artifact::object_name(task, run, &artifact.name)),
        Details::S3 | Details::Reference { .. } | Details::Link { .. } | Details::Error { .. } => {
            BlobName::artifact(task, run, &artifact.name)
        }
    }
}

pub(super) async fn bytes_of(
    app: &Api,
    task: TaskId,
    run: RunId,
    rows: &[Stored],
) -> Result<HashMap<BlobName, StoredBlob>, ApiError> {
    let names: Vec<BlobName> = rows
        .iter()
        .filter(|row| matches!(row.artifact.details, Details::S3 | Details::Object { .. }))
        .map(|row| blob(task, run, &row.artifact))
        .collect();
    if names.is_empty() { Ok(HashMap::new()) } else { Ok(app.engine.blobs.find(&app.engine.pool, &names).await?) }
}
