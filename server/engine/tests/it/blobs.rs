//! Stored bytes: names, generations and removal.

use bytes::Bytes;
use futures_util::{Stream, StreamExt as _, stream};
use tempfile::TempDir;
use tenure_api::credentials::SigningKey;
use tenure_api::ids::SlugId;
use tenure_api::objects::ObjectHashes;
use tenure_engine::blobs::settings::{ArtifactSettings, ArtifactsPlace};
use tenure_engine::blobs::{BlobError, BlobName, Blobs, NewBytes, Part, Sealed, UploadLimits};
use tenure_engine::ops::objects::{self, Upload};
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use crate::support::*;

const SIZE_MAX: u64 = 1 << 20;
const UPLOADS_OF_ONE_RUN: usize = 50;
const UPLOADS_OF_ANYONE: usize = 250;
/// Timeout for events that take a fraction of a second.
const SOON: Duration = Duration::from_secs(20);

struct BlobTest {
    database: TestDatabase,
    folder: TempDir,
    blobs: Blobs,
}

impl BlobTest {
    async fn new() -> Self {
        Self::with_limits(UploadLimits::default()).await
    }

    async fn with_limits(limits: UploadLimits) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let settings = ArtifactSettings { place: ArtifactsPlace::Folder(folder.path().join("a")), size_max: SIZE_MAX };
        let blobs = Blobs::with_limits(vec![SigningKey::new(b"key")], "http://localhost/", &settings, limits);
        Self { database: TestDatabase::create().await, folder, blobs }
    }

    async fn put(&self, name: &BlobName, bytes: &'static str) {
        self.blobs.put(self.database.pool(), name, "text/plain", Bytes::from(bytes)).await.unwrap();
    }

    async fn read(&self, name: &BlobName) -> Option<String> {
        let generation = self.blobs.current(self.database.pool(), name).await.unwrap()?;
        let size = u64::try_from(generation.blob.size).unwrap();
        let mut text = String::new();
        let mut reader = self.blobs.read(&generation, 0..size).await.unwrap();
        tokio::io::AsyncReadExt::read_to_string(&mut reader, &mut text).await.unwrap();
        Some(text)
    }

    async fn finish(&self, id: Uuid) -> bool {
        let mut transaction = self.database.pool().begin().await.unwrap();
        let done = tenure_store::blobs::finish(&mut transaction, id, 1, &[0; 32], Duration::ZERO).await.unwrap();
        if done.is_some() {
            transaction.commit().await.unwrap();
        }
        done.is_some()
    }

    async fn count(&self, sql: &'static str) -> i64 {
        sqlx::query_scalar(sql).fetch_one(self.database.pool()).await.unwrap()
    }

    async fn rows(&self) -> i64 {
        self.count("SELECT count(*) FROM blobs").await
    }

    fn files(&self) -> usize {
        let folders = std::fs::read_dir(self.folder.path().join("a")).into_iter().flatten();
        folders.map(|folder| std::fs::read_dir(folder.unwrap().path()).unwrap().count()).sum()
    }

    async fn advance(&self, minutes: i32) {
        sqlx::query("UPDATE clock SET clock_offset = clock_offset + make_interval(mins => $1)")
            .bind(minutes)
            .execute(self.database.pool())
            .await
            .unwrap();
    }

    async fn sweep(&self) -> (usize, usize) {
        self.blobs.sweep(self.database.pool(), START, 100).await.unwrap()
    }
}

fn name(text: &str) -> BlobName {
    BlobName::object(text)
}

fn new_bytes(name: BlobName) -> NewBytes {
    NewBytes { name, content_type: String::new(), content_encoding: None }
}

/// An endless body, a byte at a time.
fn trickle() -> impl Stream<Item = Result<Bytes, std::io::Error>> + Send {
    stream::unfold((), |()| async {
        tokio::time::sleep(Duration::from_millis(10)).await;
        Some((Ok(Bytes::from_static(b"x")), ()))
    })
}

#[tokio::test]
async fn stored_bytes_are_found_by_name() {
    let test = BlobTest::new().await;
    test.put(&name("a"), "bytes").await;
    test.put(&name("b"), "").await;
    test.put(&name("b"), "replaced").await;
    let found = test.blobs.find(test.database.pool(), &[name("a"), name("b"), name("c")]).await.unwrap();
    assert_eq!(found.len(), 2);
    let a = &found[&name("a")];
    assert_eq!((a.size, a.content_type.as_str(), a.content_encoding.clone()), (5, "text/plain", None));
    let digest: String = a.sha256.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(digest, "277089d91c0bdf4f2e6862ba7e4a07605119431f5d13f726dd352b06f1b206a9");
    assert_eq!(found[&name("b")].size, 8);
    assert!(test.blobs.find(test.database.pool(), &[]).await.unwrap().is_empty());
    assert_eq!(test.read(&name("b")).await.as_deref(), Some("replaced"));
    test.database.finish().await;
}

