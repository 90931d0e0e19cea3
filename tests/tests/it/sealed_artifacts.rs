//! Artifacts of a reported run and finished uploads are immutable: no URL changes them.

use futures_util::StreamExt as _;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::artifacts::{Worker, get, put, segment, target};
use crate::objects::{end_object, object, put_url_of};
use crate::rig::{Raw, RawReply, TIMEOUT, eventually, minutes_from_now, ok};

/// First half of the advisory lock on a name of stored bytes; the second is the name's hash.
const BLOB_NAMES: i32 = 0x7465_6e75;

impl Worker {
    async fn upload_url(&self, name: &str) -> String {
        let body = json!({"storageType": "s3", "contentType": "text/plain", "expires": minutes_from_now(60)});
        self.created(name, &body).await["putUrl"].as_str().unwrap().to_owned()
    }

    pub async fn report(&self, end: &str, body: Option<&Value>) {
        ok(self.call("POST", &format!("{}/{end}", self.run), body).await);
    }

    async fn bytes(&self, name: &str) -> Vec<u8> {
        let reply = self.root(&format!("{}/artifacts/{}", self.run, segment(name))).await;
        assert_eq!(reply.status, 303, "{}", reply.text());
        get(&self.rig, reply.header("location").unwrap()).await.body
    }

    async fn upload(&self, url: &str, bytes: &[u8]) -> RawReply {
        put(&self.rig, url, "text/plain", bytes).await
    }

    async fn waits_for(&self, such: &str) -> bool {
        let mut conn = self.rig.database.connect("looking").await;
        let waiting = format!(
            "SELECT count(*) FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid
             WHERE NOT l.granted AND a.datname = current_database() AND {such}"
        );
        let count: i64 = sqlx::query_scalar(sqlx::AssertSqlSafe(waiting)).fetch_one(&mut conn).await.unwrap();
        count > 0
    }

    async fn generations(&self) -> i64 {
        let mut conn = self.rig.database.connect("blobs").await;
        sqlx::query_scalar("SELECT count(*) FROM blobs").fetch_one(&mut conn).await.unwrap()
    }
}

#[track_caller]
fn denied(reply: &RawReply) {
    assert_eq!((reply.status, reply.json()["code"].as_str()), (403, Some("AccessDenied")), "{}", reply.text());
}

struct Slow {
    pieces: mpsc::Sender<Result<Vec<u8>, std::io::Error>>,
    answer: tokio::task::JoinHandle<Result<reqwest::Response, reqwest::Error>>,
}

impl Slow {
    async fn begin(worker: &Worker, url: &str, first: &[u8]) -> Self {
        let before = worker.generations().await;
        let (pieces, received) = mpsc::channel(1);
        let body = futures_util::stream::unfold(received, |mut received| async move {
            received.recv().await.map(|piece| (piece, received))
        });
        let _already = rustls::crypto::ring::default_provider().install_default();
        let http = reqwest::Client::builder().no_proxy().timeout(TIMEOUT * 4).build().unwrap();
        let request = http
            .put(format!("{}{}", worker.rig.server.root_url(), target(&worker.rig, url)))
            .header("content-type", "text/plain")
            .body(reqwest::Body::wrap_stream(body.boxed()));
        let slow = Self { pieces, answer: tokio::spawn(request.send()) };
        slow.pieces.send(Ok(first.to_vec())).await.unwrap();
        eventually("the upload has begun", async || (worker.generations().await > before).then_some(())).await;
        slow
    }

