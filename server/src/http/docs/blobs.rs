//! Uploads and downloads of artifacts' bytes, described. docs/operating.md says where they are kept.

use serde_json::{Value, json};

use super::operation::{Access, Operation, by_artifact_url};
use crate::http::blobs::Code;

/// Every operation.
pub(super) fn operations() -> Vec<Operation> {
    vec![upload(), download()].into_iter().map(signature).collect()
}

fn upload() -> Operation {
    by_artifact_url("uploadArtifact", "Upload the bytes of an artifact")
        .about(
            "By a URL from createArtifact. The Content-Type must be the one that was told there. A Content-Encoding is kept \
             as it is. The bytes take the place of earlier ones when all of them have arrived, and not before; the URL \
             may be used again until it ends, or its run does: after the report of the run it is answered with 403, also if \
             the upload had begun before. After an exception it is good for 25 minutes, as createArtifact is. So is the URL of \
             an object until its upload is finished.",
        )
        .takes_bytes()
        .answers_empty(200, "Stored", &[("ETag", "The SHA-256 of the bytes, and their encoding if they have one, in quotes")])
        .refuses_artifact(Code::IncompleteBody, "the body broke off, or nothing of it came for a minute; send it again")
        .refuses_artifact(Code::TooLarge, "the body is over `--artifact-size-max`")
        .refuses_artifact(Code::Deleted, "the artifact was deleted while it was uploaded")
}

fn download() -> Operation {
    let told = [
        ("ETag", "Which bytes they are"),
        ("Last-Modified", "When they were uploaded"),
        ("Cache-Control", "For whom a stored answer is; it is good as long as its ETag is"),
    ];
    let [tag, modified, caching] = told;
    let plain = by_artifact_url("downloadArtifact", "Download the bytes of an artifact");
    Operation { access: Access::PlainArtifactUrl, ..plain }
        .about(
            "By a URL from getArtifact. That of an artifact which everybody may read is plain: it has no parameters and is always the \
             same, and each read asks again whether everybody may (the role `anonymous` has `queue:get-artifact:<name>`), so that \
             caches keep the bytes and ask by their ETag. Other URLs are signed, and end. HEAD does the same without the bytes. What was uploaded with `Content-Encoding: gzip` \
             comes so, or decoded for a caller whose Accept-Encoding has no gzip; decoded, it has no length and no \
             ranges. Pages (HTML, SVG, XML) come as attachments.",
        )
        .header("Range", "One range of bytes", &json!({"type": "string"}))
        .header("If-Range", "The ETag of the bytes that the range is of", &json!({"type": "string"}))
        .header("If-None-Match", "ETags of bytes that the caller has", &json!({"type": "string"}))
        .header("Accept-Encoding", "Whether gzip is understood", &json!({"type": "string"}))
        .answers_bytes(200, "The bytes", &told)
        .answers_bytes(206, "A part of them", &[tag, modified, caching, ("Content-Range", "Which part")])
        .answers_empty(304, "The caller has them", &told)
        .refuses_artifact(Code::NotFound, "nothing is stored under the name: not uploaded yet, or deleted")
        .refuses_artifact(Code::Expired, "by a plain URL: the artifact has expired and is not removed yet")
        .refuses_artifact(Code::InvalidRange, "the range begins behind the end")
}

/// The parameters that were signed.
fn signature(operation: Operation) -> Operation {
    let text = json!({"type": "string"});
    operation.query("Credential", "What the URL is for: `put` or `get`", &text, &Value::Null).query(
        "expires",
        "Until when it is good, in milliseconds since 1970",
        &text,
        &Value::Null,
    )
}
