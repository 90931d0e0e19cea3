//! Artifacts.

use serde_json::{Value, json};
use tenure_api::errors::ErrorCode::{
    InputError, InputValidationError, InsufficientScopes, RequestConflict, ResourceExpired, ResourceNotFound,
};

use crate::endpoints::row::{OperationRows, SHA256, State, Who, operation, refused, succeeds, with};

pub fn entries() -> Vec<OperationRows> {
    [vec![creating(), finishing()], reading(), telling(), bytes()].concat()
}

fn creating() -> OperationRows {
    let s3 = json!({"storageType": "s3", "contentType": "text/plain", "expires": "<expires>"});
    let object = with(s3.clone(), json!({"storageType": "object"}));
    let reference = with(s3.clone(), json!({"storageType": "reference", "url": "https://example.com/other"}));
    let link = json!({"storageType": "link", "artifact": "public/log", "expires": "<expires>"});
    let reason = "file-missing-on-worker";
    let error = json!({"storageType": "error", "reason": reason, "message": "none", "expires": "<expires>"});
    let until = |expires: &str| with(s3.clone(), json!({"expires": expires}));
    let kind = |name: &str, body: Value| {
        succeeds(format!("the storage type `{name}`")).on(State::Claimed).body(body).gives("/storageType", name)
    };
    operation("createArtifact", State::Claimed)
        .takes(s3.clone())
        .gives("/storageType", "s3")
        .gives("/contentType", "text/plain")
        .row(kind("object", object).gives("/name", "t/<taskId>/0/<name>"))
        .row(kind("reference", reference.clone()))
        .row(kind("link", link.clone()))
        .row(kind("error", error))
        .row(succeeds("the same again").on(State::Stored).gives("/storageType", "s3"))
        .row(succeeds("a reference leads elsewhere").on(State::Artifacts).body(reference.clone()))
        .row(succeeds("a reference becomes a link").on(State::Artifacts).body(link))
        .row(refused(InputError, "the task does not exist"))
        .row(refused(InputError, "the run does not exist").on(State::Claimed).with("runId", "1"))
        .row(refused(InputError, "the run was never claimed").on(State::Pending))
        .row(refused(InputError, "`expires` is an hour ago").on(State::Claimed).body(until("<past>")))
        .row(
            refused(InputError, "`expires` is later than the task's")
                .on(State::Claimed)
                .body(until("2999-01-01T00:00:00.000Z")),
        )
        .row(
            refused(InputValidationError, "an unknown storage type")
                .on(State::Claimed)
                .body(with(s3.clone(), json!({"storageType": "azure"}))),
        )
        .row(
            refused(InputValidationError, "a field of another type")
                .on(State::Claimed)
                .body(with(s3, json!({"url": "https://example.com/"}))),
        )
        .row(
            refused(InputValidationError, "a reference that does not lead to the web")
                .on(State::Claimed)
                .body(with(reference, json!({"url": "javascript:alert(1)"}))),
        )
        .row(refused(RequestConflict, "the name has an artifact of another type").on(State::Artifacts))
        .row(succeeds("the run has ended as an exception, not long ago").on(State::Overdue))
        .row(refused(RequestConflict, "the run has ended otherwise").on(State::Completed))
}

fn finishing() -> OperationRows {
    operation("finishArtifact", State::Uploaded)
        .takes(json!({"uploadId": "<uploadId>"}))
        .row(succeeds("the same again").on(State::Finished))
        .row(refused(ResourceNotFound, "the task does not exist"))
        .row(refused(ResourceNotFound, "the run does not exist").on(State::Uploaded).with("runId", "1"))
        .row(refused(ResourceNotFound, "the artifact does not exist").on(State::Uploaded).with("name", "none"))
        .row(refused(InputError, "another `uploadId`").on(State::Uploaded).body(json!({"uploadId": "<missing>"})))
        .row(refused(InputError, "the artifact is no object").on(State::Artifacts))
        .row(refused(InputError, "nothing was uploaded").on(State::Artifacts).with("name", "object"))
}

