//! Artifacts: when a run may have one made, what may take the place of what, and where links lead.

use chrono::{DateTime, TimeDelta, Utc};
use serde::Serialize;
use tenure_api::artifacts::{
    CONTENT_LENGTH_MAX, CreateArtifactRequest, CreateErrorArtifact, CreateLinkArtifact, CreateObjectArtifact,
    CreateReferenceArtifact, CreateS3Artifact, MESSAGE_MAX,
};
use tenure_api::dates::Timestamp;
use tenure_api::ids::{ContentType, RunId, SlugId, TaskId};
use tenure_api::states::{ArtifactErrorReason, RunState, StorageType};

use super::json::{self, Unserializable};
use super::task::{Last, Task, Tenancy};

/// How far in the past `expires` may lie: the clock of a worker may be wrong by as much.
pub const EXPIRED_DRIFT: TimeDelta = TimeDelta::minutes(15);
/// How long after its end as an exception a run still takes artifacts: its worker may be uploading logs.
pub const AFTER_EXCEPTION: TimeDelta = TimeDelta::minutes(25);
/// How long a URL for uploads is good.
pub const PUT_URL_LIFE: TimeDelta = TimeDelta::minutes(45);
/// How long after it was given out a URL for uploads may still have an upload on its way.
pub const UPLOAD_MAX: TimeDelta = TimeDelta::hours(2);
/// How long after its end an artifact or an object is still known, so that reads are refused with that it has expired. It is about what
/// Taskcluster has.
pub const EXPIRED_KEPT: TimeDelta = TimeDelta::minutes(30);
/// How long before bytes are to be removed their artifact can still be put off or finished. The pass that removes it deletes its bytes
/// without a lock, so its look must not fall into the transaction that changes the artifact: none takes as long as this.
pub const UNCHANGED_BEFORE_REMOVAL: TimeDelta = TimeDelta::minutes(1);
/// How long a URL for downloads is good.
pub const GET_URL_LIFE: TimeDelta = TimeDelta::minutes(30);
/// How long credentials for the upload of an object are good.
pub const UPLOAD_CREDENTIALS_LIFE: TimeDelta = TimeDelta::hours(24);
/// How long credentials for the download of an object are good.
pub const DOWNLOAD_CREDENTIALS_LIFE: TimeDelta = TimeDelta::hours(1);
/// Links that are followed one after the other.
pub const LINKS_MAX: usize = 100;
/// The content type of artifacts that declare none.
const CONTENT_TYPE_DEFAULT: &str = "application/binary";

/// How an artifact is stored, with what only that type has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Details {
    /// Bytes under the artifact's name.
    S3,
    /// An object of the object service.
    Object {
        /// The upload that makes it.
        upload: SlugId,
    },
    Reference {
        /// Where it leads.
        url: String,
    },
    /// Another artifact of the run.
    Link {
        /// Its name.
        artifact: String,
    },
    /// Why there is none.
    Error {
        /// For programs.
        reason: ArtifactErrorReason,
        /// For people.
        message: String,
    },
}

impl Details {
    pub fn storage_type(&self) -> StorageType {
        match self {
            Self::S3 => StorageType::S3,
            Self::Object { .. } => StorageType::Object,
            Self::Reference { .. } => StorageType::Reference,
            Self::Link { .. } => StorageType::Link,
            Self::Error { .. } => StorageType::Error,
        }
    }
}

/// An artifact, as it was asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Artifact {
    /// Its name within the run.
    pub name: String,
    /// How it is stored.
    pub details: Details,
    pub content_type: String,
    /// Length in bytes, if it was declared.
    pub content_length: Option<i64>,
    pub expires: DateTime<Utc>,
}

/// An artifact as it is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stored {
    pub artifact: Artifact,
    /// Whether it can be read; only of an object can it be false.
    pub present: bool,
    /// When it may be removed.
    pub removable: DateTime<Utc>,
}

/// The name of the object that an artifact is.
pub fn object_name(task: TaskId, run: RunId, name: &str) -> String {
    format!("t/{task}/{run}/{name}")
}

/// Whether an artifact of this name can be an object. Its credentials have a scope that ends in the name, and one that ends
/// in a star would hold for other objects too.
#[must_use]
pub fn can_be_object(name: &str) -> bool {
    !name.ends_with('*')
}

/// The artifact that an object is, with its name within the run; None for another object.
pub fn artifact_of_object(object: &str) -> Option<(TaskId, RunId, &str)> {
    let mut parts = object.splitn(4, '/');
    let (Some("t"), Some(task), Some(run), Some(name)) = (parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return None;
    };
    let (task, run) = (task.parse::<TaskId>().ok()?, run.parse::<RunId>().ok()?);
    // Another spelling of a task or a run is another object.
    (object_name(task, run, name) == object).then_some((task, run, name))
}

