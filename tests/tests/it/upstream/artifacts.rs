//! Artifacts that could not be repeated, named, or kept.

use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::{QUEUE, advance, send_report, with_a_clock};
use crate::artifacts::{Worker, put, segment};
use crate::rig::{call, credentials_of, definition, minutes_from_now, new_task, run_of};

const BYTES: &[u8] = b"what was built\n";

fn file(expires: &str) -> Value {
    json!({"storageType": "s3", "contentType": "text/plain", "contentLength": BYTES.len(), "expires": expires})
}

/// A worker that lost the answer sends the request again, after it has uploaded or before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn taskcluster_5004_a_repeated_upload_is_no_conflict() {
    let worker = Worker::start().await;
    let expires = minutes_from_now(60);
    for _ in 0..2 {
        worker.created("public/log", &file(&expires)).await;
        let created = worker.created("public/log", &file(&expires)).await;
        assert_eq!(put(&worker.rig, created["putUrl"].as_str().unwrap(), "text/plain", BYTES).await.status, 200);
    }
    let later = worker.created("public/log", &file(&minutes_from_now(61))).await;
    assert_eq!(put(&worker.rig, later["putUrl"].as_str().unwrap(), "text/plain", BYTES).await.status, 200);
    let other = json!({"storageType": "s3", "contentType": "text/html", "expires": minutes_from_now(62)});
    Worker::refused(&worker.create("public/log", &other).await, 409, "RequestConflict", "contentType");
}

/// The next run starts with no artifacts, so that it conflicts with nothing that the one before has left.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn taskcluster_4904_a_run_that_is_tried_again_conflicts_with_nothing() {
    let rig = with_a_clock().await;
    let task = new_task();
    assert_eq!(rig.create(task, &definition(QUEUE)).await.status, 200);
    let reason = json!({"reason": "intermittent-task"});
    for (run, kind) in ["text/plain", "text/html"].into_iter().enumerate() {
        let claim = rig.claim(QUEUE, 1).await.remove(0);
        assert_eq!(claim["runId"], run);
        let body = json!({"storageType": "s3", "contentType": kind, "expires": minutes_from_now(60)});
        let path = format!("{}/artifacts/public%2Flog", run_of(&claim));
        let created = call(&mut rig.client(), &credentials_of(&claim), "POST", &path, Some(&body)).await;
        assert_eq!(created.status, 200, "run {run}: {}", created.body);
        assert_eq!(send_report(&rig, &claim, "exception", Some(&reason)).await.status, 200);
    }
}

/// Names that look as if they were escaped, or that would have to be; a space became a plus sign in 7765, and a percent
/// sign an error in 8997.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn taskcluster_1079_a_name_with_encoded_characters_is_the_name_that_was_given() {
    let worker = Worker::start().await;
    let names = [
        "public/results/https%3A%2F%2Fexample.com/browsertime.json",
        "public/a%20b",
        "public/a b",
        "public/a+b",
        "public/a?b#c",
        "public/100%.log",
        "public/../../up.log",
    ];
    for name in names {
        let created = worker.created(name, &file(&minutes_from_now(60))).await;
        let written = put(&worker.rig, created["putUrl"].as_str().unwrap(), "text/plain", BYTES).await;
        assert_eq!(written.status, 200, "{name}: {}", written.text());
        let read = worker.anonymous(&worker.latest(name)).await;
        assert_eq!(read.status, 303, "{name}: {}", read.text());
        let bytes = crate::artifacts::get(&worker.rig, read.header("location").unwrap()).await;
        assert_eq!((bytes.status, bytes.body.as_slice()), (200, BYTES), "{name}");
    }
    let list = worker.anonymous(&format!("{}/artifacts", worker.run)).await.json();
    let listed: Vec<&str> =
        list["artifacts"].as_array().unwrap().iter().map(|entry| entry["name"].as_str().unwrap()).collect();
    let mut expected = names.to_vec();
    expected.sort_unstable();
    assert_eq!(listed, expected);
}

/// Size and hash were wished for since `taskcluster-rfcs` 7 and 116.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn taskcluster_rfcs_116_a_list_shows_sizes_and_hashes() {
    let worker = Worker::start().await;
    let created = worker.created("public/log", &file(&minutes_from_now(60))).await;
    assert_eq!(put(&worker.rig, created["putUrl"].as_str().unwrap(), "text/plain", BYTES).await.status, 200);
    let list = worker.anonymous(&format!("{}/artifacts", worker.run)).await.json();
    let hash: String = Sha256::digest(BYTES).iter().map(|byte| format!("{byte:02x}")).collect();
    let entry = &list["artifacts"][0];
    assert_eq!((&entry["size"], &entry["sha256"]), (&json!(BYTES.len()), &json!(hash)));
}

/// Artifacts were gone while their task was still there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn taskcluster_7562_an_artifact_lives_as_long_as_its_task_if_it_is_to() {
    let rig = with_a_clock().await;
    let (task, expires) = (new_task(), minutes_from_now(3 * 24 * 60));
    let mut body = definition(QUEUE);
    body["expires"] = expires.as_str().into();
    assert_eq!(rig.create(task, &body).await.status, 200);
    let claim = rig.claim(QUEUE, 1).await.remove(0);
    let path = format!("{}/artifacts/public%2Flog", run_of(&claim));
    let created = call(&mut rig.client(), &credentials_of(&claim), "POST", &path, Some(&file(&expires))).await;
    assert_eq!(created.status, 200, "{}", created.body);
    assert_eq!(put(&rig, created.body["putUrl"].as_str().unwrap(), "text/plain", BYTES).await.status, 200);
    assert_eq!(send_report(&rig, &claim, "completed", None).await.status, 200);
    let latest = format!("/task/{task}/artifacts/{}", segment("public/log"));
    let answers = async || {
        let known = rig.call("GET", &format!("/task/{task}"), None).await;
        (known.status, rig.call("GET", &latest, None).await.status)
    };
    for _ in 0..2 {
        advance(&rig, 86_400).await;
        assert_eq!(answers().await, (200, 303));
    }
    advance(&rig, 86_400 - 600).await;
    assert_eq!(answers().await, (200, 303), "ten minutes before the end");
    advance(&rig, 86_400).await;
    assert_eq!(answers().await, (404, 404), "a day after the end");
}