#[tokio::test]
async fn deletion_removes_bytes_and_is_idempotent() {
    let test = BlobTest::new().await;
    test.put(&name("a"), "one").await;
    test.put(&name("a"), "two").await;
    test.put(&name("b"), "stays").await;
    test.blobs.delete(test.database.pool(), &[name("a"), name("never")]).await.unwrap();
    test.blobs.delete(test.database.pool(), &[]).await.unwrap();
    assert_eq!(test.read(&name("a")).await, None);
    // Replaced bytes stay for readers that requested them.
    assert_eq!((test.rows().await, test.files()), (2, 2));
    assert_eq!(test.sweep().await, (0, 0));
    test.advance(6).await;
    assert_eq!(test.sweep().await, (1, 1));
    assert_eq!((test.rows().await, test.files()), (1, 1));
    assert_eq!(test.read(&name("b")).await.as_deref(), Some("stays"));
    test.put(&name("a"), "new").await;
    assert_eq!(test.read(&name("a")).await.as_deref(), Some("new"));
    test.database.finish().await;
}

#[tokio::test]
async fn upload_of_deleted_name_is_refused() {
    let test = BlobTest::new().await;
    let (send, wait) = oneshot::channel::<()>();
    let (pool, blobs) = (test.database.pool().clone(), test.blobs.clone());
    let uploading = tokio::spawn(async move {
        let new = NewBytes { name: name("a"), content_type: String::new(), content_encoding: None };
        let first = stream::iter([Ok::<_, std::io::Error>(Bytes::from_static(b"half "))]);
        let second = stream::once(async move {
            wait.await.unwrap();
            Ok(Bytes::from_static(b"whole"))
        });
        blobs.upload(&pool, &new, first.chain(second)).await
    });
    tenure_store::testing::eventually("the upload has begun", async || test.rows().await == 1).await;
    test.blobs.delete(test.database.pool(), &[name("a")]).await.unwrap();
    send.send(()).unwrap();
    assert!(matches!(uploading.await.unwrap(), Err(BlobError::Deleted)));
    assert_eq!((test.read(&name("a")).await, test.rows().await, test.files()), (None, 0, 0));
    test.database.finish().await;
}

#[tokio::test]
async fn slow_upload_is_aborted_without_leftovers() {
    let limits = UploadLimits { slow: Duration::from_millis(200), ..UploadLimits::default() };
    let test = BlobTest::with_limits(limits).await;
    let new = new_bytes(name("a"));
    let ended = tokio::time::timeout(SOON, test.blobs.upload(test.database.pool(), &new, trickle())).await;
    assert!(matches!(ended.expect("it is ended"), Err(BlobError::Slow(_))));
    assert_eq!((test.rows().await, test.files()), (0, 0));
    test.database.finish().await;
}

#[tokio::test]
async fn upload_ends_soon_after_its_run() {
    let limits = UploadLimits { renewal: Duration::from_millis(100), ..UploadLimits::default() };
    let test = BlobTest::with_limits(limits).await;
    let queue = Queue::start(test.database.options());
    let task = queue.create_one(QUEUE).await;
    let run = queue.claim_one(QUEUE).await.run;
    let new = new_bytes(BlobName::artifact(task, run, "public/log"));
    let (pool, blobs) = (test.database.pool().clone(), test.blobs.clone());
    let uploading = tokio::spawn(async move { blobs.upload(&pool, &new, trickle()).await });
    tenure_store::testing::eventually("the upload has begun", async || test.rows().await == 1).await;
    queue.report(task, run, Report::Completed).await.unwrap();
    let ended = tokio::time::timeout(SOON, uploading).await.expect("it is ended").unwrap();
    assert!(matches!(ended, Err(BlobError::Sealed(Sealed::RunEnded))), "{ended:?}");
    assert_eq!((test.rows().await, test.files()), (0, 0));
    queue.stop().await;
    test.database.finish().await;
}

#[tokio::test]
async fn uploads_of_one_run_leave_slots_for_others() {
    let limits = UploadLimits { slot: Duration::from_millis(200), ..UploadLimits::default() };
    let test = BlobTest::with_limits(limits).await;
    let pool = test.database.pool();
    let task: TaskId = "bRKq9uZmSwq5d8hSvWYW5A".parse().unwrap();
    let artifact = |name: &str| BlobName::artifact(task, RunId::FIRST, name);
    let mut uploads = JoinSet::new();
    // One by one, so none waits for the database instead.
    for n in 1..=UPLOADS_OF_ANYONE {
        let (pool, blobs, new) = (pool.clone(), test.blobs.clone(), new_bytes(artifact("same")));
        uploads
            .spawn(async move { blobs.upload(&pool, &new, stream::pending::<Result<Bytes, std::io::Error>>()).await });
        tenure_store::testing::eventually("it has begun", async || test.rows().await == n as i64).await;
    }
    for of_the_run in [artifact("other"), name(&format!("t/{task}/0/object"))] {
        let refused = test.blobs.upload(pool, &new_bytes(of_the_run), trickle()).await;
        assert!(matches!(refused, Err(BlobError::OwnerBusy(UPLOADS_OF_ONE_RUN))), "{refused:?}");
    }
    test.put(&name("of no run"), "stored").await;
    test.put(&name(&format!("t/{task}/1/object")), "stored").await;
    test.blobs.put_by_server(pool, &artifact("log"), "text/plain", Bytes::from("stored")).await.unwrap();
    assert_eq!(test.read(&artifact("log")).await.as_deref(), Some("stored"));
    uploads.shutdown().await;
    test.database.finish().await;
}

