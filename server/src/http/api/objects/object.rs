//! object: the metadata of one.

use tenure_api::objects::ObjectMetadata;

use super::{READING, SHA256, read, reading};
use crate::http::api::prelude::*;
use tenure_engine::ops::objects::Readable;

/// `GET /metadata/:name`
pub fn endpoint() -> Endpoint {
    Endpoint::get("object", object).scopes(READING).described("object", "Read the metadata of an object", describe)
}

fn describe(operation: Operation, sample: &Sample) -> Operation {
    let hashes = json!({"sha256": SHA256});
    reading(operation).answers::<ObjectMetadata<'_>>(
        "The metadata",
        &json!({"projectId": "none", "expires": sample.after(120), "hashes": hashes, "size": 5}),
    )
}

async fn object(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    let found = read(&app, &call).await?;
    let Readable { object, stored } = &found;
    let expires = Timestamp::new(object.expires);
    ok(&ObjectMetadata { project_id: &object.project, expires, hashes: found.hashes(), size: stored.size })
}
