//! Bodies of the object service, as far as uploads and downloads need them. Field names are Taskcluster's.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::dates::Timestamp;
use crate::ids::{ContentType, ProjectId, Sha256Hex, Sha512Hex, SlugId};
use crate::structure::{object, present, present_object};
use crate::whole::whole;

/// The most bytes that createUpload takes with it.
pub const DATA_INLINE_MAX: usize = 8192;

/// Digests of an object.
#[derive(Serialize, Deserialize, Debug, Clone, Default, PartialEq, Eq, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ObjectHashes {
    /// SHA-256, in hexadecimal.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub sha256: Option<Sha256Hex>,
    /// SHA-512, in hexadecimal.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub sha512: Option<Sha512Hex>,
}

/// The body of createUpload.
#[derive(Serialize, Deserialize, Debug, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CreateUploadRequest {
    /// Whom the object belongs to.
    pub project_id: ProjectId,
    /// Names the upload, so that it can be sent again; chosen by the uploader.
    pub upload_id: SlugId,
    /// Until when the object is kept.
    pub expires: Timestamp,
    /// What is known of the bytes already.
    #[serde(default, deserialize_with = "present_object", skip_serializing_if = "Option::is_none")]
    pub hashes: Option<ObjectHashes>,
    /// How the uploader can upload. Ways that the server does not know are passed over.
    #[serde(deserialize_with = "object")]
    pub proposed_upload_methods: ProposedUploadMethods,
}

/// Ways to upload.
#[derive(Serialize, Deserialize, Debug, Default, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ProposedUploadMethods {
    /// With this very request.
    #[serde(default, deserialize_with = "present_object", skip_serializing_if = "Option::is_none")]
    pub data_inline: Option<DataInline>,
    /// To a signed URL.
    #[serde(default, deserialize_with = "present_object", skip_serializing_if = "Option::is_none")]
    pub put_url: Option<PutUrl>,
}

/// Bytes that come with the request.
#[derive(Serialize, Deserialize, Debug, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DataInline {
    /// Their media type.
    pub content_type: ContentType,
    /// Up to 8,192 bytes in base64.
    #[schema(pattern = "^([A-Za-z0-9+/]{4}){0,2730}([A-Za-z0-9+/][AQgw]==|[A-Za-z0-9+/]{2}[AEIMQUYcgkosw048]=)?$")]
    pub object_data: String,
}

/// Bytes that will come.
#[derive(Serialize, Deserialize, Debug, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PutUrl {
    /// Their media type.
    pub content_type: ContentType,
    /// How many.
    #[serde(deserialize_with = "whole")]
    #[schema(maximum = 9_007_199_254_740_991_u64)]
    pub content_length: u64,
}

/// The answer of createUpload.
#[derive(Serialize, Debug, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Upload)]
pub struct CreatedUpload<'a> {
    /// As it was sent.
    pub project_id: &'a ProjectId,
    /// As it was sent.
    pub upload_id: SlugId,
    /// As it was sent, or as that of its artifact if this is earlier.
    pub expires: Timestamp,
    /// How to upload; empty if no proposed way is possible.
    pub upload_method: UploadMethod,
}

/// A way to upload, or none.
#[derive(Serialize, Debug, Default, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct UploadMethod {
    /// The bytes came with the request; nothing is left to be sent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data_inline: Option<bool>,
    /// The bytes are to be sent there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub put_url: Option<UploadUrl>,
}

/// Where to upload.
#[derive(Serialize, Debug, ToSchema)]
pub struct UploadUrl {
    /// Where to PUT the bytes.
    pub url: String,
    /// Until when that works.
    pub expires: Timestamp,
    /// Headers that the upload must have.
    pub headers: BTreeMap<&'static str, String>,
}

/// The body of finishUpload.
#[derive(Serialize, Deserialize, Debug, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct FinishUploadRequest {
    /// As in createUpload.
    pub project_id: ProjectId,
    /// As in createUpload.
    pub upload_id: SlugId,
    /// What the bytes must have.
    #[serde(default, deserialize_with = "present_object", skip_serializing_if = "Option::is_none")]
    pub hashes: Option<ObjectHashes>,
}

/// The body of startDownload.
#[derive(Serialize, Deserialize, Debug, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct StartDownloadRequest {
    /// How the downloader can download. Ways that the server does not know are passed over.
    #[serde(deserialize_with = "object")]
    pub accept_download_methods: AcceptDownloadMethods,
}

/// Ways to download.
#[derive(Serialize, Deserialize, Debug, ToSchema)]
#[serde(rename_all = "camelCase", default)]
#[derive(Default)]
pub struct AcceptDownloadMethods {
    /// From a URL.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub simple: bool,
    /// From a URL, with digests to compare.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub get_url: bool,
}

/// The answer of startDownload.
#[derive(Serialize, Debug, ToSchema)]
#[serde(tag = "method", rename_all = "camelCase")]
pub enum Download {
    /// From a URL.
    Simple {
        /// Where it is.
        url: String,
    },
    /// From a URL, with digests to compare.
    GetUrl {
        /// Where it is.
        url: String,
        /// Until when that works.
        expires: Timestamp,
        /// Digests of the bytes.
        hashes: ObjectHashes,
    },
}

/// The answer of a request for an object's metadata.
#[derive(Serialize, Debug, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ObjectMetadata<'a> {
    /// Whom it belongs to.
    #[schema(value_type = ProjectId)]
    pub project_id: &'a str,
    /// Until when it is retained.
    pub expires: Timestamp,
    /// Digests of its bytes.
    pub hashes: ObjectHashes,
    /// How many bytes are stored.
    pub size: i64,
}

/// The body of a redirection to an object.
#[derive(Serialize, Debug, ToSchema)]
pub struct ObjectRedirect<'a> {
    /// Where it is, as in the header `Location`.
    pub url: &'a str,
}
