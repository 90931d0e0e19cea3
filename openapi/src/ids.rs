//! Identifiers. Each is a separate type with a private field, checked in [`FromStr`] and displayed
//! in its wire format.

use std::fmt;
use std::str::FromStr;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use utoipa::openapi::RefOr;
use utoipa::openapi::schema::Schema;
use utoipa::{PartialSchema, ToSchema};
use uuid::Uuid;

use crate::{schema, text};

/// The message may be sent to the client.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{value:?} is not a valid {what}: {rule}")]
pub struct InvalidId {
    what: &'static str,
    rule: Rule,
    value: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Rule {
    Pattern(&'static str),
    QueueName { suggestion: String },
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pattern(pattern) => write!(f, "it must match {pattern}"),
            Self::QueueName { suggestion } => write!(
                f,
                "its last part may have a-z, 0-9 and -, begins with a letter and does not end with -; the part before \
                 the slash, by default {DEFAULT_PROVISIONER}, may have A-Z, a-z, 0-9, _ and -; each has up to \
                 {NAME_MAX} characters. Try {suggestion:?}"
            ),
        }
    }
}

const QUOTED_VALUE_MAX: usize = 80;

impl InvalidId {
    fn new(what: &'static str, pattern: &'static str, value: &str) -> Self {
        Self::by(what, Rule::Pattern(pattern), value)
    }

    fn by(what: &'static str, rule: Rule, value: &str) -> Self {
        Self { what, rule, value: value.chars().take(QUOTED_VALUE_MAX).collect() }
    }
}

const SLUG_PATTERN: &str = "^[A-Za-z0-9_-]{8}[Q-T][A-Za-z0-9_-][CGKOSWaeimquy26-][A-Za-z0-9_-]{10}[AQgw]$";
const SLUG_LEN: usize = 22;
/// The decoder requires space for whole groups of three, although a slugid encodes 16 bytes.
const SLUG_ROOM: usize = 18;

/// A "slugid": a version 4 UUID in URL-safe base64 without padding, 22 characters.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SlugId(Uuid);

/// Chosen by the client that creates the task.
pub type TaskId = SlugId;
/// By default the id of the group's first task.
pub type TaskGroupId = SlugId;
/// Chosen by the client that starts the job, or made by the server.
pub type JobId = SlugId;

impl SlugId {
    /// Returns none unless it is a version 4 UUID of the RFC 4122 variant.
    #[must_use]
    pub fn from_uuid(uuid: Uuid) -> Option<Self> {
        let bytes = uuid.as_bytes();
        (bytes[6] >> 4 == 4 && bytes[8] >> 6 == 0b10).then_some(Self(uuid))
    }

    /// Makes an id from 16 random bytes. All ids that Tenure makes come from here. They never begin
    /// with a dash, which a command line would parse as an option: the first bit is cleared,
    /// as in slugid's "nice" form, so the first character is from A to f.
    #[must_use]
    pub fn from_random(mut bytes: [u8; 16]) -> Self {
        bytes[0] &= 0x7f;
        Self(uuid::Builder::from_random_bytes(bytes).into_uuid())
    }

    /// The value stored in the database.
    #[must_use]
    pub fn uuid(self) -> Uuid {
        self.0
    }
}

impl FromStr for SlugId {
    type Err = InvalidId;

    fn from_str(text: &str) -> Result<Self, InvalidId> {
        let invalid = || InvalidId::new("slugid", SLUG_PATTERN, text);
        if text.len() != SLUG_LEN {
            return Err(invalid());
        }
        let mut bytes = [0; SLUG_ROOM];
        let decoded = URL_SAFE_NO_PAD.decode_slice(text, &mut bytes).map_err(|_| invalid())?;
        let uuid = Uuid::from_slice(&bytes[..decoded]).map_err(|_| invalid())?;
        Self::from_uuid(uuid).ok_or_else(invalid)
    }
}

impl SlugId {
    /// Passes the wire format to `take` without an allocation.
    fn with_text<T>(self, take: impl FnOnce(&str) -> T) -> T {
        let mut text = [0; SLUG_LEN];
        URL_SAFE_NO_PAD.encode_slice(self.0.as_bytes(), &mut text).expect("16 bytes are 22 characters of base64");
        take(std::str::from_utf8(&text).expect("base64 is ASCII"))
    }
}

impl fmt::Display for SlugId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.with_text(|text| f.write_str(text))
    }
}

impl fmt::Debug for SlugId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for SlugId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.with_text(|text| serializer.serialize_str(text))
    }
}

/// Implements deserialization from text, and the schema.
macro_rules! read_from_text {
    ($name:ident, $description:expr, $pattern:expr, $example:expr) => {
        impl PartialSchema for $name {
            fn schema() -> RefOr<Schema> {
                schema::text($description.trim(), $pattern, $example)
            }
        }

        impl ToSchema for $name {}

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                text::parsed(deserializer)
            }
        }
    };
}

