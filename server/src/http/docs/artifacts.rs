//! Artifacts in the Taskcluster Queue API, described.

use serde_json::json;
use tenure_api::artifacts::{
    ArtifactContent, ArtifactEntry, ArtifactError, ArtifactList, ArtifactRedirect, CreateArtifactRequest,
    CreatedArtifact, FinishArtifactRequest,
};
use tenure_api::errors::ErrorCode::{InputError, RequestConflict, ResourceExpired, ResourceNotFound};

use super::operation::{self, Operation};
use super::parameters::{ARTIFACT, paged};
use super::sample::Sample;

const MISSING: &str = "there is no such artifact, or it is an object whose upload is not finished";

/// Every operation.
pub(super) fn operations(sample: &Sample) -> Vec<Operation> {
    [making(sample), reading(sample), lists(sample)].concat()
}

fn operation(name: &'static str, summary: &'static str) -> Operation {
    operation::operation("queue", name, summary)
}

/// The URL at which the server says that bytes are.
fn url(sample: &Sample, access: &str) -> String {
    let task = sample.task;
    format!(
        "https://queue.example.com/artifacts/artifact/{task}/0/{ARTIFACT}?Credential={access}&expires=…&signature=…"
    )
}

fn making(sample: &Sample) -> Vec<Operation> {
    let expires = sample.after(120);
    let body = json!({"storageType": "s3", "contentType": "text/plain", "contentLength": 5, "expires": expires});
    let created = json!({
        "storageType": "s3",
        "putUrl": url(sample, "put"),
        "expires": sample.after(50),
        "contentType": "text/plain",
    });
    vec![
        operation("createArtifact", "Create an artifact of a run")
            .about(
                "For the worker that has the run, with the credentials of its claim. `s3`: PUT the bytes to the `putUrl` of the \
                 answer within 45 minutes, with the same `Content-Type` and without credentials; `Content-Encoding: gzip` is \
                 kept. `object`: upload to the object service, then call finishArtifact. `reference`: a URL somewhere \
                 else, with `http` or `https`. `link`: another artifact of the run, which may come later. `error`: why there is \
                 none. Sending the same again is fine, and may make `expires` later; a `reference` may lead elsewhere or become a `link`, which \
                 keeps its `contentType`; anything else that has the name already is a conflict.",
            )
            .scopes("queue:create-artifact:<taskId>/<runId>")
            .takes::<CreateArtifactRequest>(&body)
            .answers::<CreatedArtifact<'_>>("How to go on, which depends on the storage type", &created)
            .refuses(
                InputError,
                "there is no such task or run, the run was never claimed, `expires` is more than 15 minutes in the past or later \
                 than that of the task",
            )
            .refuses(
                RequestConflict,
                "the run has ended, except as an exception within the last 25 minutes; or there is an artifact of that name which \
                 differs",
            ),
        operation("finishArtifact", "Finish the upload of an object")
            .about("From now on the artifact can be read. A repeat changes nothing.")
            .scopes("queue:create-artifact:<taskId>/<runId>")
            .takes::<FinishArtifactRequest>(&json!({"uploadId": sample.task}))
            .answers_empty(204, "It can be read", &[])
            .refuses(ResourceNotFound, "there is no such task, run or artifact")
            .refuses(InputError, "it is no object, the `uploadId` is another, or the object service has no such object"),
    ]
}

fn reading(sample: &Sample) -> Vec<Operation> {
    const LINKS: &str = "Links are followed, and each name that is met needs its scope; everybody has it for names that begin \
        with `public/`. The URL of stored bytes is plain and always the same for what everybody \
        may read; otherwise it is signed and good for 30 minutes at most.";
    let redirect = |name, summary, about: &str| {
        let example = json!({"storageType": "s3", "url": url(sample, "get")});
        let error = json!({"reason": "file-missing-on-worker", "message": "There was no such file."});
        with_refusals(operation(name, summary).about(&format!("{about}{LINKS}")))
            .moves::<ArtifactRedirect<'_>>(
                "Where it is",
                &example,
                &[("x-taskcluster-artifact-storage-type", "How it is stored")],
            )
            .answers_json::<ArtifactError<'_>>(424, "The artifact is an error", &error)
    };
    let content = |name, summary, about: &str| {
        let example = json!({"storageType": "s3", "url": url(sample, "get")});
        with_refusals(operation(name, summary).about(&format!("{about}{LINKS}")))
            .answers::<ArtifactContent<'_>>("What it is", &example)
    };
    let latest = "Of the task's last run, whether or not that has the artifact. ";
    vec![
        redirect("getArtifact", "Read an artifact", ""),
        redirect("getLatestArtifact", "Read an artifact of the last run", latest),
        content("artifact", "Find out how to read an artifact", ""),
        content("latestArtifact", "Find out how to read an artifact of the last run", latest),
    ]
}

fn with_refusals(operation: Operation) -> Operation {
    operation
        .scopes("queue:get-artifact:<name>")
        .refuses(ResourceNotFound, MISSING)
        .refuses(ResourceExpired, "the artifact has expired and is not removed yet")
        .refuses(InputError, "links lead in a circle, or through more than 100 artifacts")
}

fn lists(sample: &Sample) -> Vec<Operation> {
    let entry = json!({
        "storageType": "s3",
        "name": ARTIFACT,
        "expires": sample.after(120),
        "contentType": "text/plain",
        "contentLength": 5,
        "size": 5,
        "sha256": "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824",
    });
    let list = |name, summary, scope: &str| {
        paged(operation(name, summary))
            .about("In the order of their names. Those are among them that have expired and are not removed yet.")
            .scopes(scope)
            .answers::<ArtifactList<'_>>("A page", &json!({"artifacts": [entry]}))
            .refuses(ResourceNotFound, "there is no such task or run")
    };
    let info = |name, summary, scope: &str| {
        operation(name, summary)
            .about("Links are not followed.")
            .scopes(scope)
            .answers::<ArtifactEntry<'_>>("What is known of it", &entry)
            .refuses(
                ResourceNotFound,
                "there is no such task, run or artifact, or it is an object whose upload is not finished",
            )
    };
    let (of_run, of_task) = ("queue:list-artifacts:<taskId>:<runId>", "queue:list-artifacts:<taskId>");
    vec![
        list("listArtifacts", "List the artifacts of a run", of_run),
        list("listLatestArtifacts", "List the artifacts of the last run", of_task),
        info("artifactInfo", "Read what is known of an artifact", of_run),
        info("latestArtifactInfo", "Read what is known of an artifact of the last run", of_task),
    ]
}
