//! The object service.

use serde_json::json;
use tenure_api::errors::ErrorCode::{
    InputError, InputValidationError, RequestConflict, ResourceExpired, ResourceNotFound,
};

use crate::endpoints::row::{
    OperationRows, SHA256, State, an_end, an_upload, an_upload_with, operation, refused, succeeds, with,
};

pub fn entries() -> Vec<OperationRows> {
    [uploads(), downloads()].concat()
}

fn uploads() -> Vec<OperationRows> {
    let proposing = |methods| an_upload_with(json!({"proposedUploadMethods": methods}));
    let other = json!({"uploadId": "<missing>"});
    let foreign = json!({"projectId": "other"});
    vec![
        operation("createUpload", State::Nothing)
            .takes(an_upload())
            .gives("/uploadMethod", json!({"dataInline": true}))
            .gives("/uploadId", "<uploadId>")
            .row(
                succeeds("the bytes go to a URL")
                    .body(proposing(json!({"putUrl": {"contentType": "text/plain", "contentLength": 5}})))
                    .gives("/uploadMethod/putUrl/headers/Content-Length", "5"),
            )
            .row(
                succeeds("a way that the server does not know")
                    .body(proposing(json!({"unheard": {}})))
                    .gives("/uploadMethod", json!({})),
            )
            .row(succeeds("the same again").on(State::Upload).gives("/projectId", "<projectId>"))
            .row(
                refused(InputValidationError, "bytes that are not base64")
                    .body(proposing(json!({"dataInline": {"contentType": "text/plain", "objectData": "?"}}))),
            )
            .row(
                refused(RequestConflict, "another `uploadId` has the name")
                    .on(State::Upload)
                    .body(an_upload_with(other.clone())),
            )
            .row(
                refused(RequestConflict, "another project has the name")
                    .on(State::Upload)
                    .body(an_upload_with(foreign.clone())),
            )
            .row(refused(RequestConflict, "the upload is finished").on(State::Object))
            .elsewhere(InputError, "an_object_of_more_bytes_than_the_server_takes_is_refused"),
        operation("finishUpload", State::Upload)
            .takes(an_end())
            .row(succeeds("the same again").on(State::Object))
            .row(succeeds("without digests").on(State::Upload).body(with(an_end(), json!({"hashes": {}}))))
            .row(refused(ResourceNotFound, "the object does not exist"))
            .row(
                refused(InputError, "other bytes were uploaded")
                    .on(State::Upload)
                    .body(with(an_end(), json!({"hashes": {"sha256": "0".repeat(64)}}))),
            )
            .row(refused(RequestConflict, "another `uploadId`").on(State::Upload).body(with(an_end(), other)))
            .row(refused(RequestConflict, "another project").on(State::Upload).body(with(an_end(), foreign))),
    ]
}

fn downloads() -> Vec<OperationRows> {
    let reading = |name| {
        operation(name, State::Object)
            .row(refused(ResourceNotFound, "the object does not exist"))
            .row(refused(ResourceNotFound, "the upload is not finished").on(State::Upload))
            .row(refused(ResourceExpired, "the object has expired").on(State::OldObject))
    };
    let accepting = |methods| json!({"acceptDownloadMethods": methods});
    vec![
        reading("startDownload")
            .takes(accepting(json!({"getUrl": true, "simple": true})))
            .gives("/method", "getUrl")
            .gives("/hashes/sha256", SHA256)
            .row(
                succeeds("only `simple`")
                    .on(State::Object)
                    .body(accepting(json!({"simple": true})))
                    .gives("/method", "simple"),
            )
            .row(
                refused(InputError, "no way that the server knows")
                    .on(State::Object)
                    .body(accepting(json!({"getUrl": false}))),
            ),
        reading("object").gives("/projectId", "<projectId>").gives("/size", 5).gives("/hashes/sha256", SHA256),
        reading("download"),
    ]
}
