//! Artifacts through the client library.

use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;
use tenure_api::credentials::AccessToken;
use tenure_api::dates::Timestamp;
use tenure_client::{Client, Credentials, Error, RetryPolicy, Upload};

use crate::queue::{Queue, Reply, TASK_IDS, ok, refuse};
use crate::store::{Stored, URL_SECRET};

const NAME: &str = "public/a file";
const CREATE: &str = "artifacts/public%2Fa%20file";
const BYTES: &str = "public%2Fa%20file/bytes";

fn client(queue: &Queue) -> Client {
    let access_token = AccessToken::new("secret-of-task-0".into());
    let credentials = Credentials { client_id: "task-0".into(), access_token, certificate: None };
    let retry = RetryPolicy::default().first_pause(Duration::from_millis(1)).retries(3);
    Client::builder().root_url(&queue.root_url()).credentials(credentials).retry_policy(retry).build().unwrap()
}

fn expires() -> Timestamp {
    Timestamp::new("2001-01-01T00:00:00Z".parse().unwrap())
}

async fn upload(queue: &Queue, upload: &Upload) -> Result<(), Error> {
    client(queue).upload(TASK_IDS[0].parse().unwrap(), "0".parse().unwrap(), NAME, upload).await
}

fn file(dir: &TempDir, content: &[u8]) -> Upload {
    let path = dir.path().join("file");
    std::fs::write(&path, content).unwrap();
    Upload::from_path(&path, "text/plain", expires()).unwrap()
}

async fn download(queue: &Queue, to: &Path) -> Result<u64, Error> {
    Ok(client(queue).download(TASK_IDS[0].parse().unwrap(), None, NAME, to).await?.bytes)
}

/// The error with its causes, and its Debug form.
fn details(error: &Error) -> String {
    let mut text = format!("{error:?} {error}");
    let mut cause = std::error::Error::source(error);
    while let Some(inner) = cause {
        text.push_str(&format!(" {inner:?} {inner}"));
        cause = inner.source();
    }
    text
}

fn gzipped(content: &[u8]) -> Vec<u8> {
    use std::io::Write as _;
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    encoder.write_all(content).unwrap();
    encoder.finish().unwrap()
}

fn stored(bytes: Vec<u8>, encoding: Option<&str>) -> Stored {
    Stored { created: json!({"storageType": "s3"}), bytes: Some(bytes), encoding: encoding.map(str::to_owned) }
}

#[tokio::test]
async fn file_is_sent_raw_or_compressed() {
    let (queue, dir) = (Queue::start().await, TempDir::new().unwrap());
    for content in [vec![7; 300_000], Vec::new()] {
        let plain = file(&dir, &content);
        upload(&queue, &plain).await.unwrap();
        let artifact = queue.artifact(TASK_IDS[0], NAME);
        let length = content.len();
        let created = json!({"storageType": "s3", "contentType": "text/plain", "contentLength": length,
                             "expires": "2001-01-01T00:00:00.000Z"});
        assert_eq!((&artifact.created, &artifact.encoding), (&created, &None));
        assert!(artifact.bytes == Some(content.clone()));
        upload(&queue, &plain.gzip(dir.path()).await.unwrap()).await.unwrap();
        let artifact = queue.artifact(TASK_IDS[0], NAME);
        assert_eq!((&artifact.created, artifact.encoding.as_deref()), (&created, Some("gzip")));
        assert!(artifact.content() == content);
    }
    // The compressed file has no name.
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
}

#[tokio::test]
async fn content_type_of_answer_is_sent() {
    let (queue, dir) = (Queue::start().await, TempDir::new().unwrap());
    let url = format!("{}/elsewhere", queue.root_url());
    let answer =
        json!({"storageType": "s3", "putUrl": url, "contentType": "x/y; z=1", "expires": "2001-01-01T00:00:00Z"});
    queue.once(CREATE, ok(answer));
    queue.on("elsewhere", |_| ok(Value::Null));
    upload(&queue, &file(&dir, b"x")).await.unwrap();
    let put = &queue.requests("PUT /elsewhere")[0];
    assert_eq!((put.headers["content-type"].to_str().unwrap(), &put.bytes[..]), ("x/y; z=1", b"x".as_slice()));
}