fn reading() -> Vec<OperationRows> {
    let reads = |name| {
        operation(name, State::Artifacts)
            .gives("/storageType", "reference")
            .gives("/url", "https://example.com/log")
            .row(
                succeeds("a link is followed")
                    .on(State::Artifacts)
                    .with("name", "link")
                    .gives("/url", "https://example.com/log"),
            )
            .row(
                succeeds("a name that begins with `public/`, without credentials")
                    .on(State::Artifacts)
                    .with("name", "public/log")
                    .by(Who::Anonymous)
                    .gives("/storageType", "reference"),
            )
            .row(succeeds("stored bytes").on(State::Stored).gives("/storageType", "s3"))
            .row(succeeds("a finished object").on(State::Finished).gives("/storageType", "object"))
            .row(
                refused(InsufficientScopes, "a name that there is not, by a client without its scope")
                    .on(State::Artifacts)
                    .with("name", "none")
                    .by(Who::WithoutScopes),
            )
            .row(
                refused(InsufficientScopes, "a public link to what is not public")
                    .on(State::Artifacts)
                    .with("name", "public/link")
                    .by(Who::Anonymous),
            )
            .row(refused(ResourceNotFound, "the task does not exist"))
            .row(refused(ResourceNotFound, "the artifact does not exist").on(State::Artifacts).with("name", "none"))
            .row(refused(ResourceNotFound, "an unfinished object").on(State::Artifacts).with("name", "object"))
            .row(refused(ResourceExpired, "the artifact has expired").on(State::Artifacts).with("name", "expired"))
            .row(refused(InputError, "the link leads to itself").on(State::Artifacts).with("name", "circle"))
    };
    let of_run = |entry: OperationRows| {
        entry.row(refused(ResourceNotFound, "the run does not exist").on(State::Artifacts).with("runId", "1"))
    };
    let error = || {
        succeeds("the artifact is an error")
            .on(State::Artifacts)
            .with("name", "error")
            .gives("/reason", "file-missing-on-worker")
            .gives("/message", "none")
    };
    let redirects = |name| reads(name).row(error().answers(424));
    let describes = |name| reads(name).row(error().gives("/storageType", "error"));
    vec![
        of_run(redirects("getArtifact")),
        redirects("getLatestArtifact"),
        of_run(describes("artifact")),
        describes("latestArtifact"),
    ]
}

fn telling() -> Vec<OperationRows> {
    let lists = |name| {
        operation(name, State::Artifacts)
            .gives("/artifacts/0/name", "circle")
            .gives("/artifacts/4/name", "<name>")
            .gives("/artifacts/7/name", "public/log")
            .gives("/continuationToken", Value::Null)
            .row(succeeds("there are none").on(State::Claimed).gives("/artifacts", json!([])))
            .row(
                succeeds("stored bytes")
                    .on(State::Stored)
                    .gives("/artifacts/0/size", 5)
                    .gives("/artifacts/0/sha256", SHA256),
            )
            .row(
                succeeds("a page of one")
                    .on(State::Artifacts)
                    .query("limit=1")
                    .gives("/artifacts/0/storageType", "link")
                    .gives("/artifacts/1", Value::Null),
            )
            .row(refused(ResourceNotFound, "the task does not exist"))
            .row(refused(ResourceNotFound, "the task has no run").on(State::Unscheduled))
    };
    let infos = |name| {
        operation(name, State::Artifacts)
            .gives("/name", "<name>")
            .gives("/storageType", "reference")
            .gives("/expires", "<expires>")
            .row(
                succeeds("a link is not followed")
                    .on(State::Artifacts)
                    .with("name", "link")
                    .gives("/storageType", "link"),
            )
            .row(succeeds("stored bytes").on(State::Stored).gives("/size", 5))
            .row(succeeds("a finished object").on(State::Finished).gives("/storageType", "object"))
            .row(refused(ResourceNotFound, "the task does not exist"))
            .row(refused(ResourceNotFound, "the artifact does not exist").on(State::Artifacts).with("name", "none"))
            .row(refused(ResourceNotFound, "an unfinished object").on(State::Artifacts).with("name", "object"))
    };
    let of_run = |entry: OperationRows| {
        entry.row(refused(ResourceNotFound, "the run does not exist").on(State::Artifacts).with("runId", "1"))
    };
    vec![
        of_run(lists("listArtifacts")),
        lists("listLatestArtifacts"),
        of_run(infos("artifactInfo")),
        infos("latestArtifactInfo"),
    ]
}

fn bytes() -> Vec<OperationRows> {
    let signed = |name, query| {
        operation(name, State::Stored).by(Who::Anonymous).query(query).bytes_elsewhere(
            403,
            "AccessDenied",
            "a_url_is_for_one_method_one_content_type_and_one_name",
        )
    };
    vec![
        signed("uploadArtifact", "<put>")
            .takes_bytes("text/plain", b"hello")
            .bytes_elsewhere(400, "PartialUpload", "a_part_does_not_replace_the_whole")
            .bytes_elsewhere(400, "IncompleteBody", "a_body_that_is_not_whole_is_refused")
            .bytes_elsewhere(409, "Deleted", "abandoned_upload_is_refused_and_leaves_nothing")
            .bytes_elsewhere(413, "TooLarge", "a_body_that_is_too_large_is_refused_and_changes_nothing"),
        signed("downloadArtifact", "<get>")
            .bytes_elsewhere(404, "NotFound", "nothing_is_found_where_nothing_was_uploaded")
            .bytes_elsewhere(410, "Expired", "a_plain_url_gives_only_what_get_artifact_would_lead_to")
            .bytes_elsewhere(416, "InvalidRange", "a_range_is_a_part_of_the_bytes"),
    ]
}
