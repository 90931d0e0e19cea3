//! Bodies about artifacts. Field names and limits are those of the Taskcluster Queue API.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::credentials::Credentials;
use crate::dates::Timestamp;
use crate::ids::{ArtifactName, ContentType, ProjectId, ReferenceUrl, SlugId};
use crate::schema::word_enum;
use crate::states::{ArtifactErrorReason, StorageType};
use crate::structure::present;
use crate::whole::present_whole;

/// The length limit of an error's message, in characters.
pub const MESSAGE_MAX: usize = 4096;
/// The largest length that every client can read: larger numbers are not whole ones in JavaScript.
pub const CONTENT_LENGTH_MAX: u64 = (1 << 53) - 1;

/// A type with one word, or a few, that `storageType` has in some body.
macro_rules! tag {
    ($(#[doc = $doc:literal])* $name:ident { $($variant:ident $word:literal),+ }) => {
        $(#[doc = $doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
        pub enum $name { $(#[doc = concat!("`", $word, "`")] #[serde(rename = $word)] $variant),+ }

        word_enum!($name, concat!($($doc),*), $($variant $word),+);
    };
}

tag!(
    /// `s3`.
    S3Tag { S3 "s3" }
);
tag!(
    /// `object`.
    ObjectTag { Object "object" }
);
tag!(
    /// `reference`.
    ReferenceTag { Reference "reference" }
);
tag!(
    /// `link`.
    LinkTag { Link "link" }
);
tag!(
    /// `error`.
    ErrorTag { Error "error" }
);
tag!(
    /// What is answered without more words.
    PlainTag { Reference "reference", Link "link", Error "error" }
);
tag!(
    /// What is found at a URL.
    UrlTag { S3 "s3", Reference "reference" }
);

/// What every createArtifact body has: it decides about the rest.
#[derive(Deserialize, Debug)]
#[serde(rename_all = "camelCase")]
pub struct CreateArtifactKind {
    /// How it is stored.
    pub storage_type: StorageType,
}

/// The body of createArtifact; `storageType` is which of these it is.
#[derive(Serialize, Debug, ToSchema)]
#[serde(untagged)]
pub enum CreateArtifactRequest {
    /// Bytes that are uploaded to a signed URL.
    S3(CreateS3Artifact),
    /// An object of the object service.
    Object(CreateObjectArtifact),
    /// A URL somewhere else.
    Reference(CreateReferenceArtifact),
    /// Another artifact of the same run.
    Link(CreateLinkArtifact),
    /// Why there is none.
    Error(CreateErrorArtifact),
}

/// An artifact whose bytes are uploaded to the `putUrl` of the answer.
#[derive(Serialize, Deserialize, Debug, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CreateS3Artifact {
    /// `s3`.
    pub storage_type: S3Tag,
    /// Until when it is kept; at most as long as its task.
    pub expires: Timestamp,
    /// What the upload must have as its `Content-Type`, and downloads will have.
    pub content_type: ContentType,
    /// How many bytes there are, before any compression.
    #[serde(default, deserialize_with = "present_whole", skip_serializing_if = "Option::is_none")]
    #[schema(maximum = 9_007_199_254_740_991_u64)]
    pub content_length: Option<u64>,
}

/// An artifact whose bytes are uploaded to the object service.
#[derive(Serialize, Deserialize, Debug, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CreateObjectArtifact {
    /// `object`.
    pub storage_type: ObjectTag,
    /// Until when it is kept; at most as long as its task.
    pub expires: Timestamp,
    /// The media type.
    pub content_type: ContentType,
    /// How many bytes there are.
    #[serde(default, deserialize_with = "present_whole", skip_serializing_if = "Option::is_none")]
    #[schema(maximum = 9_007_199_254_740_991_u64)]
    pub content_length: Option<u64>,
}

/// An artifact that is somewhere else.
#[derive(Serialize, Deserialize, Debug, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CreateReferenceArtifact {
    /// `reference`.
    pub storage_type: ReferenceTag,
    /// Until when it is kept; at most as long as its task.
    pub expires: Timestamp,
    /// Where it is.
    pub url: ReferenceUrl,
    /// What is to be expected there.
    pub content_type: ContentType,
}

/// Another name of an artifact of the same run.
#[derive(Serialize, Deserialize, Debug, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CreateLinkArtifact {
    /// `link`.
    pub storage_type: LinkTag,
    /// Until when it is kept; at most as long as its task.
    pub expires: Timestamp,
    /// The artifact that it leads to, which may come later.
    pub artifact: ArtifactName,
    /// What is to be expected there. Default `application/binary`.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub content_type: Option<ContentType>,
}