#[tokio::test]
async fn failed_upload_is_retried_with_new_url() {
    let cut = Reply { cut: true, ..Reply::default() };
    for failure in [refuse(400), refuse(403), refuse(408), refuse(429), refuse(500), refuse(503), cut] {
        let (queue, dir) = (Queue::start().await, TempDir::new().unwrap());
        (0..3).for_each(|_| queue.once(BYTES, failure.clone()));
        upload(&queue, &file(&dir, b"x")).await.unwrap();
        assert_eq!((queue.requests(CREATE).len(), queue.requests(BYTES).len()), (4, 4));
        assert_eq!(queue.artifact(TASK_IDS[0], NAME).content(), b"x");
        (0..4).for_each(|_| queue.once(BYTES, failure.clone()));
        let error = upload(&queue, &file(&dir, b"x")).await.unwrap_err();
        assert!(!details(&error).contains(URL_SECRET), "{}", details(&error));
    }
}

#[tokio::test]
async fn final_refusal_is_not_retried() {
    let (queue, dir) = (Queue::start().await, TempDir::new().unwrap());
    for status in [400, 401, 403, 404, 409] {
        queue.once(CREATE, refuse(status));
        let before = queue.requests(CREATE).len();
        let error = upload(&queue, &file(&dir, b"x")).await.unwrap_err();
        assert!(matches!(error, Error::Refused { status: found, .. } if found == status), "{error:?}");
        assert_eq!((queue.requests(CREATE).len() - before, queue.requests(BYTES).len()), (1, 0));
    }
    queue.once(BYTES, refuse(413));
    let error = upload(&queue, &file(&dir, b"x")).await.unwrap_err();
    assert!(matches!(error, Error::Store { status: 413 }), "{error:?}");
    assert_eq!(queue.requests(BYTES).len(), 1);
}

#[tokio::test]
async fn changed_length_of_file_does_not_confuse_store() {
    let (queue, dir) = (Queue::start().await, TempDir::new().unwrap());
    let path = dir.path().join("file");
    let growing = file(&dir, b"as it was");
    std::fs::write(&path, "as it was and more").unwrap();
    upload(&queue, &growing).await.unwrap();
    assert_eq!(queue.artifact(TASK_IDS[0], NAME).content(), b"as it was");
    let shrinking = file(&dir, &[7; 300_000]);
    std::fs::File::options().write(true).open(&path).unwrap().set_len(200_000).unwrap();
    let error = upload(&queue, &shrinking).await.unwrap_err();
    assert!(matches!(error, Error::File { .. }), "{error:?}");
    assert_eq!(queue.artifact(TASK_IDS[0], NAME).bytes, None);
    assert_eq!(queue.requests(CREATE).len(), 2);
}

#[tokio::test]
async fn download_decompresses_and_replaces_file() {
    let (queue, dir) = (Queue::start().await, TempDir::new().unwrap());
    let to = dir.path().join("file");
    let content = vec![7; 300_000];
    for artifact in [stored(content.clone(), None), stored(gzipped(&content), Some("gzip"))] {
        std::fs::write(&to, "old").unwrap();
        queue.has_artifact(TASK_IDS[0], NAME, artifact);
        let file = client(&queue).download(TASK_IDS[0].parse().unwrap(), Some("0".parse().unwrap()), NAME, &to).await;
        assert_eq!(file.unwrap().bytes, 300_000);
        assert!(std::fs::read(&to).unwrap() == content);
    }
    assert_eq!(download(&queue, &to).await.unwrap(), 300_000);
    let requests: Vec<_> = queue.requests(CREATE).into_iter().map(|request| request.call).collect();
    assert!(requests[0].contains("/runs/0/artifacts/") && !requests[2].contains("/runs/"), "{requests:?}");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
}