    async fn end(self, last: &[u8]) -> u16 {
        self.pieces.send(Ok(last.to_vec())).await.unwrap();
        drop(self.pieces);
        self.answer.await.unwrap().unwrap().status().as_u16()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_part_does_not_replace_the_whole() {
    let worker = Worker::start().await;
    let url = worker.upload_url("public/whole.txt").await;
    assert_eq!(worker.upload(&url, b"the whole").await.status, 200);
    let mut part = Raw::new("PUT", target(&worker.rig, &url)).header("Content-Type", "text/plain");
    part = part.header("Content-Range", "bytes 0-2/9");
    part.body = Some(b"THE".to_vec());
    let refused = worker.rig.send(&part).await;
    assert_eq!((refused.status, refused.json()["code"].as_str()), (400, Some("PartialUpload")), "{}", refused.text());
    assert_eq!(worker.bytes("public/whole.txt").await, b"the whole");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_uploaded_for_a_run_that_was_reported() {
    for end in ["completed", "failed"] {
        let worker = Worker::start().await;
        let (there, late) = (worker.upload_url("public/there").await, worker.upload_url("public/late").await);
        for bytes in [b"first".as_slice(), b"again"] {
            assert_eq!(worker.upload(&there, bytes).await.status, 200);
        }
        worker.report(end, None).await;
        denied(&worker.upload(&there, b"after the report").await);
        denied(&worker.upload(&late, b"after the report").await);
        assert_eq!(worker.bytes("public/there").await, b"again");
        worker.rig.advance(6 * 60).await;
        assert_eq!(worker.generations().await, 1);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn uploads_after_exception_end_with_artifact_creation() {
    let worker = Worker::start().await;
    let url = worker.upload_url("public/log").await;
    worker.report("exception", Some(&json!({"reason": "malformed-payload"}))).await;
    assert_eq!(worker.upload(&url, b"the log").await.status, 200);
    worker.rig.advance(24 * 60).await;
    let slow = Slow::begin(&worker, &url, b"half ").await;
    worker.rig.advance(2 * 60).await;
    denied(&worker.upload(&url, b"too late").await);
    assert_eq!(slow.end(b"whole").await, 403);
    assert_eq!(worker.bytes("public/log").await, b"the log");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn upload_in_flight_at_report_changes_nothing() {
    let worker = Worker::start().await;
    let (there, late) = (worker.upload_url("public/there").await, worker.upload_url("public/late").await);
    assert_eq!(worker.upload(&there, b"first").await.status, 200);
    let replacing = Slow::begin(&worker, &there, &[1; 700_000]).await;
    let adding = Slow::begin(&worker, &late, b"half ").await;
    worker.report("completed", None).await;
    assert_eq!(replacing.end(&[2; 700_000]).await, 403);
    assert_eq!(adding.end(b"whole").await, 403);
    assert_eq!(worker.bytes("public/there").await, b"first");
    eventually("refused bytes are deleted", async || (worker.generations().await == 1).then_some(())).await;
}

/// The other order: an upload just becoming current when the report comes is stored before the
/// report.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn report_waits_for_upload_that_precedes_it() {
    let worker = Worker::start().await;
    let url = worker.upload_url("public/log").await;
    assert_eq!(worker.upload(&url, b"first").await.status, 200);
    // Blocks the last step of the upload before its commit.
    let mut holding = worker.rig.database.connect("holding").await;
    let lock = "SELECT pg_advisory_lock($1, hashtext($2))";
    let name = format!("artifact/{}/0/public/log", worker.task);
    sqlx::query(lock).bind(BLOB_NAMES).bind(&name).execute(&mut holding).await.unwrap();
    let uploading = worker.upload(&url, b"second");
    let reporting = async {
        let waits = "l.locktype = 'advisory' ";
        eventually("the upload waits", async || worker.waits_for(waits).await.then_some(())).await;
        let release = async {
            // Either the report waits for the upload, or it wrongly passed it.
            let early = eventually("the report waits, or is through", async || {
                let through = worker.rig.status(worker.task).await["state"] != "running";
                let waits = worker.waits_for("l.locktype IN ('transactionid', 'tuple')").await;
                (through || waits).then_some(through)
            })
            .await;
            sqlx::query("SELECT pg_advisory_unlock_all()").execute(&mut holding).await.unwrap();
            early
        };
        tokio::join!(worker.report("completed", None), release).1
    };
    let (uploaded, early) = tokio::join!(uploading, reporting);
    assert_eq!(uploaded.status, 200, "{}", uploaded.text());
    assert!(!early, "the run was over before the upload was stored");
    assert_eq!(worker.bytes("public/log").await, b"second");
    denied(&worker.upload(&url, b"third").await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_bytes_of_a_finished_object_stay_those_that_were_compared() {
    let worker = Worker::start().await;
    let created = object(&worker, "public/object").await;
    let url = put_url_of(&worker, &created, b"compared".len()).await;
    for bytes in [b"mistaken".as_slice(), b"compared"] {
        assert_eq!(worker.upload(&url, bytes).await.status, 200);
    }
    let slow = Slow::begin(&worker, &url, b"half ").await;
    end_object(&worker, &created, b"compared").await;
    denied(&worker.upload(&url, b"replaced").await);
    assert_eq!(slow.end(b"whole").await, 403);
    let finish = json!({"uploadId": created["uploadId"]});
    let path = format!("{}/artifacts/{}", worker.run, segment("public/object"));
    assert_eq!(worker.call("PUT", &path, Some(&finish)).await.status, 204);
    assert_eq!(worker.bytes("public/object").await, b"compared");
}