/// Why there is no such artifact.
#[derive(Serialize, Deserialize, Debug, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CreateErrorArtifact {
    /// `error`.
    pub storage_type: ErrorTag,
    /// Until when it is kept; at most as long as its task.
    pub expires: Timestamp,
    /// For programs.
    pub reason: ArtifactErrorReason,
    /// For people.
    #[schema(max_length = 4_096, pattern = r"^[^\u0000]*$")]
    pub message: String,
}

/// The answer of createArtifact.
#[derive(Serialize, Debug, ToSchema)]
#[serde(untagged)]
pub enum CreatedArtifact<'a> {
    /// Where to upload it.
    S3(CreatedS3Artifact<'a>),
    /// How to upload it.
    Object(CreatedObjectArtifact<'a>),
    /// There is nothing to upload.
    Plain(CreatedPlainArtifact),
}

/// Where to upload an artifact.
#[derive(Serialize, Debug, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct CreatedS3Artifact<'a> {
    /// `s3`.
    pub storage_type: S3Tag,
    /// Where to PUT the bytes, with this `Content-Type` and without credentials.
    pub put_url: String,
    /// Until when that works.
    pub expires: Timestamp,
    /// The `Content-Type` of the upload.
    pub content_type: &'a str,
}

/// How to upload an artifact to the object service.
#[derive(Serialize, Debug, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct CreatedObjectArtifact<'a> {
    /// `object`.
    pub storage_type: ObjectTag,
    /// The name of the object.
    pub name: String,
    /// The project of the task, which goes into createUpload.
    #[schema(value_type = ProjectId)]
    pub project_id: &'a str,
    /// Goes into createUpload, finishUpload and finishArtifact.
    pub upload_id: SlugId,
    /// What goes into createUpload as its `expires`.
    pub expires: Timestamp,
    /// May upload this object and do nothing else.
    pub credentials: Credentials,
}

/// The answer for an artifact of which there is nothing to upload.
#[derive(Serialize, Debug, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct CreatedPlainArtifact {
    /// As it was sent.
    pub storage_type: PlainTag,
}

/// The body of finishArtifact.
#[derive(Serialize, Deserialize, Debug, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct FinishArtifactRequest {
    /// From createArtifact.
    pub upload_id: SlugId,
}

/// An artifact in a list.
#[derive(Serialize, Debug, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Artifact)]
pub struct ArtifactEntry<'a> {
    /// How it is stored.
    pub storage_type: StorageType,
    /// Its name within the run.
    pub name: &'a str,
    /// Until when it is retained.
    pub expires: Timestamp,
    /// The media type.
    pub content_type: &'a str,
    /// Length in bytes, as declared by its creator.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content_length: Option<i64>,
    /// How many bytes are stored, perhaps compressed; absent if none are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size: Option<i64>,
    /// The SHA-256 digest, in hexadecimal, of the bytes that are stored.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
}

/// A page of a run's artifacts.
#[derive(Serialize, Debug, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Artifacts)]
pub struct ArtifactList<'a> {
    /// In the order of their names.
    pub artifacts: Vec<ArtifactEntry<'a>>,
    /// For the next page; absent on the last one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub continuation_token: Option<String>,
}

/// The body of a redirection to an artifact.
#[derive(Serialize, Debug, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ArtifactRedirect<'a> {
    /// How it is stored, after all links.
    pub storage_type: StorageType,
    /// Where it is, as in the header `Location`.
    pub url: &'a str,
}

/// The body that is answered instead of an artifact that is an error.
#[derive(Serialize, Debug, ToSchema)]
pub struct ArtifactError<'a> {
    /// For programs.
    pub reason: ArtifactErrorReason,
    /// For people.
    pub message: &'a str,
}

/// What an artifact is, after all links.
#[derive(Serialize, Debug, ToSchema)]
#[serde(untagged)]
pub enum ArtifactContent<'a> {
    /// At a URL.
    Url(ArtifactAtUrl),
    /// In the object service.
    Object(ArtifactInService),
    /// There is none.
    Error(ArtifactMissing<'a>),
}

/// An artifact that is to be read from a URL.
#[derive(Serialize, Debug, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ArtifactAtUrl {
    /// `s3` or `reference`.
    pub storage_type: UrlTag,
    /// Where it is.
    pub url: String,
}

/// An artifact that is to be read from the object service.
#[derive(Serialize, Debug, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ArtifactInService {
    /// `object`.
    pub storage_type: ObjectTag,
    /// The object.
    pub name: String,
    /// May read this object and do nothing else.
    pub credentials: Credentials,
}

/// An artifact that a worker could not make.
#[derive(Serialize, Debug, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ArtifactMissing<'a> {
    /// `error`.
    pub storage_type: ErrorTag,
    /// For programs.
    pub reason: ArtifactErrorReason,
    /// For people.
    pub message: &'a str,
}
