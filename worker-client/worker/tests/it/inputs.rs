//! A worker and the inputs of its tasks.

use std::time::Duration;

use serde_json::{Value, json};
use tenure_worker::Plane;

use crate::queue::{Queue, RENEWED_AFTER_SIX_SECONDS, Reply, TASK_IDS, claim, ok, refuse, renewed, until};
use crate::store::Stored;
use crate::worker::{LEASE, Running, given_back};

const MAKER: &str = TASK_IDS[2];

fn hello() -> Stored {
    Stored { created: json!({"storageType": "s3"}), bytes: Some(b"hello".to_vec()), encoding: None }
}

fn payload(inputs: &Value) -> Value {
    json!({"command": [["sh", "-c", "cat in/*; touch ran"]], "inputs": inputs})
}

fn input(artifact: &str, path: &str) -> Value {
    json!({"taskId": MAKER, "artifact": artifact, "path": path})
}

#[tokio::test]
async fn input_with_wrong_digest_is_refused() {
    let queue = Queue::start().await;
    queue.has_artifact(MAKER, "a", hello());
    let mut other = input("a", "in/a");
    other["sha256"] = json!("00".repeat(32));
    let running = Running::with_task(queue, LEASE, &payload(&json!([other]))).await;
    let report = running.queue.wait_for("exception", 1).await;
    assert_eq!(report[0].body["reason"], "malformed-payload");
    let why = report[0].body["failure"]["message"].as_str().unwrap();
    assert!(why.starts_with(&format!("input a of task {MAKER}: its sha256 is 2cf24dba")), "{why}");
    assert!(running.log().contains("its sha256 is 2cf24dba"), "{}", running.log());
    running.stop().await;
}

#[tokio::test]
async fn download_uses_credentials_of_renewed_claim() {
    let queue = Queue::start().await;
    queue.has_artifact(MAKER, "a", hello());
    queue.on("reclaim", |_| renewed(60_000, "task-1"));
    // The first attempt hangs until the claim was renewed, and ends without an answer.
    let slow = Reply { after: Duration::from_secs(7), cut: true, ..ok(Value::Null) };
    queue.once("artifacts/a", slow);
    let running = Running::with_task(queue, RENEWED_AFTER_SIX_SECONDS, &payload(&json!([input("a", "in/a")]))).await;
    let report = running.queue.wait_for("completed", 1).await;
    let signed: Vec<_> = running.queue.requests("artifacts/a").into_iter().map(|request| request.signed_by).collect();
    assert_eq!((signed, report[0].signed_by.as_str()), (vec!["task-0".to_owned(), "task-1".to_owned()], "task-1"));
    running.stop().await;
}

#[tokio::test]
async fn lost_claim_and_shutdown_end_download_at_once() {
    for lost in [true, false] {
        let queue = Queue::start().await;
        queue.has_artifact(MAKER, "a", hello());
        let hangs = Reply { after: Duration::from_secs(60), ..ok(Value::Null) };
        queue.on("a/bytes", move |_| hangs.clone());
        queue.on("reclaim", |_| refuse(409));
        let lease = Duration::from_secs(if lost { 1 } else { 60 });
        queue.hand_out(&[claim(TASK_IDS[0], lease, &payload(&json!([input("a", "in/a")])))]);
        let running = Running::start_on(Plane::Claim, queue, 1);
        running.queue.wait_for("a/bytes", 1).await;
        let (queue, directory) = (running.queue.clone(), running.directory());
        if lost {
            // The task is over for the worker.
            queue.wait_for("p%2Fw", 2).await;
        } else {
            running.shutdown.cancel();
            queue.wait_for("exception", 1).await;
        }
        let left = || std::fs::read_dir(directory.join("in")).unwrap().count();
        until("nothing half is left", || (left() == 0).then_some(())).await;
        running.stop().await;
        let reports: Vec<_> = queue.reports().into_iter().map(|report| report.body).collect();
        assert_eq!(reports, if lost { vec![] } else { vec![given_back("the worker shuts down")] });
        assert_eq!(queue.artifacts(TASK_IDS[0]), Vec::<String>::new());
    }
}
