//! The object service: createUpload, finishUpload, startDownload, object, download.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::response::Response;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use chrono::{DateTime, Utc};
use serde::Serialize;
use tenure_api::dates::Timestamp;
use tenure_api::errors::ErrorCode;
use tenure_api::objects::{
    CreateUploadRequest, CreatedUpload, DATA_INLINE_MAX, DataInline, Download, FinishUploadRequest, ObjectMetadata,
    ObjectRedirect, PutUrl, StartDownloadRequest, UploadMethod, UploadUrl,
};
use utoipa::ToSchema;

use super::{ok, see_other};
use crate::blobs::BlobName;
use crate::domain::artifact::{GET_URL_LIFE, PUT_URL_LIFE, content_length};
use crate::domain::scopes::Expression;
use crate::http::app::App;
use crate::http::call::Call;
use crate::http::error::ApiError;
use crate::ops::objects::{self as ops, Readable, Upload};

/// The answer of finishUpload.
#[derive(Serialize, ToSchema)]
#[schema(as = FinishedUpload)]
pub(in crate::http) struct FinishedBody {}

/// `PUT /upload/:name`
pub async fn create_upload(app: App, call: Arc<Call>) -> Result<Response, ApiError> {
    let name = call.object_name()?;
    call.no_query()?;
    let CreateUploadRequest { project_id, upload_id, expires, hashes, proposed_upload_methods } = call.json()?;
    let inline = proposed_upload_methods.data_inline.map(decode).transpose().map_err(ApiError::body)?;
    if let Some(PutUrl { content_length: length, .. }) = &proposed_upload_methods.put_url {
        content_length(*length).map_err(ApiError::body)?;
    }
    let upload = Upload { name: name.as_str(), project: project_id.as_str(), id: upload_id };
    call.authorize(&uploading(upload))?;
    let object = ops::begin(&app.engine.pool, upload, expires.time(), &hashes.unwrap_or_default()).await?;
    let mut upload_method = UploadMethod::default();
    if let Some((content_type, bytes)) = inline {
        ops::store(&app.engine.pool, &app.engine.blobs, name.as_str(), &content_type, bytes.into()).await?;
        upload_method.data_inline = Some(true);
    } else if let Some(proposed) = proposed_upload_methods.put_url {
        upload_method.put_url = Some(put_url(&app, name.as_str(), &proposed, object.now));
    }
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

fn put_url(app: &App, name: &str, proposed: &PutUrl, now: DateTime<Utc>) -> UploadUrl {
    let expires = now + PUT_URL_LIFE;
    let content_type = proposed.content_type.as_str();
    let url = app.engine.blobs.put_url(&BlobName::object(name), content_type, expires.timestamp_millis());
    let headers = BTreeMap::from([
        ("Content-Length", proposed.content_length.to_string()),
        ("Content-Type", content_type.to_owned()),
    ]);
    UploadUrl { url, expires: Timestamp::new(expires), headers }
}

/// `POST /finish-upload/:name`
pub async fn finish_upload(app: App, call: Arc<Call>) -> Result<Response, ApiError> {
    let name = call.object_name()?;
    call.no_query()?;
    let FinishUploadRequest { project_id, upload_id, hashes } = call.json()?;
    let upload = Upload { name: name.as_str(), project: project_id.as_str(), id: upload_id };
    call.authorize(&uploading(upload))?;
    ops::finish(&app.engine.pool, &app.engine.blobs, upload, &hashes.unwrap_or_default()).await?;
    ok(&FinishedBody {})
}

fn uploading(upload: Upload<'_>) -> Expression {
    Expression::from(format!("object:upload:{}:{}", upload.project, upload.name))
}

/// `PUT /start-download/:name`
pub async fn start_download(app: App, call: Arc<Call>) -> Result<Response, ApiError> {
    let name = call.object_name()?;
    call.no_query()?;
    let StartDownloadRequest { accept_download_methods: accepted } = call.json()?;
    let found = read(&app, &call).await?;
    let (url, expires) = get_url(&app, name.as_str(), &found);
    // The one that lets the downloader compare what arrived.
    if accepted.get_url {
        return ok(&Download::GetUrl { url, expires: Timestamp::new(expires), hashes: found.hashes() });
    }
    if accepted.simple {
        return ok(&Download::Simple { url });
    }
    Err(ApiError::new(
        ErrorCode::InputError,
        "`acceptDownloadMethods` must have `getUrl` or `simple` with the value true",
    ))
}

/// `GET /metadata/:name`
pub async fn object(app: App, call: Arc<Call>) -> Result<Response, ApiError> {
    call.no_query()?;
    let found = read(&app, &call).await?;
    let Readable { object, stored } = &found;
    let expires = Timestamp::new(object.expires);
    ok(&ObjectMetadata { project_id: &object.project, expires, hashes: found.hashes(), size: stored.size })
}

/// `GET /download/:name`
pub async fn download(app: App, call: Arc<Call>) -> Result<Response, ApiError> {
    call.no_query()?;
    let found = read(&app, &call).await?;
    let (url, _) = get_url(&app, call.object_name()?.as_str(), &found);
    see_other(&url, &ObjectRedirect { url: &url })
}

/// What reading an object requires.
pub fn may_download(call: &Call) -> Result<(), ApiError> {
    let name = call.object_name()?;
    call.no_query()?;
    call.authorize(&Expression::from(format!("object:download:{name}")))
}

async fn read(app: &App, call: &Call) -> Result<Readable, ApiError> {
    let name = call.object_name()?;
    call.authorize(&Expression::from(format!("object:download:{name}")))?;
    Ok(ops::read(&app.engine.pool, &app.engine.blobs, name.as_str()).await?)
}

/// Where the bytes are, for a while and not longer than the object is kept.
fn get_url(app: &App, name: &str, found: &Readable) -> (String, DateTime<Utc>) {
    let end = (found.object.now + GET_URL_LIFE).min(found.object.expires);
    (app.engine.blobs.get_url(&BlobName::object(name), end.timestamp_millis()), end)
}