read_from_text!(
    SlugId,
    "A slugid: a version 4 UUID in URL-safe base64 without padding.",
    SLUG_PATTERN,
    "fN1SbArXTPSVFNUvaOlinQ"
);

/// Defines a newtype over `String`, checked when it is parsed or deserialized.
macro_rules! text_id {
    ($(#[doc = $doc:literal])* $name:ident, $what:literal, $pattern:expr, $check:expr, $example:literal) => {
        $(#[doc = $doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize)]
        #[serde(transparent)]
        pub struct $name(String);

        impl $name {
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $name {
            type Err = InvalidId;

            fn from_str(text: &str) -> Result<Self, InvalidId> {
                let check: fn(&str) -> bool = $check;
                if check(text) { Ok(Self(text.to_owned())) } else { Err(InvalidId::new($what, $pattern, text)) }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        read_from_text!($name, concat!($($doc),*), $pattern, $example);
    };
}

/// Maximum length of most names, in characters.
pub const NAME_MAX: usize = 38;
/// In characters.
pub const PROJECT_MAX: usize = 500;

const NAME_PATTERN: &str = "^[a-zA-Z0-9_-]{1,38}$";
const WORKER_TYPE_PATTERN: &str = "^[a-z]([-a-z0-9]{0,36}[a-z0-9])?$";
const QUEUE_PATTERN: &str = "^[a-zA-Z0-9_-]{1,38}/[a-z]([-a-z0-9]{0,36}[a-z0-9])?$";
const QUEUE_NAME_PATTERN: &str = "^([a-zA-Z0-9_-]{1,38}/)?[a-z]([-a-z0-9]{0,36}[a-z0-9])?$";
const PROJECT_PATTERN: &str = "^[a-zA-Z0-9._/-]{1,500}$";

fn is_name(text: &str) -> bool {
    (1..=NAME_MAX).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
}

fn is_worker_type(text: &str) -> bool {
    let lower = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    (1..=NAME_MAX).contains(&text.len())
        && text.starts_with(|c: char| c.is_ascii_lowercase())
        && text.bytes().all(|b| lower(b) || b == b'-')
        && !text.ends_with('-')
}

fn is_queue(text: &str) -> bool {
    text.split_once('/').is_some_and(|(provisioner, worker_type)| is_name(provisioner) && is_worker_type(worker_type))
}

fn is_project(text: &str) -> bool {
    (1..=PROJECT_MAX).contains(&text.len())
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'/' | b'-'))
}

text_id!(
    /// The first half of a task queue's id.
    ProvisionerId, "provisionerId", NAME_PATTERN, is_name, "acme"
);
text_id!(
    /// The second half of a task queue's id.
    WorkerType, "workerType", WORKER_TYPE_PATTERN, is_worker_type, "linux"
);
text_id!(
    /// The second half of a task queue's id in a path, where Taskcluster accepts more than valid
    /// queue names.
    WorkerTypeInPath, "workerType", NAME_PATTERN, is_name, "linux"
);
text_id!(
    /// The scheduler that owns a task group.
    SchedulerId, "schedulerId", NAME_PATTERN, is_name, "-"
);
text_id!(
    /// The group that a worker declares.
    WorkerGroup, "workerGroup", NAME_PATTERN, is_name, "rack-1"
);
text_id!(
    /// A worker within its group.
    WorkerId, "workerId", NAME_PATTERN, is_name, "worker-1"
);
text_id!(
    /// The project that a task is accounted to.
    ProjectId, "projectId", PROJECT_PATTERN, is_project, "none"
);

/// In bytes.
pub const ARTIFACT_NAME_MAX: usize = 1024;
/// In bytes. Fits an artifact's name, prefixed by its task and run.
pub const OBJECT_NAME_MAX: usize = 1100;
/// In bytes.
pub const CONTENT_TYPE_MAX: usize = 255;
/// In bytes.
pub const REFERENCE_URL_MAX: usize = 8192;

const ARTIFACT_NAME_PATTERN: &str = "^[\\x20-\\x7e]{1,1024}$";
const OBJECT_NAME_PATTERN: &str = "^[\\x20-\\x7e]{1,1100}$";
const CONTENT_TYPE_PATTERN: &str = "^[\\x21-\\x7e]([\\x20-\\x7e]{0,253}[\\x21-\\x7e])?$";
const REFERENCE_URL_PATTERN: &str =
    "^[hH][tT][tT][pP][sS]?://[\\x21\\x22\\x24-\\x2e\\x30-\\x3e\\x40-\\x7e][\\x21-\\x7e]*$";
const SHA256_PATTERN: &str = "^[a-f0-9]{64}$";
const SHA512_PATTERN: &str = "^[a-f0-9]{128}$";

fn is_printable(text: &str, max: usize) -> bool {
    (1..=max).contains(&text.len()) && text.bytes().all(|b| matches!(b, b' '..=b'~'))
}

/// Spaces at either end would be lost in a header.
fn is_content_type(text: &str) -> bool {
    is_printable(text, CONTENT_TYPE_MAX) && text.trim() == text
}

/// Only http and https: readers are redirected there, and `javascript:` could act for them, `file:`
/// open their own files.
fn is_web_url(text: &str) -> bool {
    text.len() <= REFERENCE_URL_MAX
        && text.split_once("://").is_some_and(|(scheme, rest)| {
            (scheme.eq_ignore_ascii_case("http") || scheme.eq_ignore_ascii_case("https"))
                && rest.starts_with(|first| !matches!(first, '/' | '?' | '#'))
                && rest.bytes().all(|b| matches!(b, b'!'..=b'~'))
        })
}

fn is_hex(text: &str, len: usize) -> bool {
    text.len() == len && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

text_id!(
    /// The name of an artifact within its run; may contain slashes.
    ArtifactName, "artifact name", ARTIFACT_NAME_PATTERN, |text| is_printable(text, ARTIFACT_NAME_MAX), "public/build.log"
);
text_id!(
    /// The name of an object; may contain slashes.
    ObjectName, "object name", OBJECT_NAME_PATTERN, |text| is_printable(text, OBJECT_NAME_MAX), "builds/1/app.zip"
);
text_id!(
    /// A media type, as in the header `Content-Type`.
    ContentType, "content type", CONTENT_TYPE_PATTERN, is_content_type, "text/plain"
);
text_id!(
    /// A URL with the scheme `http` or `https`, of up to 8,192 characters.
    ReferenceUrl, "http or https URL", REFERENCE_URL_PATTERN, is_web_url, "https://example.com/live.log"
);
text_id!(
    /// A SHA-256 digest in hexadecimal.
    Sha256Hex, "SHA-256 digest", SHA256_PATTERN, |text| is_hex(text, 64),
    "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824"
);
text_id!(
    /// A SHA-512 digest in hexadecimal.
    Sha512Hex, "SHA-512 digest", SHA512_PATTERN, |text| is_hex(text, 128),
    "9b71d224bd62f3785d96d46ad3ea3d73319bfbc2890caadae2dff72519673ca72323c3d99ba5c11d7c7acc6e14b8c5da0c4663475c2e5c3adef46f73bcdec043"
);

impl SchedulerId {
    #[must_use]
    pub fn default_value() -> Self {
        Self("-".to_owned())
    }
}

impl ProjectId {
    #[must_use]
    pub fn default_value() -> Self {
        Self("none".to_owned())
    }
}

/// The provisioner of a queue name without a slash.
pub const DEFAULT_PROVISIONER: &str = "default";

/// A task queue: `<provisionerId>/<workerType>`.
///
/// [`FromStr`] also reads `mail` as `default/mail`. Deserialization requires the full name, as do
/// Taskcluster's requests; responses always have it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize)]
#[serde(transparent)]
pub struct TaskQueueId(String);

impl FromStr for TaskQueueId {
    type Err = InvalidId;

    fn from_str(text: &str) -> Result<Self, InvalidId> {
        if is_queue(text) {
            return Ok(Self(text.to_owned()));
        }
        if is_worker_type(text) {
            return Ok(Self(format!("{DEFAULT_PROVISIONER}/{text}")));
        }
        Err(InvalidId::by("queue", Rule::QueueName { suggestion: nearest_queue(text) }, text))
    }
}

impl fmt::Display for TaskQueueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl PartialSchema for TaskQueueId {
    fn schema() -> RefOr<Schema> {
        schema::text("A task queue: `<provisionerId>/<workerType>`.", QUEUE_PATTERN, "acme/linux")
    }
}

impl ToSchema for TaskQueueId {}

impl<'de> Deserialize<'de> for TaskQueueId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        text::read(deserializer, Self::read_full)
    }
}

/// OpenAPI schema of a queue name in requests of Tenure's own API.
pub struct QueueName;

impl PartialSchema for QueueName {
    fn schema() -> RefOr<Schema> {
        let about = "A task queue: `<provisionerId>/<workerType>`. `mail` alone is `default/mail`.";
        schema::text(about, QUEUE_NAME_PATTERN, "acme/linux")
    }
}

impl ToSchema for QueueName {}

/// Reads the queue of a request of Tenure's own API.
pub(crate) fn queue_name<'de, D: Deserializer<'de>>(deserializer: D) -> Result<TaskQueueId, D::Error> {
    text::parsed(deserializer)
}

/// Like [`queue_name`], for a field that may be absent but not null.
pub(crate) fn present_queue_name<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<TaskQueueId>, D::Error> {
    queue_name(deserializer).map(Some)
}

/// Returns a valid name that resembles `text`.
fn nearest_queue(text: &str) -> String {
    match text.split_once('/') {
        Some((provisioner, worker_type)) => {
            format!("{}/{}", nearest_provisioner(provisioner), nearest_worker_type(worker_type))
        }
        None => nearest_worker_type(text),
    }
}

fn nearest_provisioner(text: &str) -> String {
    let allowed = |c: char| if c.is_ascii_alphanumeric() || c == '_' { c } else { '-' };
    let name: String = text.chars().take(NAME_MAX).map(allowed).collect();
    if name.is_empty() { DEFAULT_PROVISIONER.to_owned() } else { name }
}

fn nearest_worker_type(text: &str) -> String {
    let allowed = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
    let mut name: String = text.chars().map(allowed).skip_while(|c| *c == '-').take(NAME_MAX).collect();
    if name.is_empty() {
        return "queue".to_owned();
    }
    if name.starts_with(|c: char| c.is_ascii_digit()) {
        name.insert(0, 'q');
        name.truncate(NAME_MAX);
    }
    name.truncate(name.trim_end_matches('-').len());
    name
}

impl TaskQueueId {
    #[must_use]
    pub fn new(provisioner: &ProvisionerId, worker_type: &WorkerType) -> Self {
        Self(format!("{provisioner}/{worker_type}"))
    }

    /// Parses a full name only, as Taskcluster does.
    pub fn read_full(text: &str) -> Result<Self, InvalidId> {
        if is_queue(text) { Ok(Self(text.to_owned())) } else { Err(InvalidId::new("taskQueueId", QUEUE_PATTERN, text)) }
    }

    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    #[must_use]
    pub fn provisioner_id(&self) -> &str {
        self.0.split_once('/').map_or("", |(provisioner, _)| provisioner)
    }

    #[must_use]
    pub fn worker_type(&self) -> &str {
        self.0.split_once('/').map_or("", |(_, worker_type)| worker_type)
    }
}

/// The number of a run within its task, from 0. With the task's id, it is the fencing token of a
/// claim.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RunId(u16);

impl RunId {
    pub const FIRST: Self = Self(0);
    pub const MAX: u16 = 1000;

    /// Returns none above [`Self::MAX`].
    #[must_use]
    pub fn new(number: u16) -> Option<Self> {
        (number <= Self::MAX).then_some(Self(number))
    }

    #[must_use]
    pub fn number(self) -> u16 {
        self.0
    }

    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

const UUID_PATTERN: &str = "^[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}$";
const UUID_LEN: usize = 36;

/// Defines ids that are random UUIDs.
macro_rules! uuids {
    ($($(#[$doc:meta])* $name:ident $what:literal $about:literal $example:literal;)+) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        pub struct $name(Uuid);

        impl $name {
            #[must_use]
            pub fn new(uuid: Uuid) -> Self {
                Self(uuid)
            }

            /// The value stored in the database.
            #[must_use]
            pub fn uuid(self) -> Uuid {
                self.0
            }
        }

        impl FromStr for $name {
            type Err = InvalidId;

            fn from_str(text: &str) -> Result<Self, InvalidId> {
                let uuid = (text.len() == UUID_LEN).then(|| Uuid::try_parse(text).ok()).flatten();
                uuid.map(Self).ok_or_else(|| InvalidId::new($what, UUID_PATTERN, text))
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        read_from_text!($name, $about, UUID_PATTERN, $example);
    )+};
}

uuids! {
    /// Identifies a session of a worker. It authorizes nothing: scopes are checked as well.
    SessionId "session id" "Identifies a session of a worker." "b4cf1f7d-1b1c-4a8b-9d3f-5f0f4d6f2a10";
    /// Identifies a server of a database, from its start to its end.
    ServerId "server id" "Identifies a server, from its start to its end." "3f0c6a52-9c1e-4b57-8a43-2d1f6e9b7c05";
}

impl PartialSchema for RunId {
    fn schema() -> RefOr<Schema> {
        schema::number("The number of a run within its task, from 0.", Self::MAX)
    }
}

impl ToSchema for RunId {}

impl FromStr for RunId {
    type Err = InvalidId;

    fn from_str(text: &str) -> Result<Self, InvalidId> {
        let invalid = || InvalidId::new("runId", "^[1-9]*[0-9]+$, 0 to 1000", text);
        let digits = text.trim_start_matches(|c: char| ('1'..='9').contains(&c));
        if text.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
            return Err(invalid());
        }
        text.parse().ok().and_then(Self::new).ok_or_else(invalid)
    }
}

impl fmt::Display for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

#[cfg(test)]
mod tests;
