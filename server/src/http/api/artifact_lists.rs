//! What is known of artifacts: listArtifacts, listLatestArtifacts, artifactInfo, latestArtifactInfo.

use std::collections::HashMap;
use std::sync::Arc;

use axum::response::Response;
use tenure_api::artifacts::{ArtifactEntry, ArtifactList};
use tenure_api::errors::ErrorCode;
use tenure_api::ids::{RunId, TaskId};

use super::ok;
use super::pages::{PAGE_MAX, Page};
use crate::blobs::{BlobName, StoredBlob};
use crate::domain::artifact::{self, Artifact, Details, Stored};
use crate::domain::scopes::Expression;
use crate::http::app::App;
use crate::http::call::Call;
use crate::http::error::ApiError;
use crate::ops::objects::hex;
use crate::store::artifacts;

/// `GET /task/:taskId/runs/:runId/artifacts`
pub async fn list_artifacts(app: App, call: Arc<Call>) -> Result<Response, ApiError> {
    list(&app, &call, Some(call.run_id()?)).await
}

/// `GET /task/:taskId/artifacts`
pub async fn list_latest_artifacts(app: App, call: Arc<Call>) -> Result<Response, ApiError> {
    list(&app, &call, None).await
}

/// `GET /task/:taskId/runs/:runId/artifact-info/:name`
pub async fn artifact_info(app: App, call: Arc<Call>) -> Result<Response, ApiError> {
    info(&app, &call, Some(call.run_id()?)).await
}

/// `GET /task/:taskId/artifact-info/:name`
pub async fn latest_artifact_info(app: App, call: Arc<Call>) -> Result<Response, ApiError> {
    info(&app, &call, None).await
}

fn scopes(task: TaskId, run: Option<RunId>) -> Expression {
    Expression::from(match run {
        Some(run) => format!("queue:list-artifacts:{task}:{run}"),
        None => format!("queue:list-artifacts:{task}"),
    })
}

fn no_run(task: TaskId, run: Option<RunId>) -> ApiError {
    let message = match run {
        Some(run) => format!("there is no run {run} of a task {task}"),
        None => format!("there is no task {task}, or it has no run yet"),
    };
    ApiError::new(ErrorCode::ResourceNotFound, message)
}

async fn list(app: &App, call: &Call, run: Option<RunId>) -> Result<Response, ApiError> {
    let task = call.task_id()?;
    let page = Page::read(&call.query(&["limit", "continuationToken"])?)?;
    call.authorize(&scopes(task, run))?;
    let limit = page.limit.unwrap_or(PAGE_MAX);
    let mut conn = app.engine.pool.acquire().await?;
    let (seq, known) = artifacts::find_run(&mut conn, task, run).await?.ok_or_else(|| no_run(task, run))?;
    let after = page.after.as_deref().unwrap_or_default();
    let mut rows = artifacts::list(&mut conn, seq, known, after, Page::rows(limit)).await?;
    drop(conn);
    let continuation_token = Page::cut(limit, &mut rows, |row| &row.artifact.name);
    let bytes = bytes_of(app, task, known, &rows).await?;
    let entries = rows.iter().map(|row| entry(&row.artifact, bytes.get(&blob(task, known, &row.artifact)))).collect();
    ok(&ArtifactList { artifacts: entries, continuation_token })
}

async fn info(app: &App, call: &Call, run: Option<RunId>) -> Result<Response, ApiError> {
    let (task, name) = (call.task_id()?, call.artifact_name()?);
    call.no_query()?;
    call.authorize(&scopes(task, run))?;
    let mut conn = app.engine.pool.acquire().await?;
    let (seq, known) = artifacts::find_run(&mut conn, task, run).await?.ok_or_else(|| no_run(task, run))?;
    let found = artifacts::find(&mut conn, seq, known, name.as_str()).await?;
    drop(conn);
    let missing = || ApiError::new(ErrorCode::ResourceNotFound, format!("there is no artifact {:?}", name.as_str()));
    // Before its upload is finished an object is in the lists, but cannot be read.
    let found = [found.filter(|stored| stored.present).ok_or_else(missing)?];
    let bytes = bytes_of(app, task, known, &found).await?;
    let [Stored { artifact, .. }] = &found;
    ok(&entry(artifact, bytes.get(&blob(task, known, artifact))))
}

fn entry<'a>(artifact: &'a Artifact, bytes: Option<&StoredBlob>) -> ArtifactEntry<'a> {
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

/// What the bytes of an artifact are stored under, if it has any.
fn blob(task: TaskId, run: RunId, artifact: &Artifact) -> BlobName {
    match &artifact.details {
        Details::Object { .. } => BlobName::object(&artifact::object_name(task, run, &artifact.name)),
        Details::S3 | Details::Reference { .. } | Details::Link { .. } | Details::Error { .. } => {
            BlobName::artifact(task, run, &artifact.name)
        }
    }
}

async fn bytes_of(
    app: &App,
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
