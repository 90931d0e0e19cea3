//! Artifacts of runs.

pub mod artifact;
pub mod artifact_info;
pub mod create_artifact;
pub mod finish_artifact;
pub mod get_artifact;
pub mod list_artifacts;
pub(in crate::http) mod reading;
mod writing;

use crate::http::api::prelude::*;
use crate::http::docs::parameters::ARTIFACT;

fn example_url(sample: &Sample, access: &str) -> String {
    let task = sample.task;
    format!(
        "https://queue.example.com/artifacts/artifact/{task}/0/{ARTIFACT}?Credential={access}&expires=…&signature=…"
    )
}

fn no_run(task: TaskId, run: Option<RunId>) -> ApiError {
    let message = match run {
        Some(run) => format!("there is no run {run} of a task {task}"),
        None => format!("there is no task {task}, or it has no run yet"),
    };
    ApiError::new(ErrorCode::ResourceNotFound, message)
}