impl Artifact {
    /// Checks what the types of the body leave open. `upload` names the upload, if it is to be one.
    pub fn from_request(name: &str, request: CreateArtifactRequest, upload: SlugId) -> Result<Self, String> {
        let artifact = |details, content_type: Option<ContentType>, length: Option<u64>, expires: Timestamp| {
            let content_type = content_type.map_or(CONTENT_TYPE_DEFAULT.to_owned(), |known| known.as_str().to_owned());
            let content_length = length.map(content_length).transpose()?;
            Ok(Self { name: name.to_owned(), details, content_type, content_length, expires: expires.time() })
        };
        match request {
            CreateArtifactRequest::S3(CreateS3Artifact { expires, content_type, content_length, .. }) => {
                artifact(Details::S3, Some(content_type), content_length, expires)
            }
            CreateArtifactRequest::Object(CreateObjectArtifact { expires, content_type, content_length, .. }) => {
                artifact(Details::Object { upload }, Some(content_type), content_length, expires)
            }
            CreateArtifactRequest::Reference(CreateReferenceArtifact { expires, url, content_type, .. }) => {
                artifact(Details::Reference { url: url.as_str().to_owned() }, Some(content_type), None, expires)
            }
            CreateArtifactRequest::Link(CreateLinkArtifact { expires, artifact: target, content_type, .. }) => {
                artifact(Details::Link { artifact: target.as_str().to_owned() }, content_type, None, expires)
            }
            CreateArtifactRequest::Error(CreateErrorArtifact { expires, reason, message, .. }) => {
                if message.chars().count() > MESSAGE_MAX {
                    return Err(format!("`message` must have at most {MESSAGE_MAX} characters"));
                }
                if message.contains('\0') {
                    return Err("`message` must not contain the character U+0000".to_owned());
                }
                artifact(Details::Error { reason, message }, None, None, expires)
            }
        }
    }
}

/// A length as the database stores it.
pub fn content_length(length: u64) -> Result<i64, String> {
    let invalid = || format!("`contentLength` must be at most {CONTENT_LENGTH_MAX}");
    if length > CONTENT_LENGTH_MAX { Err(invalid()) } else { i64::try_from(length).map_err(|_| invalid()) }
}

/// Which rule forbids something about an artifact.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// It would have expired long ago.
    Past,
    NoSuchRun,
    /// The run was never claimed, so no worker can create artifacts.
    NeverClaimed,
    /// It would be retained longer than its task.
    OutlivesTask,
    RunEnded,
    /// There is one of that name, which has expired and is about to be removed.
    BeingRemoved,
    /// There is one of that name, which differs in this.
    Incompatible(&'static str),
    /// There is none of that name.
    Missing,
    NotAnObject,
    /// It is another upload.
    WrongUpload,
    /// The upload has not been finished.
    NotUploaded,
    /// Its bytes are about to be removed, or are being removed.
    UploadExpired,
}

/// The phase of a run, as far as artifacts go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RunPhase {
    Missing,
    NeverClaimed,
    Running,
    Exception(DateTime<Utc>),
    Over,
}

fn place(task: &Task, run: RunId) -> RunPhase {
    if let Some(ended) = task.ended.iter().find(|ended| ended.run.run == run) {
        return match (&ended.tenancy, ended.state) {
            (None, _) => RunPhase::NeverClaimed,
            (Some(_), RunState::Exception) => RunPhase::Exception(ended.resolved),
            (Some(_), RunState::Completed | RunState::Failed | RunState::Pending | RunState::Running) => RunPhase::Over,
        };
    }
    match &task.last {
        Last::Pending(open) if open.run == run => RunPhase::NeverClaimed,
        Last::Running(open, _) if open.run == run => RunPhase::Running,
        Last::Unscheduled | Last::Pending(_) | Last::Running(..) | Last::Ended => RunPhase::Missing,
    }
}

/// The claim that a run has or had.
pub fn tenancy(task: &Task, run: RunId) -> Option<&Tenancy> {
    if let Last::Running(open, tenancy) = &task.last
        && open.run == run
    {
        return Some(tenancy);
    }
    task.ended.iter().find(|ended| ended.run.run == run).and_then(|ended| ended.tenancy.as_ref())
}

