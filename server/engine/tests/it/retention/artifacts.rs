//! Artifacts of tasks that are purged before they expire.

use bytes::Bytes;
use tempfile::TempDir;
use tenure_api::credentials::SigningKey;
use tenure_api::dates::Timestamp;
use tenure_api::ids::SlugId;
use tenure_api::objects::ObjectHashes;
use tenure_domain::artifact::{Artifact, Details, object_name};
use tenure_engine::blobs::settings::{ArtifactSettings, ArtifactsPlace};
use tenure_engine::blobs::{BlobName, Blobs};
use tenure_engine::ops::create_artifact::{self, RunRef};
use tenure_engine::ops::objects as object_ops;

use super::{exists, later, submit};
use crate::support::*;

const ARTIFACTS: &str = "SELECT count(*) FROM artifacts";
const READABLE: &str = "SELECT count(*) FROM artifacts WHERE expires > (SELECT now FROM db_now)";

async fn start_with_folder() -> (TestDatabase, Queue, TempDir) {
    let (database, folder) = (TestDatabase::create().await, tempfile::tempdir().unwrap());
    let settings = ArtifactSettings { place: ArtifactsPlace::Folder(folder.path().join("a")), size_max: 1 << 20 };
    let blobs = Blobs::new(vec![SigningKey::new(b"key")], "http://localhost", &settings);
    let queue = Queue::start_with_blobs(database.options(), blobs);
    (database, queue, folder)
}

fn files(folder: &TempDir) -> usize {
    let folders = std::fs::read_dir(folder.path().join("a")).into_iter().flatten();
    folders.map(|folder| std::fs::read_dir(folder.unwrap().path()).unwrap().count()).sum()
}

/// Submits and claims a task.
async fn running(queue: &Queue) -> (RunRef, DateTime<Utc>) {
    submit(queue, &json!({})).await;
    let claim = queue.claim_one(QUEUE).await;
    (RunRef { task: claim.task.id, run: claim.run }, Timestamp::new(claim.task.expires).time())
}

async fn create(queue: &Queue, run_ref: RunRef, name: &str, details: Details, expires: DateTime<Utc>) {
    let (name, content_type) = (name.to_owned(), "text/plain".to_owned());
    let artifact = Artifact { name, details, content_type, content_length: None, expires };
    create_artifact::create(&queue.engine.pool, &queue.engine.notifiers, run_ref, artifact).await.unwrap();
}

#[tokio::test]
async fn artifacts_and_bytes_are_removed_with_task() {
    let (database, queue, folder) = start_with_folder().await;
    put(&queue, json!({"retain": {"completed": 86_400}})).await;
    let (run_ref, expires) = running(&queue).await;
    let (pool, blobs) = (&queue.engine.pool, &queue.engine.blobs);
    create(&queue, run_ref, "bytes", Details::S3, expires).await;
    let bytes = Bytes::from("bytes");
    blobs
        .put(pool, &BlobName::artifact(run_ref.task, run_ref.run, "bytes"), "text/plain", bytes.clone())
        .await
        .unwrap();
    create(&queue, run_ref, "reference", Details::Reference { url: "https://a/".to_owned() }, expires).await;
    let upload = SlugId::from_random([1; 16]);
    create(&queue, run_ref, "object", Details::Object { upload }, expires).await;
    let name = object_name(run_ref.task, run_ref.run, "object");
    let of = object_ops::Upload { name: &name, project: "none", id: upload };
    object_ops::begin(pool, of, expires, &ObjectHashes::default()).await.unwrap();
    object_ops::store(pool, blobs, &name, "text/plain", bytes).await.unwrap();
    queue.report(run_ref.task, run_ref.run, Report::Completed).await.unwrap();
    later(&database, &queue, "23 hours 59 minutes").await;
    assert_eq!((number(database.pool(), READABLE).await, files(&folder)), (3, 2));
    later(&database, &queue, "2 minutes").await;
    assert_eq!((exists(&queue, run_ref.task).await, number(database.pool(), ARTIFACTS).await), (false, 0));
    // An upload of the object may have begun just before. Removed bytes stay for their readers.
    later(&database, &queue, "121 minutes").await;
    assert_eq!(number(database.pool(), "SELECT count(*) FROM objects").await, 0);
    later(&database, &queue, "10 minutes").await;
    assert_eq!(files(&folder), 0);
    finish(database, queue).await;
}

#[tokio::test]
async fn bytes_stay_while_upload_may_be_in_progress() {
    let (database, queue, _folder) = start_with_folder().await;
    put(&queue, json!({"retain": {"completed": 60}})).await;
    let (run_ref, expires) = running(&queue).await;
    create(&queue, run_ref, "bytes", Details::S3, expires).await;
    queue.report(run_ref.task, run_ref.run, Report::Completed).await.unwrap();
    later(&database, &queue, "61 seconds").await;
    assert_eq!((number(database.pool(), READABLE).await, number(database.pool(), ARTIFACTS).await), (0, 1));
    later(&database, &queue, "143 minutes").await;
    assert!(exists(&queue, run_ref.task).await);
    later(&database, &queue, "2 minutes").await;
    assert!(!exists(&queue, run_ref.task).await);
    finish(database, queue).await;
}

#[tokio::test]
async fn many_artifacts_are_removed_in_slices() {
    const SLICE: usize = 200;
    let (database, queue, _folder) = start_with_folder().await;
    put(&queue, json!({"retain": {"completed": 60}})).await;
    let (run_ref, _) = running(&queue).await;
    let many = "INSERT INTO artifacts (seq, run, name, storage_type, content_type, expires, removable, present, url)
                SELECT seq, 0, 'a' || n, 3, 't', expires, expires, true, 'https://a/'
                FROM task_definitions, generate_series(1, 450) n";
    run_sql(database.pool(), many).await;
    queue.report(run_ref.task, run_ref.run, Report::Completed).await.unwrap();
    queue.passes.run_all_due().await.unwrap();
    advance(&database, "61 seconds").await;
    assert_eq!(queue.run_pass("expiry").await.unwrap().done, SLICE);
    assert_eq!(number(database.pool(), READABLE).await, 250);
    assert_eq!(queue.run_pass("expiry").await.unwrap().done, 0, "those are removed before it goes on");
    assert_eq!(queue.run_pass("artifacts").await.unwrap().done, SLICE);
    queue.passes.run_all_due().await.unwrap();
    assert_eq!((exists(&queue, run_ref.task).await, number(database.pool(), ARTIFACTS).await), (false, 0));
    finish(database, queue).await;
}
