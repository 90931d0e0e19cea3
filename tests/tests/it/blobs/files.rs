//! Bytes in a folder: its contents after each kind of event.

use futures_util::StreamExt as _;
use tokio::sync::mpsc;

use super::*;
use crate::rig::eventually;

const NAME: &str = "artifact/t/0/public/a.bin";

/// An upload whose body the test sends piece by piece. The body breaks off when dropped.
struct Slow {
    pieces: mpsc::Sender<Result<Vec<u8>, std::io::Error>>,
    answer: tokio::task::JoinHandle<Result<Response, reqwest::Error>>,
}

impl Slow {
    fn begin(stored: &Stored, name: &str) -> Self {
        let (pieces, received) = mpsc::channel(1);
        let body = futures_util::stream::unfold(received, |mut received| async move {
            received.recv().await.map(|piece| (piece, received))
        });
        let request = stored.put(name, OCTETS).body(reqwest::Body::wrap_stream(body.boxed()));
        Self { pieces, answer: tokio::spawn(request.send()) }
    }

    async fn send(&self, bytes: &[u8]) {
        self.pieces.send(Ok(bytes.to_vec())).await.unwrap();
    }

    async fn cut(self) {
        self.pieces.send(Err(std::io::Error::other("cut by the test"))).await.unwrap();
        assert!(self.answer.await.unwrap().is_err());
    }

    async fn end(self) -> Response {
        drop(self.pieces);
        self.answer.await.unwrap().unwrap()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn aborted_upload_keeps_stored_bytes_and_no_others() {
    let stored = Stored::start().await;
    stored.upload(NAME, "earlier").await;
    for sent in [0, 10, 3 << 20] {
        let slow = Slow::begin(&stored, NAME);
        slow.send(&some_bytes(sent, 4)).await;
        eventually("the upload has begun", async || (stored.rows().await == 2).then_some(())).await;
        stored.holds(NAME, b"earlier").await;
        slow.cut().await;
        eventually("it was taken back", async || (stored.rows().await == 1).then_some(())).await;
        stored.holds(NAME, b"earlier").await;
        assert_eq!(stored.files().len(), 1, "{:?}", stored.files());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_that_is_too_large_is_refused_and_changes_nothing() {
    let stored = Stored::start_with(|launch| launch.flag("--artifact-size-max", "1MiB")).await;
    stored.upload(NAME, vec![1; 1 << 20]).await;
    // An announced length is refused at once; otherwise the body is refused at the limit.
    let answer = stored.put(NAME, OCTETS).body(vec![2; (1 << 20) + 1]).send().await;
    if let Ok(answer) = answer {
        assert!(refused(answer, 413, "TooLarge").await.contains("--artifact-size-max"));
    }
    let slow = Slow::begin(&stored, NAME);
    slow.send(&vec![3; 1 << 20]).await;
    slow.send(&[3]).await;
    let answer = slow.answer.await.unwrap();
    if let Ok(answer) = answer {
        refused(answer, 413, "TooLarge").await;
    }
    eventually("it was taken back", async || (stored.rows().await == 1).then_some(())).await;
    assert_eq!(stored.files().len(), 1);
    stored.holds(NAME, &vec![1; 1 << 20]).await;
    assert_eq!(stored.metric("tenure_artifact_requests_total{operation=\"put\",outcome=\"refused\"}").await, 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_replaced_leaves_the_folder_and_its_reader_reads_on() {
    let stored = Stored::start_with(|launch| launch.flag("--clock", "manual")).await;
    let first = some_bytes(40 << 20, 1);
    stored.upload(NAME, first.clone()).await;
    let mut reading = stored.get(NAME).send().await.unwrap().bytes_stream();
    let mut read = reading.next().await.unwrap().unwrap().to_vec();
    stored.upload(NAME, "second").await;
    assert_eq!(stored.files().len(), 2);
    stored.rig.advance(6 * 60).await;
    assert_eq!(stored.files().len(), 1);
    while let Some(piece) = reading.next().await {
        read.extend_from_slice(&piece.unwrap());
    }
    assert!(read == first);
    stored.holds(NAME, b"second").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn upload_of_killed_server_is_cleaned_up() {
    let mut stored = Stored::start_with(|launch| launch.flag("--clock", "manual")).await;
    stored.upload(NAME, "earlier").await;
    let slow = Slow::begin(&stored, NAME);
    slow.send(&some_bytes(2 << 20, 4)).await;
    eventually("some of it is in the folder", async || (stored.files().len() == 2).then_some(())).await;
    stored.rig.server.kill().unwrap();
    drop(slow);
    assert_eq!((stored.rows().await, stored.files().len()), (2, 2));
    let launch = Launch::on_database(stored.rig.database.url(), &stored.rig.secret_key).flag("--clock", "manual");
    stored.rig.server = launch.start(stored.rig.folder.path(), "server").await;
    stored.holds(NAME, b"earlier").await;
    stored.rig.advance(16 * 60).await;
    assert_eq!((stored.rows().await, stored.files().len()), (1, 1));
    stored.holds(NAME, b"earlier").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn abandoned_upload_is_refused_and_leaves_nothing() {
    let stored = Stored::start_with(|launch| launch.flag("--clock", "manual")).await;
    stored.upload(NAME, "earlier").await;
    let slow = Slow::begin(&stored, NAME);
    slow.send(&some_bytes(2 << 20, 4)).await;
    eventually("some of it is in the folder", async || (stored.files().len() == 2).then_some(())).await;
    stored.rig.advance(16 * 60).await;
    assert_eq!(stored.rows().await, 1);
    refused(slow.end().await, 409, "Deleted").await;
    stored.holds(NAME, b"earlier").await;
    assert_eq!(stored.files().len(), 1, "{:?}", stored.files());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stopping_server_ends_uploads_and_keeps_earlier_bytes() {
    let stored = Stored::start().await;
    stored.upload(NAME, "earlier").await;
    let slow = Slow::begin(&stored, NAME);
    slow.send(&some_bytes(10, 4)).await;
    eventually("the upload has begun", async || (stored.rows().await == 2).then_some(())).await;
    stored.rig.server.terminate().unwrap();
    // An upload that ends during the drain is stored.
    slow.send(b"last").await;
    assert_eq!(slow.end().await.status().as_u16(), 200);
    let mut stored = stored;
    assert!(stored.rig.server.ended().await.success());
    stored.rig.server = Launch::on_database(stored.rig.database.url(), &stored.rig.secret_key)
        .start(stored.rig.folder.path(), "server")
        .await;
    stored.holds(NAME, &[&some_bytes(10, 4)[..], b"last"].concat()).await;
}
