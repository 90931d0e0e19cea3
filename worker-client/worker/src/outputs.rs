//! Uploads the payload's outputs after the commands have ended, even after a failure.
//!
//! A missing output becomes an artifact of the type error, which tells readers the reason, and
//! fails the task. A failed upload ends the uploads.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use futures_util::{Stream, StreamExt as _};

use super::TRANSFERS_AT_ONCE;
use super::disk::{self, Unusable};
use super::job::Job;
use super::payload::{Kind, Output, is_name};
use super::verdict::{ARTIFACT, Outcome, Problem, Verdict};
use tenure_client::artifacts::blocking;
use tenure_client::live_log::{self, BACKING_LOG, LIVE_LOG};
use tenure_client::{Error, ExceptionReason, NewArtifact, UnusableBecause, Upload};

const UNKNOWN_CONTENT_TYPE: &str = "application/octet-stream";
/// In characters, of an artifact of the type error.
const MESSAGE_MAX: usize = 1000;

/// An artifact to upload.
struct Item {
    output: Arc<Output>,
    name: String,
    path: Result<PathBuf, Unusable>,
}

impl Item {
    fn of(output: &Arc<Output>, name: String, path: Result<PathBuf, Unusable>) -> Self {
        Self { output: Arc::clone(output), name, path }
    }
}

pub(super) async fn upload(job: &Job, outputs: &[Output]) -> Verdict {
    let mut items = Vec::new();
    for output in outputs {
        let output = Arc::new(output.clone());
        match output.kind {
            Kind::File => items.push(Item { name: output.name.clone(), path: Ok(output.path.clone()), output }),
            Kind::Directory => items.extend(directory(job, &output).await),
        }
    }
    let mut names = HashSet::from([BACKING_LOG, LIVE_LOG]);
    if let Some(twice) = items.iter().find(|item| !names.insert(&item.name)) {
        let why = format!("two artifacts would have the name {}", twice.name);
        return Err(Problem::exception(ExceptionReason::MalformedPayload, why));
    }
    let done = futures_util::stream::iter(items).map(|item| upload_one(job, item)).buffered(TRANSFERS_AT_ONCE);
    log_all(job, std::pin::pin!(done)).await
}

/// The first problem is the verdict. A problem not caused by the task ends the uploads.
async fn log_all(job: &Job, mut done: impl Stream<Item = Result<String, Problem>> + Unpin) -> Verdict {
    let mut verdict = Ok(());
    while let Some(outcome) = done.next().await {
        match outcome {
            Ok(line) => job.directory.note(&line),
            Err(problem) => {
                job.directory.note(&problem.why);
                let ends = problem.outcome != Outcome::Failed;
                verdict = verdict.and(Err(problem));
                if ends {
                    break;
                }
            }
        }
    }
    verdict
}

async fn directory(job: &Job, output: &Arc<Output>) -> Vec<Item> {
    let (dir, path) = (job.directory.dir().to_owned(), output.path.clone());
    let listing = match on_disk(move || disk::list(&dir, &path)).await {
        Ok(listing) => listing,
        Err(unusable) => return vec![Item::of(output, output.name.clone(), Err(unusable))],
    };
    for path in &listing.left_out {
        job.directory.note(&format!("artifact {}: {path:?} is left out, because it is not a file", output.name));
    }
    if listing.files.is_empty() {
        job.directory.note(&format!("artifact {}: there is no file in {:?}", output.name, output.path));
    }
    let (mut items, mut first_nameless) = (Vec::new(), None);
    for path in listing.files {
        let name = path.to_str().map(|path| format!("{}/{path}", output.name)).filter(|name| is_name(name));
        match name {
            Some(name) => items.push(Item::of(output, name, Ok(output.path.join(path)))),
            None if first_nameless.is_none() => first_nameless = Some(nameless(&path)),
            None => job.directory.note(&format!("artifact {}: {}", output.name, nameless(&path).message)),
        }
    }
    // The name is invalid, so the directory's is used, which only one artifact can have.
    items.extend(first_nameless.map(|unusable| Item::of(output, output.name.clone(), Err(unusable))));
    items
}

fn nameless(path: &Path) -> Unusable {
    let message = format!("{path:?} is not a valid name of an artifact: it must be printable ASCII, and not too long");
    Unusable { because: UnusableBecause::Invalid, message }
}

/// Returns the line for the log.
async fn upload_one(job: &Job, item: Item) -> Result<String, Problem> {
    let Item { output, name, path } = &item;
    let (dir, most) = (job.directory.dir().to_owned(), job.settings.limits.artifact_bytes);
    let opened = match path.clone() {
        Ok(path) => on_disk(move || disk::open_file(&dir, &path, most)).await,
        Err(unusable) => Err(unusable),
    };
    let expires = output.expires.unwrap_or(job.task.expires);
    let sent = match opened {
        Ok(file) => {
            let upload = Upload::from_file(file, &content_type(&item), expires);
            send(job, name, upload, output.gzip).await.map(Ok)
        }
        Err(unusable) if output.optional && unusable.because == UnusableBecause::Missing => {
            return Ok(format!("artifact {name}: {}, and may be missing", unusable.message));
        }
        Err(Unusable { because: reason, message }) => {
            let message = message.chars().take(MESSAGE_MAX).collect::<String>();
            let error = NewArtifact::Error { reason, message: message.clone(), expires };
            job.client.create_artifact(job.task_id, job.run_id, name, &error).await.map(|_none| Err(message))
        }
    };
    match sent {
        Ok(Ok(bytes)) => Ok(format!("artifact {name}: {bytes} bytes")),
        Ok(Err(missing)) => Err(Problem::failed(format!("artifact {name}: {missing}")).of_kind(ARTIFACT)),
        Err(error) => Err(Problem::of_upload(&format!("artifact {name}"), &error)),
    }
}

/// Returns the file's length.
async fn send(job: &Job, name: &str, upload: Result<Upload, Error>, gzip: bool) -> Result<u64, Error> {
    let upload = if gzip { upload?.gzip(&job.settings.work_dir).await? } else { upload? };
    job.client.upload(job.task_id, job.run_id, name, &upload).await?;
    Ok(upload.content_length())
}

pub(super) async fn upload_log(job: &Job) -> Verdict {
    let expires = job.task.expires;
    let uploaded = async {
        // Not in the task's own directory, which the task may have removed.
        let log = job.directory.log().pack(&job.settings.work_dir, expires).await?;
        live_log::publish(&job.client, job.task_id, job.run_id, &log, expires).await
    };
    uploaded.await.map_err(|error| Problem::of_upload("the log could not be uploaded", &error))
}

/// By default from the file's name.
fn content_type(item: &Item) -> String {
    let guess = || {
        let guessed = mime_guess::from_path(&item.name).first_raw();
        let by_path = || item.path.as_ref().ok().and_then(|path| mime_guess::from_path(path).first_raw());
        guessed.or_else(by_path).unwrap_or(UNKNOWN_CONTENT_TYPE).to_owned()
    };
    item.output.content_type.clone().unwrap_or_else(guess)
}

async fn on_disk<T: Send + 'static>(
    look: impl FnOnce() -> Result<T, Unusable> + Send + 'static,
) -> Result<T, Unusable> {
    let looked = blocking(move || Ok(look())).await;
    looked.unwrap_or_else(|error| {
        Err(Unusable { because: UnusableBecause::NotReadable, message: format!("it could not be read: {error}") })
    })
}
