//! Bodies of the object service for uploads and downloads. Field names are Taskcluster's.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::dates::Timestamp;
use crate::ids::{ContentType, ProjectId, Sha256Hex, Sha512Hex, SlugId};
use crate::structure::{object, present, present_object};
use crate::whole::whole;

/// Maximum bytes in createUpload.
pub const DATA_INLINE_MAX: usize = 8192;

/// Digests of an object.
#[derive(Serialize, Deserialize, Debug, Clone, Default, PartialEq, Eq, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ObjectHashes {
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub sha256: Option<Sha256Hex>,
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub sha512: Option<Sha512Hex>,
}

#[derive(Serialize, Deserialize, Debug, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CreateUploadRequest {
    /// The owner of the object.
    pub project_id: ProjectId,
    /// Identifies the upload across retries; chosen by the uploader.
    pub upload_id: SlugId,
    /// Expiry of the object.
    pub expires: Timestamp,
    /// Digests known so far.
    #[serde(default, deserialize_with = "present_object", skip_serializing_if = "Option::is_none")]
    pub hashes: Option<ObjectHashes>,
    /// Methods that the uploader supports. Methods unknown to the server are ignored.
    #[serde(deserialize_with = "object")]
    pub proposed_upload_methods: ProposedUploadMethods,
}

#[derive(Serialize, Deserialize, Debug, Default, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ProposedUploadMethods {
    /// Within this request.
    #[serde(default, deserialize_with = "present_object", skip_serializing_if = "Option::is_none")]
    pub data_inline: Option<DataInline>,
    /// To a signed URL.
    #[serde(default, deserialize_with = "present_object", skip_serializing_if = "Option::is_none")]
    pub put_url: Option<PutUrl>,
}

/// Bytes within the request.
#[derive(Serialize, Deserialize, Debug, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DataInline {
    pub content_type: ContentType,
    /// Up to 8,192 bytes in base64.
    #[schema(pattern = "^([A-Za-z0-9+/]{4}){0,2730}([A-Za-z0-9+/][AQgw]==|[A-Za-z0-9+/]{2}[AEIMQUYcgkosw048]=)?$")]
    pub object_data: String,
}

/// Bytes to be uploaded.
#[derive(Serialize, Deserialize, Debug, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PutUrl {
    pub content_type: ContentType,
    /// Number of bytes.
    #[serde(deserialize_with = "whole")]
    #[schema(maximum = 9_007_199_254_740_991_u64)]
    pub content_length: u64,
}

#[derive(Serialize, Debug, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Upload)]
pub struct CreatedUpload<'a> {
    /// As it was sent.
    pub project_id: &'a ProjectId,
    /// As it was sent.
    pub upload_id: SlugId,
    /// As it was sent, or the `expires` of its artifact if that is earlier.
    pub expires: Timestamp,
    /// The selected method; empty if no proposed method is possible.
    pub upload_method: UploadMethod,
}

/// An upload method, or none.
#[derive(Serialize, Debug, Default, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct UploadMethod {
    /// The bytes came with the request; nothing remains to send.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data_inline: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub put_url: Option<UploadUrl>,
}

#[derive(Serialize, Debug, ToSchema)]
pub struct UploadUrl {
    /// Where to PUT the bytes.
    pub url: String,
    /// Expiry of the URL.
    pub expires: Timestamp,
    /// Required headers of the upload.
    pub headers: BTreeMap<&'static str, String>,
}

#[derive(Serialize, Deserialize, Debug, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct FinishUploadRequest {
    /// As in createUpload.
    pub project_id: ProjectId,
    /// As in createUpload.
    pub upload_id: SlugId,
    /// Expected digests of the bytes.
    #[serde(default, deserialize_with = "present_object", skip_serializing_if = "Option::is_none")]
    pub hashes: Option<ObjectHashes>,
}

#[derive(Serialize, Deserialize, Debug, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct StartDownloadRequest {
    /// Methods that the downloader supports. Methods unknown to the server are ignored.
    #[serde(deserialize_with = "object")]
    pub accept_download_methods: AcceptDownloadMethods,
}

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

#[derive(Serialize, Debug, ToSchema)]
#[serde(tag = "method", rename_all = "camelCase")]
pub enum Download {
    /// From a URL.
    Simple { url: String },
    /// From a URL, with digests to compare.
    GetUrl {
        url: String,
        /// Expiry of the URL.
        expires: Timestamp,
        hashes: ObjectHashes,
    },
}

/// The metadata of an object.
#[derive(Serialize, Debug, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ObjectMetadata<'a> {
    #[schema(value_type = ProjectId)]
    pub project_id: &'a str,
    pub expires: Timestamp,
    pub hashes: ObjectHashes,
    /// Number of stored bytes.
    pub size: i64,
}

/// The body of a redirection to an object.
#[derive(Serialize, Debug, ToSchema)]
pub struct ObjectRedirect<'a> {
    /// As in the header `Location`.
    pub url: &'a str,
}
