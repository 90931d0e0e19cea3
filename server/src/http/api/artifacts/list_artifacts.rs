//! listArtifacts, listLatestArtifacts.

use tenure_api::artifacts::ArtifactList;

use super::artifact_info::{OF_RUN, OF_TASK, an_entry, authorize, blob, bytes_of, entry};
use super::no_run;
use crate::http::api::prelude::*;
use tenure_store::artifacts;

/// `GET /task/:taskId/runs/:runId/artifacts`
pub fn of_run() -> Endpoint {
    Endpoint::get("listArtifacts", list_artifacts).scopes(OF_RUN).large_answer().described(
        "queue",
        "List the artifacts of a run",
        described,
    )
}

/// `GET /task/:taskId/artifacts`
pub fn of_last_run() -> Endpoint {
    Endpoint::get("listLatestArtifacts", list_latest_artifacts).scopes(OF_TASK).large_answer().described(
        "queue",
        "List the artifacts of the last run",
        described,
    )
}

fn described(operation: Operation, sample: &Sample) -> Operation {
    paged(operation)
        .about("Sorted by name. Expired artifacts are included until they are removed.")
        .answers::<ArtifactList<'_>>("A page", &json!({"artifacts": [an_entry(sample)]}))
        .refuses(ResourceNotFound, "the task or run does not exist")
}

async fn list_artifacts(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    list(&app, &call, Some(call.run_id()?)).await
}

async fn list_latest_artifacts(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    list(&app, &call, None).await
}

async fn list(app: &Api, call: &Call, run: Option<RunId>) -> Result<Response, ApiError> {
    let task = call.task_id()?;
    let page = Page::read(&call.query(&["limit", "continuationToken"])?)?;
    authorize(call, run)?;
    let limit = page.limit.unwrap_or(PAGE_MAX);
    let mut conn = app.engine.pool.acquire().await?;
    let (seq, run) = artifacts::find_run(&mut conn, task, run).await?.ok_or_else(|| no_run(task, run))?;
    let after = page.after.as_deref().unwrap_or_default();
    let mut rows = artifacts::list(&mut conn, seq, run, after, Page::rows(limit)).await?;
    drop(conn);
    let continuation_token = Page::cut(limit, &mut rows, |row| &row.artifact.name);
    let bytes = bytes_of(app, task, run, &rows).await?;
    let entries = rows.iter().map(|row| entry(&row.artifact, bytes.get(&blob(task, run, &row.artifact)))).collect();
    ok(&ArtifactList { artifacts: entries, continuation_token })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn artifact_lists_are_large_answers() {
        for endpoint in [of_run(), of_last_run()] {
            assert!(endpoint.declaration.has_large_answer, "{}", endpoint.declaration.name);
        }
    }
}
