//! Artifacts: when a run accepts them, which replacements are allowed, and how links resolve.

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

/// Allowed age of `expires`: a worker's clock may be wrong.
pub const EXPIRED_DRIFT: TimeDelta = TimeDelta::minutes(15);
/// How long a run accepts artifacts after an exception: its worker may be uploading logs.
pub const AFTER_EXCEPTION: TimeDelta = TimeDelta::minutes(25);
pub const PUT_URL_LIFE: TimeDelta = TimeDelta::minutes(45);
/// Maximum time from the issue of an upload URL to the end of its upload.
pub const UPLOAD_MAX: TimeDelta = TimeDelta::hours(2);
/// Maximum time from the end of a run to the end of its last upload: [`AFTER_EXCEPTION`]
/// and [`UPLOAD_MAX`].
pub const UPLOADED_AFTER_END: TimeDelta = TimeDelta::minutes(145);
/// How long an expired artifact or object is still known, so reads report the expiry. Similar to
/// Taskcluster.
pub const EXPIRED_KEPT: TimeDelta = TimeDelta::minutes(30);
/// Safety margin before the removal of bytes, in which their artifact cannot be extended or
/// finished. The removal pass deletes bytes without a lock; no transaction that changes an artifact
/// takes as long.
pub const UNCHANGED_BEFORE_REMOVAL: TimeDelta = TimeDelta::minutes(1);
pub const GET_URL_LIFE: TimeDelta = TimeDelta::minutes(30);
/// Validity of credentials to upload an object.
pub const UPLOAD_CREDENTIALS_LIFE: TimeDelta = TimeDelta::hours(24);
/// Validity of credentials to download an object.
pub const DOWNLOAD_CREDENTIALS_LIFE: TimeDelta = TimeDelta::hours(1);
pub const LINKS_MAX: usize = 100;
const CONTENT_TYPE_DEFAULT: &str = "application/binary";

/// The storage type of an artifact, with its fields.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Details {
    S3,
    /// An object of the object service.
    Object {
        upload: SlugId,
    },
    Reference {
        url: String,
    },
    /// A link to another artifact of the run.
    Link {
        /// The target's name.
        artifact: String,
    },
    Error {
        reason: ArtifactErrorReason,
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

/// An artifact as requested.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Artifact {
    pub name: String,
    pub details: Details,
    pub content_type: String,
    /// Declared length in bytes.
    pub content_length: Option<i64>,
    pub expires: DateTime<Utc>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stored {
    pub artifact: Artifact,
    /// False only for objects with unfinished uploads.
    pub present: bool,
    /// The earliest time of removal.
    pub removable: DateTime<Utc>,
}

pub fn object_name(task: TaskId, run: RunId, name: &str) -> String {
    format!("t/{task}/{run}/{name}")
}

/// Credentials have a scope that ends in the name; after a final star it would match other objects.
#[must_use]
pub fn can_be_object(name: &str) -> bool {
    !name.ends_with('*')
}

/// Parses an object's name into task, run and artifact name. None for other objects.
pub fn artifact_of_object(object: &str) -> Option<(TaskId, RunId, &str)> {
    let mut parts = object.splitn(4, '/');
    let (Some("t"), Some(task), Some(run), Some(name)) = (parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return None;
    };
    let (task, run) = (task.parse::<TaskId>().ok()?, run.parse::<RunId>().ok()?);
    // Another spelling of a task or run names another object.
    (object_name(task, run, name) == object).then_some((task, run, name))
}

impl Artifact {
    /// Checks the fields that the request's types leave open.
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

/// Converts a length to the database's type.
pub fn content_length(length: u64) -> Result<i64, String> {
    let invalid = || format!("`contentLength` must be at most {CONTENT_LENGTH_MAX}");
    if length > CONTENT_LENGTH_MAX { Err(invalid()) } else { i64::try_from(length).map_err(|_| invalid()) }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// `expires` is too far in the past.
    Past,
    NoSuchRun,
    /// The run was never claimed.
    NeverClaimed,
    /// The artifact would outlive its task.
    OutlivesTask,
    RunEnded,
    /// An expired artifact of this name is about to be removed.
    BeingRemoved,
    /// The existing artifact of this name differs in this field.
    Incompatible(&'static str),
    Missing,
    NotAnObject,
    /// The upload id belongs to another upload.
    WrongUpload,
    NotUploaded,
    /// The bytes are being removed, or will be soon.
    UploadExpired,
}

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

/// Returns the current or past claim of a run.
pub fn tenancy(task: &Task, run: RunId) -> Option<&Tenancy> {
    if let Last::Running(open, tenancy) = &task.last
        && open.run == run
    {
        return Some(tenancy);
    }
    task.ended.iter().find(|ended| ended.run.run == run).and_then(|ended| ended.tenancy.as_ref())
}

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

/// Checks that a run accepts bytes of its artifacts: exactly as long as it accepts artifacts.
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
    pub changed: bool,
}

/// Combines a request with the stored artifact of the same name. A repeat may extend `expires`. A
/// reference may get another URL or become a link. An object keeps its unfinished upload. A link
/// keeps the replaced content type, as in Taskcluster: a link is a location, not a type.
pub fn combine(old: Option<&Stored>, mut new: Artifact, now: DateTime<Utc>) -> Result<Decision, Refusal> {
    let Some(stored) = old else { return Ok(Decision { artifact: new, changed: true }) };
    let old = &stored.artifact;
    let details_changed = replaces(stored, &mut new.details)?;
    // Bytes that are being removed must not be uploaded again.
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

/// Checks that the new details may replace the stored ones. Returns true if they differ.
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

/// Bytes emit no event; an object emits one when its upload is finished.
pub fn is_emitted_at_creation(storage_type: StorageType) -> bool {
    match storage_type {
        StorageType::S3 | StorageType::Object => false,
        StorageType::Reference | StorageType::Link | StorageType::Error => true,
    }
}

pub fn is_present_at_creation(storage_type: StorageType) -> bool {
    match storage_type {
        StorageType::Object => false,
        StorageType::S3 | StorageType::Reference | StorageType::Link | StorageType::Error => true,
    }
}

/// Returns the earliest removal of an artifact stored now: a while after it expires, but not after
/// its task, whose removal waits for it. Never before `now`, because passes do not reread past
/// times.
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

/// Returns the minimum retention of an object: a while after it expires, but no longer than its
/// artifact.
pub fn object_known_until(expires: DateTime<Utc>, artifact: Option<&Stored>) -> DateTime<Utc> {
    let known_until = expires + EXPIRED_KEPT;
    artifact.map_or(known_until, |artifact| known_until.min(artifact.removable.max(expires)))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ObjectState {
    pub upload: SlugId,
    pub finished: bool,
    /// The earliest time of removal.
    pub removable: DateTime<Utc>,
}

/// Checks that an upload may be finished. Returns false if it is finished already.
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

/// The outcome of resolving a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Met<'a> {
    Nothing,
    Expired,
    Link(&'a str),
    /// A link to an earlier name of the chain.
    Circle,
    TooManyLinks,
    Artifact(&'a Artifact),
}

/// Resolves the last of `names`, the chain of links so far.
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

/// Serializes the event of a readable artifact: the artifact, and the state of the task's last run.
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
