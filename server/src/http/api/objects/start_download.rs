//! startDownload.

use tenure_api::objects::{Download, StartDownloadRequest};

use super::{READING, SHA256, example_url, get_url, read, reading};
use crate::http::api::prelude::*;

/// `PUT /start-download/:name`
pub fn endpoint() -> Endpoint {
    Endpoint::put("startDownload", start_download).reads().scopes(READING).early_check(may_download).described(
        "object",
        "Find out how to download an object",
        describe,
    )
}

fn describe(operation: Operation, sample: &Sample) -> Operation {
    reading(operation)
        .about(
            "The downloader lists the methods that it supports; `getUrl` is preferred, because it comes with digests to compare.",
        )
        .takes::<StartDownloadRequest>(&json!({"acceptDownloadMethods": {"getUrl": true}}))
        .answers::<Download>(
            "How to download it",
            &json!({
                "method": "getUrl",
                "url": example_url(),
                "expires": sample.after(35),
                "hashes": {"sha256": SHA256},
            }),
        )
        .refuses(InputError, "the server supports none of the methods")
}

async fn start_download(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
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

/// What reading an object requires.
fn may_download(call: &Call) -> Result<(), ApiError> {
    call.authorize_by_path()?;
    call.object_name()?;
    call.no_query()
}
