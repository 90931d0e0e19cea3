//! Inputs: artifacts of other tasks, placed in the task's directory before its first command.

use futures_util::{StreamExt as _, TryStreamExt as _};

use super::TRANSFERS_AT_ONCE;
use super::job::Job;
use super::payload::Input;
use super::verdict::{Problem, Verdict};
use tenure_client::{Error, ExceptionReason};

pub(super) async fn fetch(job: &Job, inputs: &[Input]) -> Verdict {
    futures_util::stream::iter(inputs.iter().cloned())
        .map(|input| fetch_one(job, input))
        .buffered(TRANSFERS_AT_ONCE)
        .try_for_each(|line| {
            job.directory.note(&line);
            std::future::ready(Ok(()))
        })
        .await
}

/// Returns the line for the log.
async fn fetch_one(job: &Job, input: Input) -> Result<String, Problem> {
    let Input { task_id, artifact, path, sha256 } = &input;
    let what = format!("input {artifact} of task {task_id}");
    let problem = |error: &Error| Problem::of_input(&what, error);
    let to = job.directory.dir().join(path);
    if let Some(parent) = to.parent() {
        let made = tokio::fs::create_dir_all(parent).await;
        made.map_err(Error::of_file(format!("{} cannot be made", parent.display())))
            .map_err(|error| problem(&error))?;
    }
    let file = job.client.download(*task_id, None, artifact, &to).await.map_err(|error| problem(&error))?;
    if let Some(expected) = sha256
        && *expected != file.sha256
    {
        let why = format!("{what}: its sha256 is {}, but the payload has {expected}", file.sha256);
        return Err(Problem::exception(ExceptionReason::MalformedPayload, why));
    }
    Ok(format!("{what}: {} bytes, sha256 {}, in {}", file.bytes, file.sha256, path.display()))
}