#[tokio::test]
async fn abandoned_upload_is_removed_and_active_one_kept() {
    let test = BlobTest::new().await;
    let pool = test.database.pool();
    let lease = Duration::from_secs(900);
    let (dead, alive) = (Uuid::new_v4(), Uuid::new_v4());
    for id in [dead, alive] {
        let row = tenure_store::blobs::NewBlob { id, name: "object/x", content_type: "", content_encoding: None };
        tenure_store::blobs::begin(pool, row, lease).await.unwrap();
    }
    test.advance(10).await;
    assert!(tenure_store::blobs::renew(pool, alive, lease).await.unwrap());
    test.advance(10).await;
    assert_eq!(test.sweep().await, (1, 1));
    assert!(!tenure_store::blobs::renew(pool, dead, lease).await.unwrap());
    assert!(!test.finish(dead).await);
    assert!(test.finish(alive).await);
    // Current bytes are never due, and never purged by id.
    test.advance(10_000).await;
    assert_eq!(test.sweep().await, (0, 0));
    assert_eq!(tenure_store::blobs::purge(pool, &[alive]).await.unwrap(), 0);
    test.database.finish().await;
}

#[tokio::test]
async fn unremovable_bytes_keep_row_and_are_retried() {
    let test = BlobTest::new().await;
    test.put(&name("a"), "bytes").await;
    // A folder cannot be removed as a file.
    let folder = std::fs::read_dir(test.folder.path().join("a")).unwrap().next().unwrap().unwrap().path();
    let file = std::fs::read_dir(&folder).unwrap().next().unwrap().unwrap().path();
    std::fs::remove_file(&file).unwrap();
    std::fs::create_dir(&file).unwrap();
    test.blobs.delete(test.database.pool(), &[name("a")]).await.unwrap();
    assert_eq!(test.rows().await, 1);
    assert_eq!(test.sweep().await, (0, 0));
    test.advance(2).await;
    assert_eq!(test.sweep().await, (1, 0));
    std::fs::remove_dir(&file).unwrap();
    test.advance(2).await;
    assert_eq!(test.sweep().await, (1, 1));
    assert_eq!(test.rows().await, 0);
    test.database.finish().await;
}

#[tokio::test]
async fn an_object_is_read_by_one_connection() {
    let test = BlobTest::new().await;
    let (pool, hashes) = (test.database.pool(), ObjectHashes::default());
    let now: DateTime<Utc> = sqlx::query_scalar("SELECT now FROM db_now").fetch_one(pool).await.unwrap();
    let upload = Upload { name: "o", project: "none", id: SlugId::from_random([1; 16]) };
    objects::begin(pool, upload, now + TimeDelta::hours(1), &hashes).await.unwrap();
    objects::store(pool, &test.blobs, "o", "text/plain", Bytes::from("bytes")).await.unwrap();
    objects::finish(pool, &test.blobs, upload, &hashes).await.unwrap();
    let one = test.database.connector().small_pool("test");
    // The read would wait for its own connection.
    let read = tokio::time::timeout(SOON, objects::read(&one, &test.blobs, "o")).await.expect("it waits for nothing");
    assert_eq!(read.unwrap().stored.size, 5);
    one.close().await;
    test.database.finish().await;
}

#[test]
fn name_has_one_spelling() {
    let task: TaskId = "bRKq9uZmSwq5d8hSvWYW5A".parse().unwrap();
    for name in ["public/log", "/", "//x//", "..", "0/x"] {
        assert_eq!(BlobName::artifact(task, RunId::FIRST, name).part(), Part::Artifact(task, RunId::FIRST, name));
        assert_eq!(BlobName::object(name).part(), Part::Object(name));
    }
    for other in ["artifact/x/0/a", "artifact/bRKq9uZmSwq5d8hSvWYW5A/00/a", "artifact/bRKq9uZmSwq5d8hSvWYW5A/+0/a"] {
        assert_eq!(BlobName::of_path(&format!("/artifacts/{other}")).unwrap().part(), Part::Other, "{other}");
    }
}

#[tokio::test]
async fn urls_begin_with_the_root_url() {
    let test = BlobTest::new().await;
    let put = test.blobs.put_url(&name("x"), "text/plain", 5);
    assert!(put.starts_with("http://localhost/artifacts/object/x?Credential=put&expires=5&signature="), "{put}");
    let get = test.blobs.get_url(&name("x"), 5);
    assert!(get.starts_with("http://localhost/artifacts/object/x?Credential=get&expires=5&signature="), "{get}");
    assert_eq!(test.blobs.plain_url(&name("a b/c")), "http://localhost/artifacts/object/a%20b/c");
    assert_eq!(test.blobs.plain_url(&name("a/../b")), "http://localhost/artifacts/object%2Fa%2F..%2Fb");
    test.database.finish().await;
}
