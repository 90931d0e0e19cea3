//! The Taskcluster Object API, as far as it is there, described.

use serde_json::json;
use tenure_api::errors::ErrorCode::{InputError, RequestConflict, ResourceExpired, ResourceNotFound};
use tenure_api::objects::{
    CreateUploadRequest, CreatedUpload, Download, FinishUploadRequest, ObjectMetadata, ObjectRedirect,
    StartDownloadRequest,
};

use super::operation::{self, Operation};
use super::parameters::ARTIFACT;
use super::sample::Sample;
use crate::http::api::objects::FinishedBody;

/// Of the bytes `hello`.
const SHA256: &str = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824";

/// Every operation.
pub(super) fn operations(sample: &Sample) -> Vec<Operation> {
    [uploads(sample), downloads(sample)].concat()
}

fn operation(name: &'static str, summary: &'static str) -> Operation {
    operation::operation("object", name, summary)
}

fn uploads(sample: &Sample) -> Vec<Operation> {
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
    let end = json!({"projectId": project, "uploadId": upload, "hashes": {"sha256": SHA256}});
    vec![
        operation("createUpload", "Begin to upload an object")
            .about(
                "The uploader proposes ways: with this request (`dataInline`, up to 8,192 bytes), or to a signed URL (`putUrl`). The \
                 answer has the one to use, and is empty if there is none that the server knows. The same request may be sent again \
                 until the upload is finished.",
            )
            .scopes("object:upload:<projectId>:<name>")
            .takes::<CreateUploadRequest>(&begin)
            .answers::<CreatedUpload<'_>>("How to upload it", &begun)
            .refuses(InputError, "there are more bytes than the server takes")
            .refuses(RequestConflict, "the name is taken by another `uploadId` or `projectId`, or its upload is finished"),
        operation("finishUpload", "Finish the upload of an object")
            .about("Compares `hashes.sha256` with the bytes. From now on the object can be read. A repeat changes nothing.")
            .scopes("object:upload:<projectId>:<name>")
            .takes::<FinishUploadRequest>(&end)
            .answers::<FinishedBody>("It can be read", &json!({}))
            .refuses(ResourceNotFound, "there is no such object")
            .refuses(InputError, "nothing was uploaded, or other bytes")
            .refuses(RequestConflict, "the object is uploaded under another `uploadId` or `projectId`"),
    ]
}

fn downloads(sample: &Sample) -> Vec<Operation> {
    let url = format!("https://queue.example.com/artifacts/object/{ARTIFACT}?Credential=get&expires=…&signature=…");
    let reading = |name, summary| {
        operation(name, summary)
            .scopes("object:download:<name>")
            .refuses(ResourceNotFound, "there is no such object, or its upload is not finished")
            .refuses(ResourceExpired, "the object has expired and is not removed yet")
    };
    let hashes = json!({"sha256": SHA256});
    vec![
        reading("startDownload", "Find out how to download an object")
            .about("The downloader says which ways it knows; `getUrl` is preferred, because it comes with digests to compare.")
            .takes::<StartDownloadRequest>(&json!({"acceptDownloadMethods": {"getUrl": true}}))
            .answers::<Download>(
                "How to download it",
                &json!({"method": "getUrl", "url": url, "expires": sample.after(35), "hashes": hashes}),
            )
            .refuses(InputError, "the server knows none of the ways"),
        reading("object", "Read what is known of an object").answers::<ObjectMetadata<'_>>(
            "What is known of it",
            &json!({"projectId": "none", "expires": sample.after(120), "hashes": hashes, "size": 5}),
        ),
        reading("download", "Download an object").moves::<ObjectRedirect<'_>>("Where it is", &json!({"url": url}), &[]),
    ]
}