/// Whether a run accepts an artifact now.
pub fn admit(task: &Task, run: RunId, expires: DateTime<Utc>, now: DateTime<Utc>) -> Result<(), Refusal> {
    if expires < now - EXPIRED_DRIFT {
        return Err(Refusal::Past);
    }
    match place(task, run) {
        RunPhase::Missing => return Err(Refusal::NoSuchRun),
        RunPhase::NeverClaimed => return Err(Refusal::NeverClaimed),
        RunPhase::Running | RunPhase::Exception(_) | RunPhase::Over => {}
    }
    if expires > task.expires {
        return Err(Refusal::OutlivesTask);
    }
    admit_bytes(task, run, now)
}

/// Whether a run still takes the bytes of its artifacts: exactly as long as it takes artifacts.
pub fn admit_bytes(task: &Task, run: RunId, now: DateTime<Utc>) -> Result<(), Refusal> {
    match place(task, run) {
        RunPhase::Running => Ok(()),
        RunPhase::Exception(resolved) if now < resolved + AFTER_EXCEPTION => Ok(()),
        RunPhase::Exception(_) | RunPhase::Over => Err(Refusal::RunEnded),
        RunPhase::Missing => Err(Refusal::NoSuchRun),
        RunPhase::NeverClaimed => Err(Refusal::NeverClaimed),
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    pub artifact: Artifact,
    /// Whether anything about it is new.
    pub changed: bool,
}

/// What becomes of a name when an artifact of that name is asked for: the same again is fine and may live longer, a
/// reference may lead elsewhere and may become a link. An object whose upload is not finished keeps its upload. A link keeps
/// the content type of what had its name, as in Taskcluster: a link is a location, not a type.
pub fn combine(old: Option<&Stored>, mut new: Artifact, now: DateTime<Utc>) -> Result<Decision, Refusal> {
    let Some(stored) = old else { return Ok(Decision { artifact: new, changed: true }) };
    let old = &stored.artifact;
    let details_changed = replaces(stored, &mut new.details)?;
    // Bytes that are being removed must not be uploaded anew.
    if old.details == Details::S3 && stored.removable <= now + UNCHANGED_BEFORE_REMOVAL {
        return Err(Refusal::BeingRemoved);
    }
    if new.details.storage_type() == StorageType::Link {
        new.content_type.clone_from(&old.content_type);
    } else if old.content_type != new.content_type {
        return Err(Refusal::Incompatible("contentType"));
    }
    if new.expires < old.expires {
        return Err(Refusal::Incompatible("expires, which can only be made later"));
    }
    let changed = details_changed || old.expires != new.expires || old.content_length != new.content_length;
    Ok(Decision { artifact: new, changed })
}

/// Whether these details may take the place of those that are stored, and whether they differ.
fn replaces(stored: &Stored, new: &mut Details) -> Result<bool, Refusal> {
    let other_type = Err(Refusal::Incompatible("storageType"));
    match &stored.artifact.details {
        Details::S3 => match new {
            Details::S3 => Ok(false),
            Details::Object { .. } | Details::Reference { .. } | Details::Link { .. } | Details::Error { .. } => {
                other_type
            }
        },
        Details::Object { upload: begun } => match new {
            Details::Object { .. } if stored.present => Err(Refusal::Incompatible("uploadId: its upload is finished")),
            Details::Object { upload } => {
                *upload = *begun;
                Ok(false)
            }
            Details::S3 | Details::Reference { .. } | Details::Link { .. } | Details::Error { .. } => other_type,
        },
        Details::Reference { url: old } => match new {
            Details::Reference { url } => Ok(old != url),
            Details::Link { .. } => Ok(true),
            Details::S3 | Details::Object { .. } | Details::Error { .. } => other_type,
        },
        Details::Link { artifact: old } => match new {
            Details::Link { artifact } if artifact == old => Ok(false),
            Details::Link { .. } => Err(Refusal::Incompatible("artifact")),
            Details::S3 | Details::Object { .. } | Details::Reference { .. } | Details::Error { .. } => other_type,
        },
        Details::Error { reason: old_reason, message: old_message } => match new {
            Details::Error { reason, message } if reason == old_reason && message == old_message => Ok(false),
            Details::Error { .. } => Err(Refusal::Incompatible("reason and message")),
            Details::S3 | Details::Object { .. } | Details::Reference { .. } | Details::Link { .. } => other_type,
        },
    }
}

/// Whether an event is emitted when an artifact is created: for bytes there is none, for an object there is one when its
/// upload is finished.
pub fn is_emitted_at_creation(storage_type: StorageType) -> bool {
    match storage_type {
        StorageType::S3 | StorageType::Object => false,
        StorageType::Reference | StorageType::Link | StorageType::Error => true,
    }
}

/// Whether an artifact can be read as soon as it is created.
pub fn is_present_at_creation(storage_type: StorageType) -> bool {
    match storage_type {
        StorageType::Object => false,
        StorageType::S3 | StorageType::Reference | StorageType::Link | StorageType::Error => true,
    }
}

/// When an artifact may be removed that is stored now: a while after its end, but its task, which waits for it, is not retained for that.
/// And not before now, for passes do not look below the times they have passed.
pub fn removable(
    storage_type: StorageType,
    expires: DateTime<Utc>,
    task_expires: DateTime<Utc>,
    now: DateTime<Utc>,
) -> DateTime<Utc> {
    let known_until = (expires + EXPIRED_KEPT).min(task_expires.max(expires));
    match storage_type {
        StorageType::S3 => known_until.max(now + UPLOAD_MAX),
        StorageType::Object | StorageType::Reference | StorageType::Link | StorageType::Error => known_until.max(now),
    }
}

/// Until when an object is known at least: a while after its end, but no longer than the artifact that it is to be, if it is to be one.
pub fn object_known_until(expires: DateTime<Utc>, artifact: Option<&Stored>) -> DateTime<Utc> {
    let known_until = expires + EXPIRED_KEPT;
    artifact.map_or(known_until, |artifact| known_until.min(artifact.removable.max(expires)))
}

/// What the object service knows of the object that an artifact shall be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ObjectState {
    /// The upload that made it.
    pub upload: SlugId,
    pub finished: bool,
    /// When it may be removed.
    pub removable: DateTime<Utc>,
}

