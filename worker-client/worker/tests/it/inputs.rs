//! A worker and the artifacts that its tasks need: there before the first command, or a reason why not.

use std::time::Duration;

use serde_json::{Value, json};
use tenure_worker::Plane;

use crate::queue::{Queue, RENEWED_AFTER_SIX_SECONDS, Reply, TASK_IDS, claim, ok, refuse, renewed, until};
use crate::store::Stored;
use crate::worker::{LEASE, Running};

/// The task that the scripted queue's tasks depend on.
const MAKER: &str = TASK_IDS[2];
const HELLO_SHA256: &str = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824";

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
async fn inputs_are_there_before_the_first_command() {
    let queue = Queue::start().await;
    queue.has_artifact(MAKER, "private/a", hello());
    queue.has_artifact(MAKER, "public/b", Stored { bytes: Some(b" world".to_vec()), ..hello() });
    let mut first = input("private/a", "in/a");
    first["sha256"] = json!(HELLO_SHA256.to_uppercase());
    let running = Running::with_task(queue, LEASE, &payload(&json!([first, input("public/b", "in/b")]))).await;
    running.queue.wait_for("completed", 1).await;
    let log = running.log();
    assert!(log.contains("hello world"), "{log}");
    let line = format!("[tenure-worker] input private/a of task {MAKER}: 5 bytes, sha256 {HELLO_SHA256}, in in/a\n");
    assert!(log.contains(&line), "{log}");
    // Private artifacts are read with what the task may do.
    assert!(running.queue.requests("private%2Fa").iter().all(|request| request.signed_by == "task-0"));
    running.stop().await;
}

#[tokio::test]
async fn each_way_in_which_an_input_is_not_to_be_had_has_its_reason() {
    let broken = Stored { created: json!({"storageType": "error", "reason": "r", "message": "m"}), ..hello() };
    for (artifact, answer, reason, logged) in [
        (None, None, "malformed-payload", "answered 404"),
        (Some(broken), None, "malformed-payload", "answered 424 r: m"),
        (Some(hello()), Some(("artifacts/a", refuse(410))), "malformed-payload", "answered 410"),
        (Some(hello()), Some(("artifacts/a", refuse(403))), "malformed-payload", "answered 403"),
        (Some(hello()), Some(("artifacts/a", refuse(401))), "internal-error", "answered 401"),
        (Some(hello()), Some(("artifacts/a", refuse(500))), "resource-unavailable", "answered 500"),
        (Some(hello()), Some(("a/bytes", refuse(404))), "malformed-payload", "store of the artifact answered 404"),
        (Some(hello()), Some(("a/bytes", refuse(503))), "resource-unavailable", "store of the artifact answered 503"),
    ] {
        let queue = Queue::start().await;
        if let Some(artifact) = artifact {
            queue.has_artifact(MAKER, "a", artifact);
        }
        if let Some((call, reply)) = answer {
            queue.on(call, move |_| reply.clone());
        }
        let running = Running::with_task(queue, LEASE, &payload(&json!([input("a", "in/a")]))).await;
        let report = running.queue.wait_for("exception", 1).await;
        assert_eq!(report[0].body, json!({ "reason": reason }), "{logged}");
        assert!(!running.directory().join("ran").exists());
        // The reason is in the uploaded log too, which is there before the report.
        let log = running.queue.artifact(TASK_IDS[0], "public/logs/live_backing.log").text();
        assert!(log.contains(logged) && log.contains(&format!("input a of task {MAKER}")), "{logged}: {log}");
        running.stop().await;
    }
}

#[tokio::test]
async fn an_input_with_another_digest_is_refused() {
    let queue = Queue::start().await;
    queue.has_artifact(MAKER, "a", hello());
    let mut other = input("a", "in/a");
    other["sha256"] = json!("00".repeat(32));
    let running = Running::with_task(queue, LEASE, &payload(&json!([other]))).await;
    let report = running.queue.wait_for("exception", 1).await;
    assert_eq!(report[0].body, json!({"reason": "malformed-payload"}));
    assert!(running.log().contains("its sha256 is 2cf24dba"), "{}", running.log());
    running.stop().await;
}

#[tokio::test]
async fn a_payload_whose_files_cannot_be_is_malformed() {
    for (payload, logged) in [
        (
            payload(&json!([{"taskId": TASK_IDS[1], "artifact": "a", "path": "a"}])),
            format!("payload.inputs[0].taskId is {}, which must be among the task's dependencies", TASK_IDS[1]),
        ),
        (payload(&json!([input("a", "../a")])), "payload.inputs[0].path must be a path below".to_owned()),
        (
            json!({"command": [["true"]], "artifacts": [{"name": "a", "path": "/etc/passwd", "type": "file"}]}),
            "payload.artifacts[0].path must be a path below".to_owned(),
        ),
    ] {
        let running = Running::with_task(Queue::start().await, LEASE, &payload).await;
        let report = running.queue.wait_for("exception", 1).await;
        assert_eq!(report[0].body, json!({"reason": "malformed-payload"}));
        let log = running.queue.artifact(TASK_IDS[0], "public/logs/live_backing.log").text();
        assert!(log.contains(&logged), "{log}");
        running.stop().await;
    }
}

#[tokio::test]
async fn the_claim_is_renewed_during_a_download_that_then_signs_with_the_new_credentials() {
    let queue = Queue::start().await;
    queue.has_artifact(MAKER, "a", hello());
    queue.on("reclaim", |_| renewed(60_000, "task-1"));
    // The first try hangs until the claim was renewed, and ends without an answer.
    let slow = Reply { after: Duration::from_secs(7), cut: true, ..ok(Value::Null) };
    queue.once("artifacts/a", slow);
    let running = Running::with_task(queue, RENEWED_AFTER_SIX_SECONDS, &payload(&json!([input("a", "in/a")]))).await;
    let report = running.queue.wait_for("completed", 1).await;
    let signed: Vec<_> = running.queue.requests("artifacts/a").into_iter().map(|request| request.signed_by).collect();
    assert_eq!((signed, report[0].signed_by.as_str()), (vec!["task-0".to_owned(), "task-1".to_owned()], "task-1"));
    running.stop().await;
}

#[tokio::test]
async fn a_lost_claim_and_a_shutdown_end_a_download_at_once() {
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
            // The next call for work shows that the worker is done with the task.
            queue.wait_for("p%2Fw", 2).await;
        } else {
            running.shutdown.cancel();
            queue.wait_for("exception", 1).await;
        }
        let left = || std::fs::read_dir(directory.join("in")).unwrap().count();
        until("nothing half is left", || (left() == 0).then_some(())).await;
        running.stop().await;
        let reports: Vec<_> = queue.reports().into_iter().map(|report| report.body).collect();
        assert_eq!(reports, if lost { vec![] } else { vec![json!({"reason": "worker-shutdown"})] });
        assert_eq!(queue.artifacts(TASK_IDS[0]), Vec::<String>::new());
    }
}
