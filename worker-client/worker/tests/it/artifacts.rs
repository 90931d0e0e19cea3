//! A worker and the artifacts and logs of its tasks.

use std::time::Duration;

use serde_json::{Value, json};
use tenure_worker::Plane;

use crate::queue::{Queue, Reply, TASK_IDS, claim, ok, refuse};
use crate::store::URL_SECRET;
use crate::worker::{LEASE, Running, given_back, shell};

const TASK: &str = TASK_IDS[0];
const BACKING_LOG: &str = "public/logs/live_backing.log";
const LIVE_LOG: &str = "public/logs/live.log";
const EXPIRES: &str = "2001-01-01T00:55:00.000Z";
/// More than all attempts of one upload.
const ALL_TRIES: usize = 6;

fn payload(script: &str, artifacts: &Value) -> Value {
    json!({"command": [["sh", "-c", script]], "artifacts": artifacts})
}

fn file(name: &str, path: &str) -> Value {
    json!({"name": name, "path": path, "type": "file"})
}

fn directory(name: &str, path: &str) -> Value {
    json!({"name": name, "path": path, "type": "directory"})
}

async fn ended(queue: Queue, payload: &Value, report: &str) -> Running {
    let running = Running::with_task(queue, LEASE, payload).await;
    running.queue.wait_for(report, 1).await;
    running
}

fn names(running: &Running) -> Vec<String> {
    running.queue.artifacts(TASK)
}

#[tokio::test]
async fn log_is_uploaded_after_task_removed_its_file() {
    for gone in ["rm live.log; ln -s /etc/passwd live.log", "rm -r \"$TASK_WORKDIR\""] {
        let running = ended(Queue::start().await, &shell(&format!("echo hello; {gone}")), "completed").await;
        let text = running.queue.artifact(TASK, BACKING_LOG).text();
        assert!(text.contains("hello\n") && text.ends_with("completed\n"), "{text}");
        running.stop().await;
    }
}

#[tokio::test]
async fn files_and_directories_become_artifacts() {
    let script = "mkdir -p out/deep; printf '\\001\\002' > out/a.bin; echo '{}' > out/deep/b.json; echo c > c.txt; ln -s a.bin out/link";
    let mut typed = file("private/typed", "c.txt");
    typed["contentType"] = json!("text/x-mine");
    typed["contentEncoding"] = json!("gzip");
    typed["expires"] = json!("2001-01-01T00:50:00Z");
    let artifacts = json!([directory("public/out", "out"), {"path": "c.txt", "type": "file"}, typed]);
    let running = ended(Queue::start().await, &payload(script, &artifacts), "completed").await;
    let expected = [
        "c.txt",
        "private/typed",
        LIVE_LOG,
        BACKING_LOG,
        "public/out/a.bin",
        "public/out/deep/b.json",
        "public/out/link",
    ];
    assert_eq!(names(&running), expected);
    for (name, content_type, content, encoding, expires) in [
        ("public/out/a.bin", "application/octet-stream", b"\x01\x02".as_slice(), None, EXPIRES),
        ("public/out/link", "application/octet-stream", b"\x01\x02", None, EXPIRES),
        ("public/out/deep/b.json", "application/json", b"{}\n", None, EXPIRES),
        ("c.txt", "text/plain", b"c\n", None, EXPIRES),
        ("private/typed", "text/x-mine", b"c\n", Some("gzip"), "2001-01-01T00:50:00.000Z"),
    ] {
        let artifact = running.queue.artifact(TASK, name);
        let created = json!({"storageType": "s3", "contentType": content_type, "contentLength": content.len(), "expires": expires});
        assert_eq!((&artifact.created, artifact.content()), (&created, content.to_vec()), "{name}");
        assert_eq!(artifact.encoding.as_deref(), encoding, "{name}");
        let line = format!("[tenure-worker] artifact {name}: {} bytes\n", content.len());
        assert!(running.log().contains(&line), "{line}: {}", running.log());
    }
    running.stop().await;
}

#[tokio::test]
async fn artifacts_of_failed_task_are_uploaded() {
    let script = "echo partial > result; exit 1";
    let running = ended(Queue::start().await, &payload(script, &json!([file("result", "result")])), "failed").await;
    assert_eq!(running.queue.artifact(TASK, "result").content(), b"partial\n");
    // The failure of the command decides.
    let artifacts = json!([file("missing", "missing"), file("result", "result")]);
    let other = ended(Queue::start().await, &payload(script, &artifacts), "failed").await;
    assert!(other.log().ends_with("failed: exit code 1\n"), "{}", other.log());
    running.stop().await;
    other.stop().await;
}

#[tokio::test]
async fn unnamable_files_do_not_prevent_other_uploads() {
    let script = "mkdir dir; echo 1 > dir/ä; echo 2 > dir/ö; echo fine > dir/fine";
    let running = ended(Queue::start().await, &payload(script, &json!([directory("dir", "dir")])), "failed").await;
    let created = running.queue.artifact(TASK, "dir").created;
    assert_eq!((&created["storageType"], &created["reason"]), (&json!("error"), &json!("invalid-resource-on-worker")));
    assert_eq!(running.queue.artifact(TASK, "dir/fine").content(), b"fine\n");
    let log = running.log();
    for name in ["ä", "ö"] {
        assert!(log.contains(&format!("artifact dir: \"{name}\" is not a valid name of an artifact")), "{log}");
    }
    running.stop().await;
}