/// Whether an upload may be called finished; false if it has been already.
pub fn finish(
    stored: Option<&Stored>,
    upload: SlugId,
    object: Option<ObjectState>,
    now: DateTime<Utc>,
) -> Result<bool, Refusal> {
    let stored = stored.ok_or(Refusal::Missing)?;
    let expected = match &stored.artifact.details {
        Details::Object { upload } => *upload,
        Details::S3 | Details::Reference { .. } | Details::Link { .. } | Details::Error { .. } => {
            return Err(Refusal::NotAnObject);
        }
    };
    if upload != expected {
        return Err(Refusal::WrongUpload);
    }
    if stored.present {
        return Ok(false);
    }
    match object.filter(|object| object.upload == upload && object.finished) {
        Some(object) if object.removable <= now + UNCHANGED_BEFORE_REMOVAL => Err(Refusal::UploadExpired),
        Some(_) => Ok(true),
        None => Err(Refusal::NotUploaded),
    }
}

/// What a reader meets under a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Met<'a> {
    /// Nothing that can be read.
    Nothing,
    /// Something that has expired.
    Expired,
    /// A link to another name.
    Link(&'a str),
    /// A link to a name that was met before.
    Circle,
    /// One link too many.
    TooManyLinks,
    /// What was looked for.
    Artifact(&'a Artifact),
}

/// What a reader meets under the last of these names.
pub fn meet<'a>(names: &[&str], found: Option<&'a Stored>, now: DateTime<Utc>) -> Met<'a> {
    let Some(Stored { artifact, present: true, .. }) = found else { return Met::Nothing };
    if artifact.expires <= now {
        return Met::Expired;
    }
    match &artifact.details {
        Details::Link { artifact: target } if names.contains(&target.as_str()) => Met::Circle,
        Details::Link { .. } if names.len() > LINKS_MAX => Met::TooManyLinks,
        Details::Link { artifact: target } => Met::Link(target),
        Details::S3 | Details::Object { .. } | Details::Reference { .. } | Details::Error { .. } => {
            Met::Artifact(artifact)
        }
    }
}

/// What the event log stores for an event about an artifact.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Note<'a> {
    storage_type: StorageType,
    name: &'a str,
    expires: DateTime<Utc>,
    content_type: &'a str,
    last: Option<RunId>,
    place: i16,
    taken_until: Option<DateTime<Utc>>,
}

/// What the event log stores of an artifact that can be read from now on: the artifact, and where the task's last run is.
pub fn note(task: &Task, artifact: &Artifact) -> Result<String, Unserializable> {
    let ended = task.ended.last().map(|ended| ended.run.run);
    let (last, place, taken_until) = match &task.last {
        Last::Unscheduled | Last::Ended => (ended, 0, None),
        Last::Pending(open) => (Some(open.run), 1, None),
        Last::Running(open, tenancy) => (Some(open.run), 2, Some(tenancy.taken_until)),
    };
    let note = Note {
        storage_type: artifact.details.storage_type(),
        name: &artifact.name,
        expires: artifact.expires,
        content_type: &artifact.content_type,
        last,
        place,
        taken_until,
    };
    json::text(&note)
}

#[cfg(test)]
#[path = "artifact_tests.rs"]
mod tests;
