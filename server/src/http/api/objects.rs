//! The object service: uploads and downloads.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use chrono::{DateTime, Utc};
use tenure_api::errors::ErrorCode::ResourceExpired;
use tenure_api::objects::{
    CreateUploadRequest, CreatedUpload, DATA_INLINE_MAX, DataInline, Download, FinishUploadRequest, ObjectMetadata,
    ObjectRedirect, PutUrl, StartDownloadRequest, UploadMethod, UploadUrl,
};

use crate::http::api::prelude::*;
use crate::http::api::see_other;
use crate::http::docs::parameters::ARTIFACT;
use tenure_domain::artifact::{GET_URL_LIFE, PUT_URL_LIFE, content_length};
use tenure_engine::blobs::BlobName;
use tenure_engine::ops::objects::{self as ops, Readable, Upload};

/// Digest of `hello`, the example object.
const SHA256: &str = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824";

const UPLOADING: Template = Scope("object:upload:<projectId>:<name>");
const READING: Template = Scope("object:download:<name>");

fn reading(operation: Operation) -> Operation {
    operation
        .refuses(ResourceNotFound, "the object does not exist, or its upload is not finished")
        .refuses(ResourceExpired, "the object has expired and is not removed yet")
}

fn example_url() -> String {
    format!("https://queue.example.com/artifacts/object/{ARTIFACT}?Credential=get&expires=…&signature=…")
}

fn authorize_upload(call: &Call, upload: Upload<'_>) -> Result<(), ApiError> {
    call.authorize(&Values::of_path().text("projectId", upload.project))
}

async fn read(app: &Api, call: &Call) -> Result<Readable, ApiError> {
    call.authorize_by_path()?;
    call.no_query()?;
    let name = call.object_name()?;
    Ok(ops::read(&app.engine.pool, &app.engine.blobs, name.as_str()).await?)
}

/// The expiry is at the latest the object's.
fn get_url(app: &Api, name: &str, found: &Readable) -> (String, DateTime<Utc>) {
    let end = (found.object.now + GET_URL_LIFE).min(found.object.expires);
    (app.engine.blobs.get_url(&BlobName::object(name), end.timestamp_millis()), end)
}

/// `PUT /upload/:name`
pub fn create_upload() -> Endpoint {
    Endpoint::put("createUpload", handle_create_upload).scopes(UPLOADING).described(
        "object",
        "Begin to upload an object",
        describe_create_upload,
    )
}

fn describe_create_upload(operation: Operation, sample: &Sample) -> Operation {
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
            "The uploader proposes methods: inline in this request (`dataInline`, up to 8,192 bytes), or to a signed \
             URL (`putUrl`). The response has the method to use, or none if the server supports none of them. The \
             request can be repeated until the upload is finished. The object of an artifact is retained no longer \
             than the artifact; the response has the resulting `expires`.",
        )
        .takes::<CreateUploadRequest>(&begin)
        .answers::<CreatedUpload<'_>>("How to upload it", &begun)
        .refuses(InputError, "the upload is larger than the server allows, or the object's artifact does not exist")
        .refuses(
            RequestConflict,
            "the name is in use with another `uploadId` or `projectId`, or its upload is finished",
        )
}

async fn handle_create_upload(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
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

/// `GET /download/:name`
pub fn download() -> Endpoint {
    Endpoint::get("download", handle_download).scopes(READING).described(
        "object",
        "Download an object",
        describe_download,
    )
}

fn describe_download(operation: Operation, _: &Sample) -> Operation {
    reading(operation).moves::<ObjectRedirect<'_>>("Where it is", &json!({"url": example_url()}), &[])
}

async fn handle_download(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    let found = read(&app, &call).await?;
    let (url, _) = get_url(&app, call.object_name()?.as_str(), &found);
    see_other(&url, &ObjectRedirect { url: &url })
}

/// Response of finishUpload.
#[derive(Serialize, ToSchema)]
#[schema(as = FinishedUpload)]
struct FinishedBody {}

/// `POST /finish-upload/:name`
pub fn finish_upload() -> Endpoint {
    Endpoint::post("finishUpload", handle_finish_upload).scopes(UPLOADING).described(
        "object",
        "Finish the upload of an object",
        describe_finish_upload,
    )
}

fn describe_finish_upload(operation: Operation, sample: &Sample) -> Operation {
    let end = json!({"projectId": "none", "uploadId": sample.task, "hashes": {"sha256": SHA256}});
    operation
        .about("Compares `hashes.sha256` with the bytes. Afterwards the object can be read. A repeat changes nothing.")
        .takes::<FinishUploadRequest>(&end)
        .answers::<FinishedBody>("The object can be read", &json!({}))
        .refuses(ResourceNotFound, "the object does not exist")
        .refuses(InputError, "nothing was uploaded, or other bytes")
        .refuses(RequestConflict, "the object is being uploaded under another `uploadId` or `projectId`")
}

async fn handle_finish_upload(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    let name = call.object_name()?;
    call.no_query()?;
    let FinishUploadRequest { project_id, upload_id, hashes } = call.json()?;
    let upload = Upload { name: name.as_str(), project: project_id.as_str(), id: upload_id };
    authorize_upload(&call, upload)?;
    ops::finish(&app.engine.pool, &app.engine.blobs, upload, &hashes.unwrap_or_default()).await?;
    ok(&FinishedBody {})
}

/// `GET /metadata/:name`
pub fn object() -> Endpoint {
    Endpoint::get("object", handle_object).scopes(READING).described(
        "object",
        "Read the metadata of an object",
        describe_object,
    )
}

fn describe_object(operation: Operation, sample: &Sample) -> Operation {
    let hashes = json!({"sha256": SHA256});
    reading(operation).answers::<ObjectMetadata<'_>>(
        "The metadata",
        &json!({"projectId": "none", "expires": sample.after(120), "hashes": hashes, "size": 5}),
    )
}

async fn handle_object(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    let found = read(&app, &call).await?;
    let Readable { object, stored } = &found;
    let expires = Timestamp::new(object.expires);
    ok(&ObjectMetadata { project_id: &object.project, expires, hashes: found.hashes(), size: stored.size })
}

/// `PUT /start-download/:name`
pub fn start_download() -> Endpoint {
    Endpoint::put("startDownload", handle_start_download).reads().scopes(READING).early_check(may_download).described(
        "object",
        "Get the download method of an object",
        describe_start_download,
    )
}

fn describe_start_download(operation: Operation, sample: &Sample) -> Operation {
    reading(operation)
        .about("The downloader lists its supported methods; `getUrl` is preferred, because it includes digests.")
        .takes::<StartDownloadRequest>(&json!({"acceptDownloadMethods": {"getUrl": true}}))
        .answers::<Download>(
            "The download method",
            &json!({
                "method": "getUrl",
                "url": example_url(),
                "expires": sample.after(35),
                "hashes": {"sha256": SHA256},
            }),
        )
        .refuses(InputError, "the server supports none of the methods")
}

async fn handle_start_download(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    let name = call.object_name()?;
    call.no_query()?;
    let StartDownloadRequest { accept_download_methods: accepted } = call.json()?;
    let found = read(&app, &call).await?;
    let (url, expires) = get_url(&app, name.as_str(), &found);
    // Preferred: it lets the client verify the bytes.
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

fn may_download(call: &Call) -> Result<(), ApiError> {
    call.authorize_by_path()?;
    call.object_name()?;
    call.no_query()
}
