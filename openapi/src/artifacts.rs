//! Bodies of artifact requests. Field names and limits follow the Taskcluster Queue API.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::credentials::Credentials;
use crate::dates::Timestamp;
use crate::ids::{ArtifactName, ContentType, ProjectId, ReferenceUrl, SlugId};
use crate::schema::word_enum;
use crate::states::{ArtifactErrorReason, StorageType};
use crate::structure::present;
use crate::whole::present_whole;

/// In characters.
pub const MESSAGE_MAX: usize = 4096;
/// Larger numbers are not exact integers in JavaScript.
pub const CONTENT_LENGTH_MAX: u64 = (1 << 53) - 1;

/// Defines a type with some values of `storageType`.
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
    /// Storage types whose response has no further fields.
    PlainTag { Reference "reference", Link "link", Error "error" }
);
tag!(
    /// Storage types of artifacts at a URL.
    UrlTag { S3 "s3", Reference "reference" }
);

/// Selects the type of a createArtifact body.
#[derive(Deserialize, Debug)]
#[serde(rename_all = "camelCase")]
pub struct CreateArtifactKind {
    pub storage_type: StorageType,
}

/// The body of createArtifact; `storageType` selects the variant.
#[derive(Serialize, Debug, ToSchema)]
#[serde(untagged)]
pub enum CreateArtifactRequest {
    S3(CreateS3Artifact),
    Object(CreateObjectArtifact),
    Reference(CreateReferenceArtifact),
    Link(CreateLinkArtifact),
    Error(CreateErrorArtifact),
}

/// An artifact whose bytes are uploaded to the `putUrl` of the answer.
#[derive(Serialize, Deserialize, Debug, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CreateS3Artifact {
    pub storage_type: S3Tag,
    /// Not after its task.
    pub expires: Timestamp,
    /// The `Content-Type` of the upload and of downloads.
    pub content_type: ContentType,
    /// Length in bytes before compression.
    #[serde(default, deserialize_with = "present_whole", skip_serializing_if = "Option::is_none")]
    #[schema(maximum = 9_007_199_254_740_991_u64)]
    pub content_length: Option<u64>,
}

/// An artifact whose bytes are uploaded to the object service.
#[derive(Serialize, Deserialize, Debug, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CreateObjectArtifact {
    pub storage_type: ObjectTag,
    /// Not after its task.
    pub expires: Timestamp,
    pub content_type: ContentType,
    /// Length in bytes.
    #[serde(default, deserialize_with = "present_whole", skip_serializing_if = "Option::is_none")]
    #[schema(maximum = 9_007_199_254_740_991_u64)]
    pub content_length: Option<u64>,
}

/// An artifact at a URL elsewhere.
#[derive(Serialize, Deserialize, Debug, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CreateReferenceArtifact {
    pub storage_type: ReferenceTag,
    /// Not after its task.
    pub expires: Timestamp,
    pub url: ReferenceUrl,
    /// The expected media type.
    pub content_type: ContentType,
}

/// Another name of an artifact of the same run.
#[derive(Serialize, Deserialize, Debug, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CreateLinkArtifact {
    pub storage_type: LinkTag,
    /// Not after its task.
    pub expires: Timestamp,
    /// The target, which may be created later.
    pub artifact: ArtifactName,
    /// The expected media type. Default `application/binary`.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub content_type: Option<ContentType>,
}

/// The reason why an artifact does not exist.
#[derive(Serialize, Deserialize, Debug, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CreateErrorArtifact {
    pub storage_type: ErrorTag,
    /// Not after its task.
    pub expires: Timestamp,
    pub reason: ArtifactErrorReason,
    #[schema(max_length = 4_096, pattern = r"^[^\u0000]*$")]
    pub message: String,
}

/// The answer of createArtifact.
#[derive(Serialize, Debug, ToSchema)]
#[serde(untagged)]
pub enum CreatedArtifact<'a> {
    S3(CreatedS3Artifact<'a>),
    Object(CreatedObjectArtifact<'a>),
    Plain(CreatedPlainArtifact),
}

/// Where to upload an artifact.
#[derive(Serialize, Debug, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct CreatedS3Artifact<'a> {
    pub storage_type: S3Tag,
    /// Where to PUT the bytes, with this `Content-Type` and without credentials.
    pub put_url: String,
    /// Expiry of the URL.
    pub expires: Timestamp,
    /// The `Content-Type` of the upload.
    pub content_type: &'a str,
}

/// How to upload an artifact to the object service.
#[derive(Serialize, Debug, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct CreatedObjectArtifact<'a> {
    pub storage_type: ObjectTag,
    pub name: String,
    /// The project of the task, for createUpload.
    #[schema(value_type = ProjectId)]
    pub project_id: &'a str,
    /// For createUpload, finishUpload and finishArtifact.
    pub upload_id: SlugId,
    /// The `expires` for createUpload.
    pub expires: Timestamp,
    /// Valid only to upload this object.
    pub credentials: Credentials,
}

/// The answer for an artifact without an upload.
#[derive(Serialize, Debug, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct CreatedPlainArtifact {
    /// As it was sent.
    pub storage_type: PlainTag,
}

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
    pub storage_type: StorageType,
    /// Its name within the run.
    pub name: &'a str,
    pub expires: Timestamp,
    /// The media type.
    pub content_type: &'a str,
    /// Length in bytes, as declared by its creator.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content_length: Option<i64>,
    /// Stored bytes, perhaps compressed; absent if none are stored.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size: Option<i64>,
    /// The SHA-256 digest of the stored bytes, in hexadecimal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
}

/// A page of a run's artifacts.
#[derive(Serialize, Debug, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Artifacts)]
pub struct ArtifactList<'a> {
    /// Ordered by name.
    pub artifacts: Vec<ArtifactEntry<'a>>,
    /// Token of the next page; absent on the last page.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub continuation_token: Option<String>,
}

/// The body of a redirection to an artifact.
#[derive(Serialize, Debug, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ArtifactRedirect<'a> {
    /// The storage type after following all links.
    pub storage_type: StorageType,
    /// As in the header `Location`.
    pub url: &'a str,
}

/// The response for an artifact of type `error`.
#[derive(Serialize, Debug, ToSchema)]
pub struct ArtifactError<'a> {
    pub reason: ArtifactErrorReason,
    pub message: &'a str,
}

/// An artifact after following all links.
#[derive(Serialize, Debug, ToSchema)]
#[serde(untagged)]
pub enum ArtifactContent<'a> {
    Url(ArtifactAtUrl),
    Object(ArtifactInService),
    Error(ArtifactMissing<'a>),
}

/// An artifact to read from a URL.
#[derive(Serialize, Debug, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ArtifactAtUrl {
    pub storage_type: UrlTag,
    pub url: String,
}

/// An artifact to read from the object service.
#[derive(Serialize, Debug, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ArtifactInService {
    pub storage_type: ObjectTag,
    pub name: String,
    /// Valid only to read this object.
    pub credentials: Credentials,
}

/// An artifact that a worker could not create.
#[derive(Serialize, Debug, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ArtifactMissing<'a> {
    pub storage_type: ErrorTag,
    pub reason: ArtifactErrorReason,
    pub message: &'a str,
}
