//! The object service: uploads and downloads.

pub mod create_upload;
pub mod download;
pub mod finish_upload;
pub mod object;
pub mod start_download;

use chrono::{DateTime, Utc};
use tenure_api::errors::ErrorCode::ResourceExpired;

use crate::http::api::prelude::*;
use crate::http::docs::parameters::ARTIFACT;
use tenure_domain::artifact::GET_URL_LIFE;
use tenure_engine::blobs::BlobName;
use tenure_engine::ops::objects::{self as ops, Readable, Upload};

/// The digest of the bytes `hello`, the object of the examples.
const SHA256: &str = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824";

/// For both halves of an upload.
const UPLOADING: Template = Scope("object:upload:<projectId>:<name>");
/// For whatever reads an object.
const READING: Template = Scope("object:download:<name>");

/// What the operations that read an object refuse.
fn reading(operation: Operation) -> Operation {
    operation
        .refuses(ResourceNotFound, "there is no such object, or its upload is not finished")
        .refuses(ResourceExpired, "the object has expired and is not removed yet")
}

/// The URL of the object of the examples.
fn example_url() -> String {
    format!("https://queue.example.com/artifacts/object/{ARTIFACT}?Credential=get&expires=…&signature=…")
}

/// Lets the caller through if they may upload this.
fn authorize_upload(call: &Call, upload: Upload<'_>) -> Result<(), ApiError> {
    call.authorize(&Values::of_path().text("projectId", upload.project))
}

async fn read(app: &Api, call: &Call) -> Result<Readable, ApiError> {
    call.authorize_by_path()?;
    call.no_query()?;
    let name = call.object_name()?;
    Ok(ops::read(&app.engine.pool, &app.engine.blobs, name.as_str()).await?)
}

/// Where the bytes are, for a while and not longer than the object is retained.
fn get_url(app: &Api, name: &str, found: &Readable) -> (String, DateTime<Utc>) {
    let end = (found.object.now + GET_URL_LIFE).min(found.object.expires);
    (app.engine.blobs.get_url(&BlobName::object(name), end.timestamp_millis()), end)
}
