//! createUpload.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use chrono::{DateTime, Utc};
use tenure_api::objects::{
    CreateUploadRequest, CreatedUpload, DATA_INLINE_MAX, DataInline, PutUrl, UploadMethod, UploadUrl,
};

use super::{UPLOADING, authorize_upload};
use crate::http::api::prelude::*;
use tenure_domain::artifact::{PUT_URL_LIFE, content_length};
use tenure_engine::blobs::BlobName;
use tenure_engine::ops::objects::{self as ops, Upload};

/// `PUT /upload/:name`
pub fn endpoint() -> Endpoint {
    Endpoint::put("createUpload", create_upload).scopes(UPLOADING).described(
        "object",
        "Begin to upload an object",
        describe,
    )
}

fn describe(operation: Operation, sample: &Sample) -> Operation {
    let (project, upload) = ("none", sample.task);
    let begin = json!({
        "projectId": project,
        "uploadId": upload,
        "expires": sample.after(120),
        "proposedUploadMethods": {"dataInline": {"contentType": "text/plain", "objectData": "aGVsbG8="}},
    });
    let begun = json!({
        "projectId": project,
        "uploadId": upload,
        "expires": sample.after(120),
        "uploadMethod": {"dataInline": true},
    });
    operation
        .about(
            "The uploader proposes ways: with this request (`dataInline`, up to 8,192 bytes), or to a signed URL \
             (`putUrl`). The answer has the one to use, and is empty if there is none that the server knows. The same \
             request may be sent again until the upload is finished. The object of an artifact is retained no longer \
             than the artifact; the answer has the `expires` that counts.",
        )
        .takes::<CreateUploadRequest>(&begin)
        .answers::<CreatedUpload<'_>>("How to upload it", &begun)
        .refuses(InputError, "there are more bytes than the server takes, or the object is that of a missing artifact")
        .refuses(RequestConflict, "the name is taken by another `uploadId` or `projectId`, or its upload is finished")
}

async fn create_upload(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    let name = call.object_name()?;
    call.no_query()?;
    let CreateUploadRequest { project_id, upload_id, expires, hashes, proposed_upload_methods } = call.json()?;
    let inline = proposed_upload_methods.data_inline.map(decode).transpose().map_err(ApiError::body)?;
    if let Some(PutUrl { content_length: length, .. }) = &proposed_upload_methods.put_url {
        content_length(*length).map_err(ApiError::body)?;
    }
    let upload = Upload { name: name.as_str(), project: project_id.as_str(), id: upload_id };
    authorize_upload(&call, upload)?;
    let object = ops::begin(&app.engine.pool, upload, expires.time(), &hashes.unwrap_or_default()).await?;
    let mut upload_method = UploadMethod::default();
    if let Some((content_type, bytes)) = inline {
        ops::store(&app.engine.pool, &app.engine.blobs, name.as_str(), &content_type, bytes.into()).await?;
        upload_method.data_inline = Some(true);
    } else if let Some(proposed) = proposed_upload_methods.put_url {
        upload_method.put_url = Some(put_url(&app, name.as_str(), &proposed, object.now));
    }
    let expires = Timestamp::new(object.expires);
    ok(&CreatedUpload { project_id: &project_id, upload_id, expires, upload_method })
}

fn decode(inline: DataInline) -> Result<(String, Vec<u8>), String> {
    let bytes = STANDARD.decode(inline.object_data);
    let bytes = bytes.map_err(|_| "`proposedUploadMethods.dataInline.objectData` must be base64".to_owned())?;
    if bytes.len() > DATA_INLINE_MAX {
        return Err(format!(
            "`proposedUploadMethods.dataInline.objectData` must be at most {DATA_INLINE_MAX} bytes; propose `putUrl`"
        ));
    }
    Ok((inline.content_type.as_str().to_owned(), bytes))
}

fn put_url(app: &Api, name: &str, proposed: &PutUrl, now: DateTime<Utc>) -> UploadUrl {
    let expires = now + PUT_URL_LIFE;
    let content_type = proposed.content_type.as_str();
    let url = app.engine.blobs.put_url(&BlobName::object(name), content_type, expires.timestamp_millis());
    let headers = BTreeMap::from([
        ("Content-Length", proposed.content_length.to_string()),
        ("Content-Type", content_type.to_owned()),
    ]);
    UploadUrl { url, expires: Timestamp::new(expires), headers }
}
