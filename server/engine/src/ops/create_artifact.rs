//! createArtifact and finishArtifact. Each locks the task first: requests for one artifact are
//! serialised, and the run cannot end between check and insert.

use chrono::{DateTime, Utc};
use sqlx::{Connection, PgPool};
use tenure_api::ids::{RunId, SlugId, TaskId};

use super::OpError;
use crate::notifiers::{Effects, Notifiers};
use tenure_domain::artifact::{self, Artifact, Refusal, Stored};
use tenure_domain::json::Unserializable;
use tenure_domain::task::{Task, Tenancy};
use tenure_store::artifacts::{self, ArtifactEvent};
use tenure_store::tasks;

#[derive(Debug, Clone, Copy)]
pub struct RunRef {
    pub task: TaskId,
    pub run: RunId,
}

#[derive(Debug)]
pub struct Created {
    /// As stored.
    pub artifact: Artifact,
    /// Project of the task.
    pub project: String,
    /// The claim that holds or held the run.
    pub tenancy: Option<Tenancy>,
    /// Time of storage.
    pub now: DateTime<Utc>,
}

pub async fn create(
    pool: &PgPool,
    notifiers: &Notifiers,
    run_ref: RunRef,
    requested: Artifact,
) -> Result<Created, OpError> {
    let mut conn = pool.acquire().await?;
    let mut transaction = conn.begin().await?;
    tasks::lock(&mut transaction, run_ref.task.uuid()).await?;
    let loaded = tasks::load(&mut transaction, &[run_ref.task.uuid()]).await?.remove(&run_ref.task.uuid());
    let loaded = loaded.ok_or_else(|| OpError::Input(format!("task {} does not exist", run_ref.task)))?;
    let (task, now) = (loaded.task, loaded.now);
    let name = requested.name.clone();
    let refused = |refusal| refused(refusal, run_ref, &name);
    artifact::admit(&task, run_ref.run, requested.expires, now).map_err(refused)?;
    let old = artifacts::find(&mut transaction, task.seq, run_ref.run, &name).await?;
    let decision = artifact::combine(old.as_ref(), requested, now).map_err(refused)?;
    let artifact = decision.artifact;
    let storage_type = artifact.details.storage_type();
    let is_emitted = decision.changed && artifact::is_emitted_at_creation(storage_type);
    let event = is_emitted.then(|| event(&task, &artifact)).transpose()?;
    let removable = artifact::removable(storage_type, artifact.expires, task.expires, now);
    let present = artifact::is_present_at_creation(storage_type);
    let stored = Stored { artifact, present, removable };
    artifacts::put(&mut transaction, task.seq, run_ref.run, &stored, event.as_ref()).await?;
    if is_emitted {
        notifiers.commit(transaction, Effects::default()).await?;
    } else {
        transaction.commit().await?;
    }
    let tenancy = artifact::tenancy(&task, run_ref.run).cloned();
    Ok(Created { artifact: stored.artifact, project: task.project, tenancy, now })
}

/// Makes an uploaded object readable. A repeat changes nothing.
pub async fn finish(
    pool: &PgPool,
    notifiers: &Notifiers,
    run_ref: RunRef,
    name: &str,
    upload: SlugId,
) -> Result<(), OpError> {
    let mut conn = pool.acquire().await?;
    let mut transaction = conn.begin().await?;
    tasks::lock(&mut transaction, run_ref.task.uuid()).await?;
    let loaded = tasks::load(&mut transaction, &[run_ref.task.uuid()]).await?.remove(&run_ref.task.uuid());
    let loaded = loaded.ok_or_else(|| OpError::NotFound(format!("task {} does not exist", run_ref.task)))?;
    let (task, now) = (loaded.task, loaded.now);
    let stored = artifacts::find(&mut transaction, task.seq, run_ref.run, name).await?;
    let object_name = artifact::object_name(run_ref.task, run_ref.run, name);
    let object = artifacts::lock_object(&mut transaction, &object_name).await?;
    let changed =
        artifact::finish(stored.as_ref(), upload, object, now).map_err(|refusal| refused(refusal, run_ref, name))?;
    let Some(Stored { artifact, removable, .. }) = stored.filter(|_| changed) else { return Ok(()) };
    artifacts::finish(&mut transaction, task.seq, run_ref.run, name, &event(&task, &artifact)?).await?;
    artifacts::retain_object(&mut transaction, &object_name, artifact.expires, removable).await?;
    notifiers.commit(transaction, Effects::default()).await?;
    Ok(())
}

pub(super) fn event(task: &Task, artifact: &Artifact) -> Result<ArtifactEvent, Unserializable> {
    Ok(ArtifactEvent {
        retries_left: task.retries_left,
        priority: task.priority,
        note: artifact::note(task, artifact)?,
    })
}

fn refused(refusal: Refusal, run_ref: RunRef, name: &str) -> OpError {
    let RunRef { task, run } = run_ref;
    match refusal {
        Refusal::Past => OpError::Input("`expires` must not be more than 15 minutes in the past".to_owned()),
        Refusal::NoSuchRun => OpError::Input(format!("task {task} has no run {run}")),
        Refusal::NeverClaimed => {
            OpError::Input(format!("run {run} of task {task} was never claimed; only its worker makes artifacts"))
        }
        Refusal::OutlivesTask => OpError::Input(format!("`expires` must not be later than that of the task {task}")),
        Refusal::RunEnded => OpError::Conflict(format!(
            "run {run} of task {task} has ended; artifacts can be created while it runs, or within 25 minutes after \
             an exception"
        )),
        Refusal::BeingRemoved => OpError::Conflict(format!(
            "artifact {name:?} has expired and is being removed; send the request again in a few seconds"
        )),
        Refusal::Incompatible(what) => {
            OpError::Conflict(format!("artifact {name:?} already exists and differs in {what}; use another name"))
        }
        Refusal::Missing => OpError::NotFound(format!("run {run} of task {task} has no artifact {name:?}")),
        Refusal::NotAnObject => {
            OpError::Input(format!("artifact {name:?} is not of the storage type `object`; only objects are finished"))
        }
        Refusal::WrongUpload => {
            OpError::Input(format!("`uploadId` is not the one that createArtifact returned for {name:?}"))
        }
        Refusal::NotUploaded => OpError::Input(format!(
            "the object of artifact {name:?} is not uploaded yet; call finishUpload of the object service first"
        )),
        Refusal::UploadExpired => OpError::Input(format!(
            "the object of artifact {name:?} has expired, by the `expires` given to createUpload"
        )),
    }
}