#[tokio::test]
async fn optional_artifact_may_be_missing() {
    let optional = |mut artifact: Value| {
        artifact["optional"] = json!(true);
        artifact
    };
    let artifacts = json!([optional(file("a", "a")), optional(directory("b", "b")), directory("empty", "empty")]);
    let running = ended(Queue::start().await, &payload("mkdir empty", &artifacts), "completed").await;
    assert_eq!(names(&running), [LIVE_LOG, BACKING_LOG]);
    let artifacts = json!([optional(file("a", "a"))]);
    let other = ended(Queue::start().await, &payload("mkdir a", &artifacts), "failed").await;
    running.stop().await;
    other.stop().await;
}

#[tokio::test]
async fn impossible_names_of_files_are_refused() {
    let script = "mkdir -p out/logs; echo x > \"out/$(printf 'a\\tb')\"; echo y > out/logs/live.log";
    let running = ended(Queue::start().await, &payload(script, &json!([directory("out", "out")])), "failed").await;
    let created = running.queue.artifact(TASK, "out").created;
    assert_eq!(created["reason"], "invalid-resource-on-worker");
    assert_eq!(running.queue.artifact(TASK, "out/logs/live.log").content(), b"y\n");
    running.stop().await;
    // The log's names are reserved.
    let running =
        ended(Queue::start().await, &payload(script, &json!([directory("public", "out")])), "exception").await;
    assert_eq!(running.queue.requests("exception")[0].body["reason"], "malformed-payload");
    assert!(running.log().contains(&format!("two artifacts would have the name {LIVE_LOG}")), "{}", running.log());
    running.stop().await;
}

#[tokio::test]
async fn failed_upload_reports_its_reason() {
    for (call, reply, reason) in [
        ("artifacts/a", refuse(503), "resource-unavailable"),
        ("artifacts/a", refuse(409), "malformed-payload"),
        ("artifacts/a", refuse(400), "internal-error"),
        ("artifacts/a", refuse(403), "internal-error"),
        ("a/bytes", refuse(500), "resource-unavailable"),
        ("a/bytes", Reply { cut: true, ..ok(Value::Null) }, "resource-unavailable"),
        ("a/bytes", refuse(403), "internal-error"),
        ("live_backing.log/bytes", refuse(503), "resource-unavailable"),
        ("live.log", refuse(409), "malformed-payload"),
    ] {
        let queue = Queue::start().await;
        (0..ALL_TRIES).for_each(|_| queue.once(call, reply.clone()));
        let payload = payload("echo a > a; echo b > b", &json!([file("a", "a"), file("b", "b")]));
        let running = ended(queue, &payload, "exception").await;
        let report = &running.queue.requests("exception")[0];
        assert_eq!(report.body["reason"], reason, "{call} {}", reply.status);
        assert_eq!((&report.body["failure"]["kind"], &report.body["failure"]["exitCode"]), (&json!(reason), &json!(0)));
        let why = report.body["failure"]["message"].as_str().unwrap();
        assert!(!why.contains(URL_SECRET), "{why}");
        assert_eq!(running.queue.reports().len(), 1);
        if !call.contains("live") {
            let log = running.queue.artifact(TASK, BACKING_LOG).text();
            assert!(log.contains("artifact a: ") && !log.contains(URL_SECRET), "{log}");
        }
        running.stop().await;
    }
}

#[tokio::test]
async fn upload_is_retried_after_unclear_answer() {
    let queue = Queue::start().await;
    for status in [404, 403, 200] {
        queue.once("artifacts/a", Reply { bytes: Some(b"<html>not here</html>".to_vec()), ..refuse(status) });
    }
    let running = ended(queue, &payload("echo a > a", &json!([file("a", "a")])), "completed").await;
    assert_eq!(running.queue.artifact(TASK, "a").content(), b"a\n");
    running.stop().await;
}

#[tokio::test]
async fn lost_claim_and_shutdown_end_uploads_at_once() {
    for (call, lost) in
        [("a/bytes", true), ("a/bytes", false), ("live_backing.log/bytes", true), ("live_backing.log/bytes", false)]
    {
        let queue = Queue::start().await;
        queue.on(call, |_| Reply { after: Duration::from_secs(60), ..refuse(403) });
        queue.on("reclaim", |_| refuse(409));
        let payload = payload("echo a > a", &json!([file("a", "a")]));
        let lease = Duration::from_secs(if lost { 1 } else { 60 });
        queue.hand_out(&[claim(TASK, lease, &payload)]);
        let running = Running::start_on(Plane::Claim, queue, 1);
        running.queue.wait_for(call, 1).await;
        let queue = running.queue.clone();
        if lost {
            // The task is over for the worker.
            queue.wait_for("p%2Fw", 2).await;
        }
        running.stop().await;
        let reports: Vec<_> = queue.reports().into_iter().map(|report| report.body).collect();
        assert_eq!(reports, if lost { vec![] } else { vec![given_back("the worker shuts down")] }, "{call}");
        assert!(!queue.artifacts(TASK).contains(&LIVE_LOG.to_owned()));
    }
}