#[tokio::test]
async fn reference_is_followed_to_other_server() {
    let (queue, dir) = (Queue::start().await, TempDir::new().unwrap());
    let url = format!("{}/elsewhere", queue.root_url());
    let created = json!({"storageType": "reference", "url": url});
    queue.has_artifact(TASK_IDS[0], NAME, Stored { created, ..Stored::default() });
    let moved = vec![("location", "/at-last".to_owned())];
    queue.on("elsewhere", move |_| Reply { status: 302, headers: moved.clone(), ..Reply::default() });
    queue.on("at-last", |_| Reply { status: 200, bytes: Some(b"here".to_vec()), ..Reply::default() });
    let to = dir.path().join("file");
    assert_eq!(download(&queue, &to).await.unwrap(), 4);
    assert_eq!(std::fs::read(&to).unwrap(), b"here");
}

#[tokio::test]
async fn failed_download_is_retried_and_leaves_nothing() {
    let body = |bytes: &[u8], headers: Vec<(&'static str, String)>| Reply {
        status: 200,
        headers,
        bytes: Some(bytes.to_vec()),
        ..Reply::default()
    };
    let gzip = || vec![("content-encoding", "gzip".to_owned())];
    let cut_short = &gzipped(b"a longer text")[..20];
    for failure in [
        refuse(403),
        refuse(503),
        Reply { cut: true, ..Reply::default() },
        body(cut_short, gzip()),
        body(b"no gzip", gzip()),
        body(b"?", vec![("content-encoding", "br".to_owned())]),
        body(b"other", vec![("repr-digest", "sha-256=:AAAA:".to_owned())]),
    ] {
        let (queue, dir) = (Queue::start().await, TempDir::new().unwrap());
        let to = dir.path().join("file");
        queue.has_artifact(TASK_IDS[0], NAME, stored(b"whole".to_vec(), None));
        (0..3).for_each(|_| queue.once(BYTES, failure.clone()));
        assert_eq!(download(&queue, &to).await.unwrap(), 5);
        assert_eq!(queue.requests(CREATE).len(), 4);
        std::fs::remove_file(&to).unwrap();
        (0..4).for_each(|_| queue.once(BYTES, failure.clone()));
        let error = download(&queue, &to).await.unwrap_err();
        assert!(error.is_transient() && !details(&error).contains(URL_SECRET), "{}", details(&error));
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}

#[tokio::test]
async fn missing_artifact_is_error_with_status() {
    let (queue, dir) = (Queue::start().await, TempDir::new().unwrap());
    let to = dir.path().join("file");
    for status in [403, 404, 410] {
        queue.once(CREATE, refuse(status));
        assert_eq!(download(&queue, &to).await.unwrap_err().status(), Some(status));
    }
    let created = json!({"storageType": "error", "reason": "file-missing-on-worker", "message": "gone"});
    queue.has_artifact(TASK_IDS[0], NAME, Stored { created, ..Stored::default() });
    let error = download(&queue, &to).await.unwrap_err().to_string();
    assert_eq!(error, "the queue answered 424 file-missing-on-worker: gone");
    queue.has_artifact(TASK_IDS[0], NAME, stored(Vec::new(), None));
    queue.once(BYTES, refuse(404));
    assert!(matches!(download(&queue, &to).await.unwrap_err(), Error::Store { status: 404 }));
    assert_eq!((queue.requests(CREATE).len(), queue.requests(BYTES).len()), (5, 1));
    let nowhere = dir.path().join("no/such/folder");
    let error = download(&queue, &nowhere).await.unwrap_err();
    assert!(matches!(error, Error::File { .. }), "{error:?}");
}

#[tokio::test]
async fn list_has_all_pages() {
    let queue = Queue::start().await;
    let artifact = |name: &str| json!({"name": name, "storageType": "s3", "contentType": "text/plain", "expires": "2001-01-01T00:00:00Z"});
    queue.once("/artifacts", ok(json!({"artifacts": [artifact("a")], "continuationToken": "next page"})));
    queue.once("/artifacts", ok(json!({"artifacts": [artifact("b")]})));
    let listed = client(&queue).list_artifacts(TASK_IDS[0].parse().unwrap(), None).await.unwrap();
    assert_eq!(listed.iter().map(|artifact| artifact.name.as_str()).collect::<Vec<_>>(), ["a", "b"]);
    assert_eq!(queue.requests("/artifacts")[1].query, "continuationToken=next%20page");
}
