//! finishUpload.

use tenure_api::objects::FinishUploadRequest;

use super::{SHA256, UPLOADING, authorize_upload};
use crate::http::api::prelude::*;
use tenure_engine::ops::objects::{self as ops, Upload};

/// The answer of finishUpload.
#[derive(Serialize, ToSchema)]
#[schema(as = FinishedUpload)]
struct FinishedBody {}

/// `POST /finish-upload/:name`
pub fn endpoint() -> Endpoint {
    Endpoint::post("finishUpload", finish_upload).scopes(UPLOADING).described(
        "object",
        "Finish the upload of an object",
        describe,
    )
}

fn describe(operation: Operation, sample: &Sample) -> Operation {
    let end = json!({"projectId": "none", "uploadId": sample.task, "hashes": {"sha256": SHA256}});
    operation
        .about("Compares `hashes.sha256` with the bytes. From now on the object can be read. A repeat changes nothing.")
        .takes::<FinishUploadRequest>(&end)
        .answers::<FinishedBody>("It can be read", &json!({}))
        .refuses(ResourceNotFound, "there is no such object")
        .refuses(InputError, "nothing was uploaded, or other bytes")
        .refuses(RequestConflict, "the object is uploaded under another `uploadId` or `projectId`")
}

async fn finish_upload(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    let name = call.object_name()?;
    call.no_query()?;
    let FinishUploadRequest { project_id, upload_id, hashes } = call.json()?;
    let upload = Upload { name: name.as_str(), project: project_id.as_str(), id: upload_id };
    authorize_upload(&call, upload)?;
    ops::finish(&app.engine.pool, &app.engine.blobs, upload, &hashes.unwrap_or_default()).await?;
    ok(&FinishedBody {})
}
